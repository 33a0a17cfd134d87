package dynamicfactory

import (
	"context"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// HeadsPage is what a page of heads says besides the heads: the version at which it
// was read, and the token of the next page, "" after the last.
type HeadsPage = rawwatch.HeadsPage

// Heads calls visit with the metadata of the objects of one page of the resource, read
// from the API server now: of the first page without a token, else of the page that
// the token of the previous one names. Pages have one version until it expires at the
// server; later ones then have a newer version. A subscriber compares its own record
// with them; the informer takes no part. The metadata is valid during the call only.
// An error of visit ends it. A page that breaks off is read again from its beginning,
// after again has been called.
//
// The error is ErrNotRaw without NewForConfig, and ErrStopped after the informer's end.
func (s *Subscription) Heads(ctx context.Context, token string, again func(), visit func(*rawjson.Meta) error) (HeadsPage, error) {
	if s.informer.source == nil {
		return HeadsPage{}, ErrNotRaw
	}
	return s.informer.source.Heads(ctx, token, again, visit)
}

// Head calls visit with the metadata of one object, as Heads does, unless the server
// does not have it.
func (s *Subscription) Head(ctx context.Context, namespace, name string, visit func(*rawjson.Meta)) error {
	if s.informer.source == nil {
		return ErrNotRaw
	}
	return s.informer.source.Head(ctx, namespace, name, visit)
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
