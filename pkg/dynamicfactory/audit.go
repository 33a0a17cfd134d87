package dynamicfactory

import (
	"context"

	"github.com/watcherd/watcherd/pkg/compact"
)

// Heads calls visit with the metadata of every object under the subscription's key,
// read from the API server now, at the one consistent version that it returns. It
// is what a subscriber compares its own record with; the informer takes no part.
// The metadata is valid during the call only. Objects of a page that broke off are
// visited again. An error of visit ends it.
//
// The error is ErrNotRaw without NewForConfig, and ErrStopped after the informer's end.
func (s *Subscription) Heads(ctx context.Context, visit func(*compact.Meta) error) (resourceVersion string, err error) {
	if s.informer.source == nil {
		return "", ErrNotRaw
	}
	return s.informer.source.Heads(ctx, visit)
}

// Relist has the shared informer list its resource again, for a subscriber that has
// found that the watch left something out. Handlers are told of the differences,
// and RawOptions.OnGap of a gap with that cause. Without NewForConfig it does
// nothing.
func (s *Subscription) Relist(cause string) {
	if s.informer.source != nil {
		s.informer.source.Relist(cause)
	}
}
