package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/watcherd/watcherd/pkg/compact"
)

// errAsked ends a watch because somebody doubts what it has shown.
type errAsked struct{ cause string }

func (e errAsked) Error() string { return "asked to list again: " + e.cause }

// Relist has the reflector list the resource again, as after a loss of history
// with that cause. A watch that runs is ended; one that cannot be established
// lists when it can.
func (s *Source) Relist(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = cause
	if s.interrupt != nil {
		s.interrupt(errAsked{cause})
	}
}

// interruptible lets Relist end a request by its context; nil takes that back. A
// wish that came before is returned as an error.
func (s *Source) interruptible(cancel context.CancelCauseFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = cancel
	if cancel != nil && s.asked != "" {
		return errAsked{s.asked}
	}
	return nil
}

// Heads calls visit with the metadata of every object that the server has, at one
// consistent version, which it returns. It takes nothing from the informer and
// gives nothing to it. The metadata is valid during the call only. Objects of a page
// that has to be read again are visited again.
func (s *Source) Heads(ctx context.Context, visit func(*compact.Meta) error) (resourceVersion string, err error) {
	if err := s.enter(); err != nil {
		return "", err
	}
	defer s.running.Done()
	query := s.query()
	query.Set("limit", strconv.Itoa(pageSize))
	for {
		meta, err := s.cfg.Client.retried(ctx, pageRequest{
			path: s.path, query: query, accept: acceptMetadataList, silence: pageTimeout, timeout: pageTimeout,
			item: func(raw []byte) error {
				m, err := compact.Scan(raw)
				if err != nil {
					return &unreadable{err}
				}
				return visit(&m)
			},
		}, func(int, error) error { return nil })
		if err != nil {
			return "", fmt.Errorf("list of %s: %w", s.cfg.GVR.Resource, err)
		}
		if resourceVersion == "" {
			resourceVersion = meta.ResourceVersion
		}
		if meta.Continue == "" {
			if resourceVersion == "" {
				return "", &unreadable{errors.New("the list has no resourceVersion")}
			}
			return resourceVersion, nil
		}
		query.Set("continue", meta.Continue)
	}
}
