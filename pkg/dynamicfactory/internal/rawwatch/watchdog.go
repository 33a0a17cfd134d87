package rawwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// silence is the time without events or bookmarks after which the watchdog probes the
	// server. For most resources an API server sends a bookmark about once a minute.
	silence = 3 * time.Minute

	// silenceCheck is the interval of the watchdog.
	silenceCheck = 15 * time.Second

	// confirmAfter is the wait before a version that went backwards is requested again.
	confirmAfter = 2 * time.Second

	// pausePatience is the time after which a paused watch is logged. An API server
	// guarantees a watch cache of 75 seconds.
	pausePatience = 30 * time.Second

	// historyTimeout is that of a watch that is sent for the history alone.
	historyTimeout = time.Second

	// A source that has never had a bookmark lists its resource's metadata after freshAfter
	// without events, once in freshEvery, if it has freshPages pages at most. The version of
	// the list counts after another freshTrial without events.
	freshAfter = 2 * time.Minute
	freshEvery = time.Minute
	freshPages = 10
	freshTrial = 30 * time.Second
)

// watchdog supervises one watch request. The stream shows neither a dead server behind a
// proxy nor one whose versions went backwards: it is as empty as the watch of a resource
// without changes.
type watchdog struct {
	source *Source
	cancel context.CancelCauseFunc
	life   time.Duration // the maximum of the request

	began     time.Time
	lastLine  atomic.Int64 // nanoseconds after began
	busySince atomic.Int64 // nanoseconds after began; 0: waiting for the stream
	bookmarks uint64       // of the source when the request began

	// Of run.
	paused time.Time // the pause that was logged last
	listed time.Time // when the metadata was listed
	trial  *trial    // of the version of that list; nil: none
}

// trial is a version of the resource, and the state of the source at that version.
type trial struct {
	version  progress.Version
	position uint64
	lastLine int64
	began    time.Time // of the list
	at       time.Time // when it was complete
}

// busy notes that a line is being forwarded, which may take any time.
func (d *watchdog) busy() { d.busySince.Store(max(1, int64(time.Since(d.began)))) }

// idle notes that the stream is being read again.
func (d *watchdog) idle() {
	d.lastLine.Store(int64(time.Since(d.began)))
	d.busySince.Store(0)
}

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
			d.logPause(ctx)
			continue // the window is full, or the informer is busy
		}
		if d.source.unproven() {
			d.cancel(errSetBack)
			return
		}
		d.keepFresh(ctx, now-time.Duration(d.lastLine.Load()))
		quiet := now - max(time.Duration(d.lastLine.Load()), probed)
		switch {
		case now > d.life && quiet > apiclient.TimeoutGrace:
			d.cancel(errOverdue)
			return
		case quiet < silence:
			continue
		}
		if err := d.probe(ctx); err != nil {
			d.cancel(err)
			return
		}
		probed = time.Since(d.began)
	}
}

func (d *watchdog) logPause(ctx context.Context) {
	s, _ := d.source.stats.get()
	since := s.PausedSince
	if since.IsZero() || since.Equal(d.paused) || time.Since(since) < pausePatience {
		return
	}
	d.paused = since
	d.source.log(ctx).Info("watch is paused: the subscriber does not acknowledge its events; the server may drop the history", "since", since)
}

// keepFresh finds a newer version to resume from if the complete one expires, for a quiet
// source without bookmarks. The list at that version has exactly the cached objects, and the
// watch stays quiet after it: only objects that were created and deleted in between can be
// missing. An error changes nothing. A dead server delays the watchdog by the time of a probe.
func (d *watchdog) keepFresh(ctx context.Context, quiet time.Duration) {
	s, a := d.source, d.trial
	if a != nil && d.lastLine.Load() != a.lastLine {
		a, d.trial = nil, nil
	}
	if a != nil && time.Since(a.at) >= freshTrial {
		s.progress.Quiet(a.position, a.version, a.began)
		s.stats.unchanged(a.began)
		d.trial = nil
	}
	if d.trial != nil || quiet < freshAfter || time.Since(d.listed) < freshEvery || s.stats.bookmarks() > 0 {
		return
	}
	d.listed = time.Now()
	ctx, cancel := context.WithTimeout(ctx, apiclient.ProbeTimeout)
	defer cancel()
	position, line := s.progress.Position(), d.lastLine.Load()
	if v, err := s.unchangedAt(ctx); err == nil && v != "" {
		d.trial = &trial{progress.ParseVersion(v), position, line, d.listed, time.Now()}
	}
}

// unchangedAt returns the version of a list with exactly the cached objects, "" if the
// list differs or is too long.
func (s *Source) unchangedAt(ctx context.Context) (string, error) {
	if s.cfg.Known == nil || s.cfg.Count == nil {
		return "", nil
	}
	version, token, listed, same := "", "", 0, true
	for range freshPages {
		onPage := 0
		page, err := s.ListMetadata(ctx, token, func() { onPage = 0 }, func(m *rawjson.Meta) error {
			onPage++
			known, ok := s.cfg.Known(string(m.Namespace), string(m.Name)).(metav1.Object)
			same = same && ok && known.GetResourceVersion() == string(m.ResourceVersion) && string(known.GetUID()) == string(m.UID)
			return nil
		})
		if err != nil {
			return "", err
		}
		version = cmp.Or(version, page.ResourceVersion)
		listed += onPage
		switch {
		case !same || page.ResourceVersion != version:
			return "", nil
		case page.Continue == "" && listed == s.cfg.Count():
			if listed == 0 && s.cfg.Prober.Guarded() { // a foreign cluster may have as few; known objects are of this one
				_, err = s.cfg.Prober.Version(ctx, time.Now())
			}
			return version, err
		case page.Continue == "":
			return "", nil
		}
		token = page.Continue
	}
	return "", nil
}

// probe checks the server. nil: the watch is quiet because nothing changes.
func (d *watchdog) probe(ctx context.Context) error {
	s := d.source
	back, err := s.behind(ctx, time.Now().Add(-silenceCheck), s.progress.Seen())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil // without permission to list, silence is not judged
	case err != nil:
		return fmt.Errorf("%w: %w", errProbe, err)
	case back:
		return errRolledBack
	}
	s.stats.contact(nil) // whether the watch holds something back is unknown
	if s.stats.bookmarks() > d.bookmarks {
		return errSilent // this request has had bookmarks before: what it holds back may be lost
	}
	return nil
}

// sameServer checks, after a lost connection and before a warm start is resumed, that the
// server still has the history.
func (s *Source) sameServer(ctx context.Context) error {
	s.mu.Lock()
	suspect := s.suspect
	s.mu.Unlock()
	if suspect.IsZero() {
		return nil
	}
	back, err := s.behind(ctx, suspect, s.progress.Seen())
	if err != nil {
		s.suspectSince(time.Now()) // the probe of then proves nothing at the next request
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

// sameCluster returns an error if the server has become that of a foreign cluster before a watch was
// established, which may be on another connection than what came before. It asks at a time after that, and returns the
// version of then, "" if there is none. A server that does not answer is for the watch to find.
func (s *Source) sameCluster(ctx context.Context, established time.Time) (version string, err error) {
	if !s.cfg.Prober.Guarded() {
		return "", nil
	}
	version, err = s.cfg.Prober.Version(ctx, established)
	if errors.Is(err, apiclient.ErrForeign) {
		return "", err
	}
	return version, ctx.Err()
}

// compareStorage notes whether the resource has a storage of its own that has had later versions: seen was received before that of the others
// had version, "" if that is not known.
func (s *Source) compareStorage(ctx context.Context, seen, version string) {
	s.mu.Lock()
	apart := s.apart
	s.mu.Unlock()
	later := progress.Older(version, seen)
	if version == "" || later == apart {
		return
	}
	apart = later && s.isApart(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apart = apart
}

// behind reports whether the server's version, at a time after notBefore, was older than
// one that was seen before.
func (s *Source) behind(ctx context.Context, notBefore time.Time, seen string) (bool, error) {
	began := time.Now()
	now, err := s.cfg.Prober.Version(ctx, notBefore)
	older := progress.Older(now, seen)
	if older { // it may be of before that was seen
		now, err = s.cfg.Prober.Version(ctx, began)
		older = progress.Older(now, seen)
	}
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	doubted, unjudged := s.doubted, s.unjudged || s.othersBackLocked(seen)
	s.mu.Unlock()
	if now != "" && !older && s.cfg.GVR.Resource != "events" && !doubted && !unjudged {
		return false, nil
	}
	if unjudged && !older { // the cache may be behind what was forwarded
		if err := apiclient.Sleep(ctx, confirmAfter); err != nil {
			return false, err
		}
	}
	// The version of the storage is unknown, or does not apply to this resource, which may
	// be stored elsewhere, as events often are.
	back, own, err := s.ownBehind(ctx, seen, unjudged && !older, unjudged)
	apart := back && s.isApart(ctx)
	tell := back && !apart && (now != "" || s.isBuiltIn())
	if !older {
		now = "" // the server may have passed any version
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unjudged = err != nil && (older || unjudged)
	if back {
		s.back = &Gap{To: own, Apart: apart}
	}
	switch {
	case err == nil && !back:
		s.proven = began
	case tell && !slices.ContainsFunc(s.backsLocked(seen, s.suspect), func(version string) bool { return !progress.Older(now, version) }): // else they know
		s.cfg.Prober.SetBack(now)
	}
	return back, err
}

// isBuiltIn reports whether the resource is in the storage that the others have, if it is not events.
func (s *Source) isBuiltIn() bool { return !strings.Contains(s.cfg.GVR.Group, ".") }

// isShared reports whether a resource without a storage of its own certainly is in that of the others.
func (s *Source) isShared(ctx context.Context) bool {
	version, err := s.cfg.Prober.Version(ctx, time.Now())
	return err == nil && (version != "" || s.isBuiltIn())
}

// isApart reports whether the resource has a storage of its own: its version, asked for twice, is not between those that the storage of the
// others had before and after that. Where that may not be asked, the events count as stored elsewhere, as they often are.
func (s *Source) isApart(ctx context.Context) bool {
	for confirmed := false; ; confirmed = true {
		before, err := s.cfg.Prober.Version(ctx, time.Now())
		if err != nil || before == "" {
			return err == nil && s.cfg.GVR.Resource == "events"
		}
		own, err := s.ownVersion(ctx)
		if err != nil {
			return false
		}
		after, err := s.cfg.Prober.Version(ctx, time.Now())
		switch {
		case err != nil || !progress.Older(own, before) && !progress.Older(after, own):
			return false
		case confirmed:
			return true
		case apiclient.Sleep(ctx, confirmAfter) != nil: // one server of several may be behind for a moment
			return false
		}
	}
}

// othersBackLocked reports whether another source has found that the storage was set back behind what this one has seen, which may have
// been passed since.
func (s *Source) othersBackLocked(seen string) bool {
	return len(s.backsLocked(seen, time.Time{})) > 0
}

// backsLocked returns the versions to which others have found that, since a time. They mean nothing to a resource with a storage of its own.
func (s *Source) backsLocked(seen string, since time.Time) []string {
	if s.apart {
		return nil
	}
	if since.Before(s.proven) {
		since = s.proven
	}
	return slices.DeleteFunc(s.cfg.Prober.BackSince(since), func(version string) bool { return version != "" && !progress.Older(version, seen) })
}

// unproven reports whether the watch may be of the time before a rollback.
func (s *Source) unproven() bool {
	seen := s.progress.Seen()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loss != nil || s.othersBackLocked(seen)
}

// ownBehind is behind by the resource's own version, which it returns. An older one counts if it is confirmed:
// one server of several may be behind for a moment. If it is not, or others have found a rollback, a server that was set back may
// have passed the version meanwhile: its objects decide.
func (s *Source) ownBehind(ctx context.Context, seen string, confirmed, othersBack bool) (back bool, now string, err error) {
	for ; ; confirmed = true {
		now, err = s.ownVersion(ctx)
		switch older := progress.Older(now, seen); {
		case err != nil || !older && !confirmed && !othersBack:
			return false, now, err
		case older && confirmed:
			return true, now, nil
		case !older:
			back, err = s.replaced(ctx, seen)
			return back, now, err
		}
		if err := apiclient.Sleep(ctx, confirmAfter); err != nil {
			return false, now, err
		}
	}
}

// replaced reports whether the server has other objects than those that were received up to a
// version: one that is not cached in this state although it is not newer, one that is older than it was, or
// fewer, unless its history has them as deleted since then. Before the first list, recorded
// objects stand for the cached ones, and others may exist that are not recorded yet.
func (s *Source) replaced(ctx context.Context, seen string) (bool, error) {
	if s.cfg.Known == nil || s.cfg.Count == nil {
		return false, nil
	}
	version, token, listed, other, first := "", "", 0, false, s.known != nil
	for {
		onPage := 0
		page, err := s.ListMetadata(ctx, token, func() { onPage = 0 }, func(m *rawjson.Meta) error {
			version := string(m.ResourceVersion)
			known, ok := s.knownObject(string(m.Namespace), string(m.Name)).(metav1.Object)
			if ok {
				onPage++
			}
			if skipped, is := s.Skipped(string(m.Namespace), string(m.Name)); is && (skipped == "" || skipped == version) {
				return nil // its cached state is an earlier one, or none
			}
			if ok {
				other = other || progress.Older(version, known.GetResourceVersion())
			}
			other = other || !first && !progress.Older(seen, version) && !(ok && version == known.GetResourceVersion())
			return nil
		})
		version = cmp.Or(version, page.ResourceVersion)
		if listed += onPage; err != nil || other {
			return err == nil, err
		}
		if page.Continue == "" {
			fewer := s.cfg.Count() - listed
			back := !first && fewer > 0 && (page.ResourceVersion != version || s.deletedUpTo(ctx, version) != fewer)
			return back && ctx.Err() == nil, ctx.Err()
		}
		token = page.Continue
	}
}

// deletedUpTo returns the number of cached objects that were deleted between the complete version and another one, as far as the server still
// has that history.
func (s *Source) deletedUpTo(ctx context.Context, version string) (n int) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(apiclient.ProbeTimeout, func() { cancel(errProbe) }).Stop()
	body, err := s.getWatch(ctx, cancel, s.progress.Resume(), historyTimeout)
	if err != nil {
		return 0
	}
	defer body.Close()
	gone := map[[2]string]bool{} // those that were deleted; false: and made again
	for l := apiclient.NewLines(body); ; {
		var m rawjson.Meta
		typ, raw := "", []byte(nil)
		line, err := l.Next()
		if err == nil {
			typ, raw, err = rawjson.SplitWatchLine(line)
		}
		if err == nil {
			m, err = rawjson.Scan(raw)
		}
		if err != nil || watch.EventType(typ) == watch.Error || progress.Older(version, string(m.ResourceVersion)) {
			break
		}
		name, deleted := [2]string{string(m.Namespace), string(m.Name)}, watch.EventType(typ) == watch.Deleted
		_, was := gone[name]
		if known, ok := s.knownObject(name[0], name[1]).(metav1.Object); was || deleted && ok && string(known.GetUID()) == string(m.UID) {
			gone[name] = deleted
		}
	}
	for _, is := range gone {
		if is {
			n++
		}
	}
	return n
}

// ownVersion requests the resource's version by a consistent list of one object.
func (s *Source) ownVersion(ctx context.Context) (string, error) {
	query := s.query()
	query.Set("limit", "1")
	list, err := s.cfg.Client.Page(ctx, apiclient.PageRequest{
		Path: s.path, Query: query, Accept: apiclient.AcceptAnyList, Timeout: apiclient.ProbeTimeout,
		Item: func([]byte) error { return nil },
	})
	return list.ResourceVersion, err
}
