package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// silence is how long a watch may bring nothing before somebody looks. An API
	// server sends a bookmark about once a minute, for most resources.
	silence = 3 * time.Minute

	// silenceCheck is how often the watchdog looks at the clock.
	silenceCheck = 15 * time.Second
)

// watchdog looks after one watch request. Neither a dead server behind a proxy nor
// one whose versions went backwards shows in the stream: there is just nothing in
// it, as there is in the watch of a resource that does not change.
type watchdog struct {
	source *Source
	cancel context.CancelCauseFunc
	life   time.Duration // after which the request must have ended

	began     time.Time
	lastLine  atomic.Int64 // nanoseconds after began
	busySince atomic.Int64 // nanoseconds after began; 0: waiting for the stream
	bookmarks uint64       // of the source when the request began
}

func newWatchdog(s *Source, cancel context.CancelCauseFunc, life time.Duration) *watchdog {
	return &watchdog{source: s, cancel: cancel, life: life, began: time.Now(), bookmarks: s.stats.get().Bookmarks}
}

// busy notes that a line came and is being handed on, which may take any time.
func (d *watchdog) busy() { d.busySince.Store(max(1, int64(time.Since(d.began)))) }

// idle notes that the stream is waited for again.
func (d *watchdog) idle() {
	d.lastLine.Store(int64(time.Since(d.began)))
	d.busySince.Store(0)
}

// run looks after the request until ctx is done, and ends it if need be.
func (d *watchdog) run(ctx context.Context) {
	t := time.NewTicker(silenceCheck)
	defer t.Stop()
	probed := time.Duration(0)
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		now := time.Since(d.began)
		if d.busySince.Load() != 0 {
			continue // the window is full, or the informer is busy: not the server's fault
		}
		quiet := now - max(time.Duration(d.lastLine.Load()), probed)
		switch {
		case now > d.life && quiet > timeoutGrace:
			d.cancel(errOverdue)
			return
		case quiet < silence:
			continue
		}
		before := d.lastLine.Load()
		err := d.look(ctx)
		if err != nil && !errors.Is(err, errRolledBack) && (d.busySince.Load() != 0 || d.lastLine.Load() != before) {
			continue // meanwhile the stream has brought something
		}
		if err != nil {
			d.cancel(err)
			return
		}
		probed = time.Since(d.began)
	}
}

// look finds out whether the server is well. nil means that the watch is quiet
// because nothing happens.
func (d *watchdog) look(ctx context.Context) error {
	s := d.source
	back, err := s.behind(ctx, time.Now().Add(-silenceCheck), s.progress.resume())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil // who may watch but not list gets no opinion
	case err != nil:
		return fmt.Errorf("%w: %w", errProbe, err)
	case back:
		return errRolledBack
	}
	s.stats.contact(nil)
	if s.stats.get().Bookmarks > d.bookmarks {
		return errSilent // this request has had bookmarks, and now has none
	}
	return nil
}

// sameServer makes sure, after a lost connection and before resuming from a
// snapshot, that the server still has the history that is to be resumed.
func (s *Source) sameServer(ctx context.Context) error {
	s.mu.Lock()
	suspect := s.suspect
	s.mu.Unlock()
	if suspect.IsZero() {
		return nil
	}
	back, err := s.behind(ctx, suspect, s.progress.resume())
	if err != nil {
		return err
	}
	if back {
		return errRolledBack
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect.Equal(suspect) {
		s.suspect = time.Time{}
	}
	return nil
}

// behind tells whether the server's version, at a time after notBefore, was older
// than one that was seen before.
func (s *Source) behind(ctx context.Context, notBefore time.Time, seen string) (bool, error) {
	now, err := s.cfg.Prober.version(ctx, notBefore)
	if err != nil {
		return false, err
	}
	if now != "" && !older(now, seen) && s.cfg.GVR.Resource != "events" {
		return false, nil
	}
	// The storage's version may not be asked, or does not fit this resource, which
	// may be stored elsewhere, as events often are. An answer that is too old
	// counts if it is given twice: a server in a group may be behind for a moment.
	for range 2 {
		now, err := s.ownVersion(ctx)
		if err != nil || !older(now, seen) {
			return false, err
		}
	}
	return true, nil
}

// ownVersion asks for the resource's version by a consistent list of one object.
func (s *Source) ownVersion(ctx context.Context) (string, error) {
	query := s.query()
	query.Set("limit", "1")
	list, err := s.cfg.Client.page(ctx, pageRequest{
		path: s.path, query: query, accept: acceptAnyList, timeout: probeTimeout,
		item: func([]byte) error { return nil },
	})
	return list.ResourceVersion, err
}
