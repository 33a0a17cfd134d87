package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// apply carries out a new state: build, start, swap, then stop. A sink's queue
// exists before a route leads to it, and a route no longer leads to a sink before
// its worker stops. Only the owner goroutine calls it.
func (m *Manager) apply(ctx context.Context, next *plan.State) error {
	if err := m.loadNamespaces(); err != nil {
		return err
	}
	if err := m.expireUnwatched(next); err != nil {
		return err
	}
	d, err := m.desire(next)
	if err == nil && (next.Hash == "" || next.Hash != m.applied) {
		err = errors.Join(d.overlaps...) // of an accepted state, what the cluster serves has changed
	}
	if err != nil {
		return err
	}
	diff := plan.Diff(m.currentState(), next)
	rev, err := m.revise(next, d)
	if err != nil {
		return err
	}
	if err := m.prepareSinks(next, diff); err != nil {
		return err
	}
	m.stopScrub() // it may have to do more now, or by other edits
	if err := m.acceptEdits(&rev); err != nil {
		return err
	}
	if err := m.tellAbsences(next, d); err != nil {
		return err
	}
	// From here on nothing fails for reasons of the new state, only with the store.
	m.store.SetLimits(outbox.Limits{
		MaxBytes: next.Store.MaxBytes, MinFree: next.Store.MinFree,
		RetentionMaxAge: next.Store.RetentionMaxAge, RetentionMaxBytes: next.Store.RetentionMaxBytes,
		DeadLetterMaxAge: next.Store.DeadLetterMaxAge, DeadLetterMaxBytes: next.Store.DeadLetterMaxBytes,
	})
	unfilled := m.startSinks(ctx, next, diff)
	m.undiscovered = d.undiscovered()
	if err := m.follow(ctx, d, &adoption{state: next, edits: &rev, unfilled: unfilled}); err != nil {
		return err
	}
	if err := m.startScrub(ctx); err != nil {
		return err
	}
	if err := m.followNamespaces(ctx, next); err != nil {
		return err
	}
	m.removeSinks(diff.Sinks.Remove)
	for _, watch := range diff.Watches.Remove {
		m.metrics.forget(watch)
	}
	if err := m.resumeRelabels(); err != nil {
		return err
	}
	if !m.undiscovered {
		if err := m.markUnwatched(next); err != nil {
			return err
		}
	}
	return m.noteAccepted(next)
}

// appliedMeta keeps the hash of the state that was applied last.
const appliedMeta = "applied"

func (m *Manager) noteAccepted(st *plan.State) error {
	if st.Hash == m.applied {
		return nil
	}
	if err := putMeta(m.store, appliedMeta, []byte(st.Hash)); err != nil {
		return fmt.Errorf("%w: note the accepted state: %w", ErrStore, err)
	}
	m.applied = st.Hash
	return nil
}

// adoption is what of a new state is put in place together with the sources' watches.
type adoption struct {
	state    *plan.State
	edits    *revision // nil: they are in place already
	unfilled []string  // sinks that first get what is in the log
}

// adoptRouter puts a router in place, whose routes' first failures are logged.
func (m *Manager) adoptRouter(r *route.Router) {
	if m.router.Load() == r {
		return // it is in use already
	}
	r.OnError(func(name string, err error) {
		m.log.Warn("a route's expression failed on an object; later failures of the route are counted, not logged", "route", name, "error", err)
	})
	m.router.Store(r)
}

// reconcile follows a change of what the cluster serves, under the same state. When
// the resources become known for the first time the start is completed: what cannot
// work then ends Run, as it would have ended the start.
func (m *Manager) reconcile(ctx context.Context) {
	st := m.currentState()
	if st == nil {
		return
	}
	d, err := m.desire(st)
	started := m.undiscovered && !d.undiscovered()
	if started && err != nil {
		m.fail(fmt.Errorf("start: %w", err))
		return
	}
	if err != nil {
		m.log.Warn("a watch insists on a resource that is not served any more; the others go on", "error", err)
	}
	if err := m.reviseServed(st, d); err != nil {
		m.fail(err)
		return
	}
	var a *adoption
	if started {
		a = &adoption{state: st}
		m.undiscovered = false
	}
	if err := m.follow(ctx, d, a); errors.Is(err, ErrStore) {
		m.fail(err)
		return
	} else if err != nil {
		m.log.Error("could not follow a change of the served resources", "error", err)
	}
	if err := m.startScrub(ctx); err != nil {
		m.fail(err)
	}
	if err := m.resumeRelabels(); errors.Is(err, ErrStore) {
		m.fail(err)
	}
}

// gain is a watch that a source now feeds too, or feeds by other rules.
type gain struct {
	src *source
	hit hit
	was coverage // what it covered before; nil: nothing
}

// coverage is what a watch covers, or covered.
type coverage interface {
	covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool
}

// follow makes the running sources those of d, and adopts a new state if there is one.
//
// No change is judged by a part of the old rules and a part of the new ones: sources
// that go have all that they handed over committed under the old ones, then routes,
// sinks and the watches of the sources that stay change in one step, and only then new
// sources start. One that takes over another's objects resumes from what that one had
// committed.
func (m *Manager) follow(ctx context.Context, d desired, a *adoption) error {
	start, stop, stay := m.compare(d)
	if err := m.holdRelabels(); err != nil {
		return err
	}
	m.noteMissing(d.missing)
	for _, s := range d.sources {
		for _, h := range *s.hits.Load() {
			m.metrics.feeds(h.watch.Name, s)
		}
	}
	for _, s := range stop {
		m.stopSource(s)
	}
	if len(stop) > 0 {
		m.flush()
	}
	if err := m.handOverCheckpoints(start, d); err != nil {
		return err
	}
	if err := m.noteResolved(d); err != nil {
		return err
	}
	if err := m.endFarewells(start); err != nil {
		return err
	}
	for _, s := range start {
		if err := m.prepareSource(s); err != nil {
			return err
		}
	}
	if err := m.adopt(ctx, a, start, stay); err != nil {
		return err
	}
	var errs []error
	for _, s := range start {
		if err := m.startSource(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("watch %s: %w", s.id, err))
		}
	}
	return errors.Join(errs...)
}

// compare sorts the sources into those that start, stop, and stay with new watches.
func (m *Manager) compare(d desired) (start, stop []*source, stay map[*source]*[]hit) {
	stay = map[*source]*[]hit{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, s := range m.sources {
		if want, ok := d.sources[k]; ok {
			stay[s] = want.hits.Load()
		} else {
			stop = append(stop, s)
		}
	}
	for k, s := range d.sources {
		if _, ok := m.sources[k]; !ok {
			start = append(start, s)
		}
	}
	slices.SortFunc(start, func(a, b *source) int { return strings.Compare(a.id, b.id) })
	return start, stop, stay
}

// adopt puts the new watches of the sources that stay in place and, if there is one,
// the new state, between two commits. What was recorded before is for snapshots to
// deliver, what is recorded after reaches the watches and sinks by itself.
func (m *Manager) adopt(ctx context.Context, a *adoption, start []*source, stay map[*source]*[]hit) error {
	var snapshots []*snapshot
	sources := slices.Clone(start)
	st := m.currentState()
	var due []string
	var err error
	if a != nil {
		if st = a.state; !m.undiscovered { // or they come with the sources
			if due, err = m.dueSnapshots(st); err != nil {
				return err
			}
		}
	}
	resumed, err := m.unfinished(st, start)
	if err != nil {
		return err
	}
	resumed = slices.DeleteFunc(resumed, func(j *snapshot) bool { return slices.Contains(due, j.sink) })
	gained, err := m.startGains(start)
	if err != nil {
		return err
	}
	gained = slices.DeleteFunc(gained, func(x gain) bool {
		return slices.ContainsFunc(resumed, func(j *snapshot) bool {
			return j.src == x.src && j.sink == "" && j.hit.watch.Name == x.hit.watch.Name
		})
	})
	for s, hits := range stay {
		sources = append(sources, s)
		gained = append(gained, s.gains(*hits)...)
	}
	for _, x := range gained {
		if x.hit.watch.Snapshot {
			j := newSnapshot(x.src, x.hit)
			j.was = x.was
			snapshots = append(snapshots, j)
		}
	}
	snapshots = append(snapshots, firstSnapshots(due, sources, stay)...)
	snapshots = append(snapshots, resumed...)
	if err := m.durable(snapshots, due); err != nil {
		return err
	}
	var rules given
	put := func(g *group) error {
		if a != nil {
			if err := m.noteRoutes(a.state); err != nil {
				return err
			}
		}
		for s, hits := range stay {
			s.hits.Store(hits)
		}
		if a != nil {
			if a.edits != nil {
				m.adoptEdits(a.edits)
			}
			m.adoptRouter(a.state.Router)
			m.keepUnrouted.Store(len(a.state.Sinks) == 0)
			m.setState(a.state)
			for _, j := range m.farewells { // they begin again, by the watches of the new state
				close(j.src.stopped)
			}
		}
		for _, j := range snapshots {
			g.begin(j)
		}
		rules = givenBy(sources)
		return nil
	}
	if a == nil {
		err = m.between(func(g *group) { _ = put(g) }) // only a new state can fail
	} else if err = m.fillSinks(ctx, a.state, a.unfilled, put); err != nil && ctx.Err() == nil && !errors.Is(err, ErrEnded) {
		m.fail(err)
	}
	if err != nil {
		return err
	}
	if a != nil {
		clear(m.farewells)
	}
	return m.noteSelections(rules)
}

// gains are those of next that are not among the watches of the source, or are by
// another definition.
func (s *source) gains(next []hit) []gain {
	var gained []gain
	before := *s.hits.Load()
	for _, h := range next {
		switch i := slices.IndexFunc(before, h.sameWatch); {
		case i < 0:
			gained = append(gained, gain{src: s, hit: h})
		case before[i].watch.Fingerprint != h.watch.Fingerprint:
			gained = append(gained, gain{src: s, hit: h, was: &before[i]})
		}
	}
	return gained
}

// prepareSource decides what the source's informer begins with.
func (m *Manager) prepareSource(s *source) error {
	s.ready, s.stopped = make(chan struct{}), make(chan struct{})
	cp, ok, err := m.loadCheckpoint(s.id)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		s.log.Error("the position of a watch cannot be read: it starts with a list", "error", err)
		s.forgot = true
	case err != nil:
		return err
	}
	if ok {
		if cp.Ahead != nil && cp.Listing == nil && cp.ResourceVersion != "" {
			// Its list was taken in: up to the version, everything is recorded.
			cp.Ahead[""] = later(cp.Ahead[""], cp.ResourceVersion)
		}
		s.resume, s.saved, s.synced, s.epoch, s.ahead, s.recordedForm, s.forgot = cp, cp, cp.Synced, cp.Epoch, cp.Ahead, cp.Form, cp.Forgot
		switch {
		case cp.resumable() && !s.rerecord():
			s.start = warm
		case cp.listVersion() != "":
			s.start = relist
			s.rewind = cp.Listing != nil && cp.Listing.Rewound
			if cp.Gap != nil {
				gap := *cp.Gap
				gap.Position = 1 // the first list's
				s.open = &gap
			}
		}
	}
	if s.start == warm {
		return nil // the informer finds deletions itself
	}
	s.floor = s.resume.recordedUpTo()
	empty, err := m.recordsNothing(s)
	if !empty {
		s.listed = map[uint64]struct{}{}
	}
	return err
}

// startSource subscribes the source to its informer.
func (m *Manager) startSource(ctx context.Context, s *source) error {
	m.mu.Lock()
	m.sources[s.key] = s
	m.mu.Unlock()
	defer close(s.ready)
	sub, err := m.factory.Subscribe(context.WithoutCancel(ctx), s.key, handler{src: s, m: m})
	if err != nil {
		m.mu.Lock()
		delete(m.sources, s.key)
		m.mu.Unlock()
		return err
	}
	s.sub.Store(sub)
	s.waiting.Go(func() {
		select {
		case <-sub.Synced():
			m.send(s.stopped, change{src: s, kind: sourceSynced})
		case <-s.stopped:
		}
	})
	s.log.Info("watch started", "resumed", s.start != cold)
	if s.start == relist && s.resume.Form != "" && s.resume.Form != s.form {
		s.log.Info("the edits or the API version changed: recording the objects again, without events", "resourceVersion", s.resume.listVersion())
	}
	return nil
}

// stopSource ends the source's informer and returns after its last notification.
func (m *Manager) stopSource(s *source) {
	close(s.stopped)
	s.waiting.Wait()
	s.sub.Load().Close()
	m.mu.Lock()
	delete(m.sources, s.key)
	m.mu.Unlock()
	s.log.Info("watch stopped")
}

func (m *Manager) closeSources() {
	for _, s := range m.sourceList() {
		m.stopSource(s)
	}
}

// handOverCheckpoints keeps the checkpoints of a partition true: at any time they
// belong to sources that do not overlap, or an old one might be resumed from
// although the ledger has moved on.
func (m *Manager) handOverCheckpoints(start []*source, d desired) error {
	active := make(map[string]bool, len(d.sources))
	for _, s := range d.sources {
		active[s.id] = true
	}
	b := m.store.NewBatch()
	defer b.Discard()
	for _, s := range start {
		wide := s.partition + "#"
		if s.id != wide {
			// Narrower than before: what the whole had complete, the part has too.
			if err := m.inherit(b, s, wide); err != nil {
				return err
			}
			if !active[wide] {
				b.DeleteMeta(checkpointMeta(wide))
			}
			continue
		}
		if err := m.gather(b, s); err != nil {
			return err
		}
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: hand over checkpoints: %w", ErrStore, err)
	}
	return nil
}

// gather gives a source that is wider than others were before what they had recorded:
// a list of the oldest version that one of them was at, the watch from there, and how
// far each of them was ahead of it. Where one had recorded a part of a list again, that
// is not known, and the list is of the newest version: if it shows a difference, there is a
// gap.
func (m *Manager) gather(b *outbox.Batch, s *source) error {
	whole := checkpoint{Sweeping: true, Ahead: map[string]string{}}
	newest, partial := "", false
	err := m.store.ScanMeta(checkpointMeta(s.id), func(key string, _ []byte) error {
		namespace := strings.TrimPrefix(key, checkpointMeta(s.id))
		if namespace == "" {
			return nil
		}
		b.DeleteMeta(key)
		part, ok, err := m.loadCheckpoint(strings.TrimPrefix(key, checkpointMeta("")))
		if !ok {
			whole.Forgot = whole.Forgot || err != nil
			return ignoreUnreadable(err)
		}
		at := part.ResourceVersion
		if at == "" {
			at = part.listVersion() // of its first list
		}
		partial = partial || part.Listing != nil && part.Listing.ResourceVersion != at || newest != "" && part.Epoch != whole.Epoch
		newest = later(newest, part.recordedUpTo())
		if whole.ResourceVersion == "" || newer(whole.ResourceVersion, at) {
			whole.ResourceVersion, whole.Time = at, part.Time
		}
		known := later(part.Ahead[namespace], part.Ahead[""])
		taken := known != ""
		if part.Listing == nil && (taken || part.Synced) {
			known = later(known, at)
		}
		if known != "" {
			whole.Ahead[namespace] = known
		}
		whole.Epoch = max(whole.Epoch, part.Epoch)
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: scan checkpoints: %w", ErrStore, err)
	case newest == "" && !whole.Forgot:
		return nil
	case newest == "":
		whole = checkpoint{Forgot: true}
	case partial:
		whole.Gap = &dynamicfactory.Gap{ // of the namespaces that had not come as far
			Cause: dynamicfactory.CauseExpired, From: whole.ResourceVersion, To: newest, FromTime: whole.Time, ToTime: m.cfg.Now(),
		}
		whole.ResourceVersion, whole.Ahead, whole.Listing = "", nil, &listing{ResourceVersion: newest}
	default:
		whole.Listing, whole.Recorded = &listing{ResourceVersion: whole.ResourceVersion}, newest
	}
	b.PutMeta(checkpointMeta(s.id), encodeCheckpoint(whole))
	return nil
}

func ignoreUnreadable(err error) error {
	if errors.Is(err, outbox.ErrUnreadable) {
		return nil
	}
	return err
}

func (m *Manager) inherit(b *outbox.Batch, s *source, wide string) error {
	// A damaged checkpoint is for prepareSource to report.
	if _, ok, err := m.loadCheckpoint(s.id); err != nil || ok {
		return ignoreUnreadable(err)
	}
	cp, ok, err := m.loadCheckpoint(wide)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		cp.Forgot = true
	case err != nil || !ok:
		return err
	}
	b.PutMeta(checkpointMeta(s.id), encodeCheckpoint(cp))
	return nil
}

// noteMissing keeps why patterns have no informer, and says so once for each.
func (m *Manager) noteMissing(now map[string]missing) {
	m.mu.Lock()
	before := m.missing
	m.missing = now
	m.mu.Unlock()
	for k, x := range now {
		if errors.Is(x.err, dynamicfactory.ErrNotReady) {
			continue // the resolver logs why
		}
		if known, ok := before[k]; !ok || known.err.Error() != x.err.Error() {
			m.log.Warn("resource is not available: waiting for it, the other watches run", "watch", x.watch, "resource", x.pattern, "reason", x.reason())
		}
	}
	for k, x := range before {
		if _, ok := now[k]; !ok && !errors.Is(x.err, dynamicfactory.ErrNotReady) {
			m.log.Info("resource is available now", "watch", x.watch, "resource", x.pattern)
		}
	}
}

func (m *Manager) currentState() *plan.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

func (m *Manager) setState(s *plan.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
}

var _ Resolver = (*dynamicfactory.Resolver)(nil)
