package rawwatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// silence is how long a watch may bring nothing before somebody looks. An API
	// server sends a bookmark about once a minute, for most resources.
	silence = 3 * time.Minute

	// silenceCheck is how often the watchdog looks at the clock.
	silenceCheck = 15 * time.Second

	// pausePatience is how long a watch may be paused before that is worth a log
	// line. An API server promises a watch cache of 75 seconds.
	pausePatience = 30 * time.Second

	// askAfter is how long a source that has never had a bookmark may be quiet before
	// it asks for its resource's version, and askEvery how often it does, of a resource
	// of askPages pages at most. The answer counts once the stream has brought nothing
	// for askTrial after it.
	askAfter = 2 * time.Minute
	askEvery = time.Minute
	askPages = 10
	askTrial = 30 * time.Second
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

	// Of run.
	paused time.Time // the pause that was logged last
	asked  time.Time // for the resource's version
	answer *answer   // that does not count yet; nil: none
}

// answer is a version of the resource, and how far the source had come by then.
type answer struct {
	version  version
	position uint64
	lastLine int64
	at       time.Time
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
			d.mindPause(ctx)
			continue // the window is full, or the informer is busy: not the server's fault
		}
		d.keepFresh(ctx, now-time.Duration(d.lastLine.Load()))
		quiet := now - max(time.Duration(d.lastLine.Load()), probed)
		switch {
		case now > d.life && quiet > timeoutGrace:
			d.cancel(errOverdue)
			return
		case quiet < silence:
			continue
		}
		if err := d.look(ctx); err != nil {
			d.cancel(err)
			return
		}
		probed = time.Since(d.began)
	}
}

// mindPause logs a pause once that has become long.
func (d *watchdog) mindPause(ctx context.Context) {
	since := d.source.stats.get().PausedSince
	if since.IsZero() || since.Equal(d.paused) || time.Since(since) < pausePatience {
		return
	}
	d.paused = since
	klog.FromContext(ctx).Info("Informer's watch is paused because its subscribers do not keep up; the server may end it and lose its history",
		"resource", d.source.cfg.GVR.String(), "namespace", d.source.cfg.Namespace, "since", since)
}

// keepFresh moves the version to resume from of a source that gets no bookmarks and
// has been quiet for a time. A list at that version shows exactly the objects that the
// informer has, so that nothing is missing but what left no trace; and the watch
// brings nothing for some time after it. Errors mean that nothing is known. A server
// that is dead holds up the watchdog for a probe's time only.
func (d *watchdog) keepFresh(ctx context.Context, quiet time.Duration) {
	s, a := d.source, d.answer
	if a != nil && d.lastLine.Load() != a.lastLine {
		a, d.answer = nil, nil
	}
	if a != nil && time.Since(a.at) >= askTrial {
		s.progress.caughtUp(a.position, a.version)
		d.answer = nil
	}
	if d.answer != nil || quiet < askAfter || time.Since(d.asked) < askEvery || s.stats.get().Bookmarks > 0 {
		return
	}
	d.asked = time.Now()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	position, line := s.progress.position(), d.lastLine.Load()
	if v, err := s.unchangedAt(ctx); err == nil && v != "" {
		d.answer = &answer{parseVersion(v), position, line, time.Now()}
	}
}

// unchangedAt returns the version of a list that shows exactly the objects that the
// informer has, "" if the list shows others or is too long.
func (s *Source) unchangedAt(ctx context.Context) (string, error) {
	if s.cfg.Known == nil || s.cfg.Count == nil {
		return "", nil
	}
	version, token, listed, same := "", "", 0, true
	for range askPages {
		onPage := 0
		page, err := s.Heads(ctx, token, func() { onPage = 0 }, func(m *rawjson.Meta) error {
			onPage++
			known, ok := s.cfg.Known(string(m.Namespace), string(m.Name)).(metav1.Object)
			same = same && ok && known.GetResourceVersion() == string(m.ResourceVersion) && string(known.GetUID()) == string(m.UID)
			return nil
		})
		if err != nil {
			return "", err
		}
		if version == "" {
			version = page.ResourceVersion
		}
		listed += onPage
		switch {
		case !same || page.ResourceVersion != version:
			return "", nil
		case page.Continue == "" && listed == s.cfg.Count():
			return version, nil
		case page.Continue == "":
			return "", nil
		}
		token = page.Continue
	}
	return "", nil
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
	s.stats.heard(nil)
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
