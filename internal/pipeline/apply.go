package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// apply carries out a new state, in two steps: prepare finds out whether it can run, and
// changes nothing that runs; carryOut then fails only with the store, or because the pipeline ends.
// Only the owner goroutine calls it.
func (m *Manager) apply(ctx context.Context, next *plan.State) error {
	p, err := m.prepare(next)
	if err != nil {
		return err
	}
	return m.ends(ctx, m.carryOut(ctx, p))
}

// ends has an error of a change that is half carried out end Run, and marks it as the end.
func (m *Manager) ends(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, commit.ErrEnded) {
		return err
	}
	if ctx.Err() == nil {
		m.fail(err)
	}
	return fmt.Errorf("%w: %w", commit.ErrEnded, err)
}

// prepared is a state that can run.
type prepared struct {
	state   *plan.State
	desired desired
	edits   revision
	diff    plan.Plan
}

// prepare does everything of a new state that can fail for its own reasons, or because of
// what the store remembers. It deletes recorded states that have expired, which it would do
// without the new state, too.
func (m *Manager) prepare(next *plan.State) (*prepared, error) {
	before := m.currentState()
	if before == nil {
		if err := m.committer.LoadNamespaces(); err != nil {
			return nil, err
		}
	}
	if err := m.expireUnwatched(cmp.Or(before, next)); err != nil { // it does not wait for the state that returns to it
		return nil, err
	}
	d, err := m.desire(next)
	if err == nil && (next.Hash == "" || next.Hash != m.applied) {
		err = errors.Join(d.overlaps...) // of an accepted state, what the cluster serves has changed
	}
	if err != nil {
		return nil, err
	}
	rev, err := m.revise(next, d)
	if err != nil {
		return nil, err
	}
	if err := m.readNotes(next); err != nil {
		return nil, err
	}
	return &prepared{next, d, rev, plan.Diff(before, next)}, nil
}

// readNotes reads what the store remembers and carryOut goes by, so that a damaged note
// is found before anything has changed.
func (m *Manager) readNotes(next *plan.State) error {
	_, due := m.dueSnapshots(next)
	_, routes := m.loadRoutes()
	return errors.Join(due, routes, m.committer.ReadNotes())
}

// carryOut puts a state in place: build, start, swap, then stop. A sink's queue exists
// before a route leads to it, and a route no longer leads to a sink before its worker
// stops.
func (m *Manager) carryOut(ctx context.Context, p *prepared) error {
	next, d, diff := p.state, p.desired, p.diff
	if err := m.makeQueues(next, diff); err != nil {
		return err
	}
	m.stopScrub() // it may have to do more now, or by other edits
	if err := m.acceptEdits(&p.edits); err != nil {
		return err
	}
	m.store.SetLimits(store.Limits{
		MaxBytes: next.Store.MaxBytes, MinFree: next.Store.MinFree,
		RetentionMaxAge: next.Store.RetentionMaxAge, RetentionMaxBytes: next.Store.RetentionMaxBytes,
		DeadLetterMaxAge: next.Store.DeadLetterMaxAge, DeadLetterMaxBytes: next.Store.DeadLetterMaxBytes,
	})
	unfilled := m.startSinks(ctx, next, diff)
	m.undiscovered = d.undiscovered()
	if err := m.follow(ctx, d, &adoption{state: next, edits: &p.edits, unfilled: unfilled}); err != nil {
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
		m.committer.ForgetWatch(watch)
	}
	if err := m.resumeRelabels(); err != nil {
		return err
	}
	if err := m.markUnwatched(next); err != nil {
		return err
	}
	return m.noteAccepted(next)
}

// appliedMeta keeps the hash of the state that was applied last.
const appliedMeta = "applied"

func (m *Manager) noteAccepted(st *plan.State) error {
	if st.Hash == m.applied {
		return nil
	}
	if err := ledger.PutMeta(m.store, appliedMeta, []byte(st.Hash)); err != nil {
		return ledger.StoreError(err, "note the accepted state")
	}
	m.applied = st.Hash
	return nil
}

// adoption is what of a new state is put in place together with the feeds' watches.
type adoption struct {
	state    *plan.State
	edits    *revision // nil: they are in place already
	unfilled []string  // sinks that first get what is in the log
}

const unseenField = "a field that a route names was on no change so far; the name may be wrong"

// prepareRouter makes the first failure of each route logged, and the counts of metrics
// continue.
func (m *Manager) prepareRouter(r *route.Router) {
	if st := m.currentState(); st != nil {
		if st.Router == r {
			return // it is in use already
		}
		r.Continue(st.Router)
	}
	r.OnError(func(name string, err error) {
		if errors.Is(err, route.ErrSeries) {
			m.log.Warn("the metric of a route has reached maxSeries; further series are counted as one", "route", name, "labels", route.Overflow)
			return
		}
		m.log.Warn("a route's expression failed on an object; later failures of the route are counted, not logged", "route", name, "error", err)
	})
	r.OnUnseen(func(u route.Unseen) {
		m.log.Warn(unseenField, "route", u.Route, "key", u.Key, "field", u.Field, "changes", u.Changes)
	})
}

// prepareFilters logs once for each watch that it was given none of many changes, and makes the counts of
// watches that stay as they are continue.
func (m *Manager) prepareFilters(watches []plan.Watch) {
	st := m.currentState()
	for i := range watches {
		w := &watches[i]
		if st != nil {
			for j := range st.Watches {
				if before := &st.Watches[j]; before.Name == w.Name && before.Fingerprint == w.Fingerprint {
					w.Filter.Continue(before.Filter)
				}
			}
		}
		w.Filter.OnNone(func(changes uint64) {
			m.log.Warn("a watch has selected none of the changes of its resources so far; a selector or a namespace may be wrong", "watch", w.Name, "changes", changes)
		})
	}
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
		m.log.Warn("required resource is no longer served; other watches continue", "error", err)
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
	err = m.follow(ctx, d, a)
	if err == nil {
		err = m.startScrub(ctx)
	}
	if err == nil {
		err = m.resumeRelabels()
	}
	_ = m.ends(ctx, err)
}

// follow makes the running feeds those of d, and adopts a new state if there is one.
//
// No change is judged by a part of the old rules and a part of the new ones: feeds
// that stop have all their changes committed under the old ones, then routes,
// sinks and the watches of the feeds that stay change in one step, and only then new
// feeds start. One that takes over another's objects resumes from what that one had
// committed.
func (m *Manager) follow(ctx context.Context, d desired, a *adoption) error {
	start, stop, stay := m.compare(d)
	m.setStarting(start)
	defer m.setStarting(nil)
	m.committer.HoldRelabels()
	for _, s := range d.feeds {
		m.metrics.watches(s)
		for _, h := range s.Watches() {
			m.committer.Feeds(h.Watch.Name, s)
		}
	}
	for _, s := range stop {
		m.stopInformer(s)
	}
	if len(stop) > 0 {
		m.committer.Flush()
	}
	if err := m.committer.HandOverCheckpoints(start); err != nil {
		return err
	}
	if err := m.noteResolved(d); err != nil {
		return err
	}
	if err := m.endFarewells(start); err != nil {
		return err
	}
	for _, s := range start {
		if err := m.committer.Prepare(s); err != nil {
			return err
		}
	}
	st := m.currentState()
	if a != nil {
		st = a.state
	}
	m.followCaches(ctx, st, d)
	if err := m.adopt(ctx, a, d, start, stay); err != nil {
		return err
	}
	for _, s := range start {
		if err := m.startInformer(ctx, s); err != nil {
			return fmt.Errorf("watch %s: %w", s.ID, err)
		}
	}
	m.useCaches(st)
	if len(start) > 0 {
		select {
		case m.started <- struct{}{}:
		default: // it is noted already
		}
	}
	return nil
}

// setStarting notes the feeds that the status has before they run, as not synced.
func (m *Manager) setStarting(feeds []*commit.Feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starting = feeds
}

// compare sorts the feeds into those that start, stop, and stay with new watches.
func (m *Manager) compare(d desired) (start []*commit.Feed, stop []*informer, stay map[*commit.Feed][]commit.WatchRef) {
	stay = map[*commit.Feed][]commit.WatchRef{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, s := range m.informers {
		if want, ok := d.feeds[k]; ok {
			stay[s.Feed] = want.Watches()
		} else {
			stop = append(stop, s)
		}
	}
	for k, s := range d.feeds {
		if _, ok := m.informers[k]; !ok {
			start = append(start, s)
		}
	}
	slices.SortFunc(start, func(a, b *commit.Feed) int { return strings.Compare(a.ID, b.ID) })
	return start, stop, stay
}

func (m *Manager) startInformer(ctx context.Context, f *commit.Feed) error {
	s := &informer{Feed: f}
	resumed, rerecords := f.Resumes()
	m.mu.Lock()
	m.informers[s.Key] = s
	m.mu.Unlock()
	sub, err := m.factory.SubscribeDurable(context.WithoutCancel(ctx), s.Key.Key, m.committer.Handler(f), dynamicfactory.DurableOptions{
		MetadataOnly: s.Key.MetadataOnly, Edit: f.Edit, Codec: s.Key.Codec(m.dicts), Window: window,
		WarmStart:  func(context.Context) (*dynamicfactory.WarmStart, error) { return m.committer.Begin(f) },
		OnGap:      func(g dynamicfactory.Gap) { m.committer.HistoryLost(f, m.sinceChecked(f, g)) },
		OnRollback: func(g dynamicfactory.Gap) { m.committer.RollbackFound(f, g) },
	})
	if err != nil {
		f.Subscribed(nil)
		m.mu.Lock()
		delete(m.informers, s.Key)
		m.mu.Unlock()
		return err
	}
	s.sub.Store(sub)
	f.Subscribed(sub)
	s.waiting.Go(func() {
		select {
		case <-sub.Synced():
			m.committer.Synced(f)
		case <-f.Stopped():
		}
	})
	s.Log.Info("watch started", "resumed", resumed)
	if rerecords != "" {
		s.Log.Info("the edits or the API version changed: recording the objects again, without events", "resourceVersion", rerecords)
	}
	return nil
}

// stopInformer ends the feed's informer and returns after its last notification.
func (m *Manager) stopInformer(s *informer) {
	s.Stop()
	s.waiting.Wait()
	s.sub.Load().Close()
	m.mu.Lock()
	delete(m.informers, s.Key)
	m.mu.Unlock()
	s.Log.Info("watch stopped")
}

// resumeRelabels continues the interrupted changes of namespaces' labels, once the
// resources are known.
func (m *Manager) resumeRelabels() error {
	if m.undiscovered {
		return nil
	}
	return m.committer.ResumeRelabels(m.currentState().Watches, func(w *plan.Watch, partition string) bool {
		gr, scope := ledger.SplitPartition(partition)
		return m.wants(w, gr, scope)
	})
}

func (m *Manager) closeInformers() {
	m.closeCaches()
	for _, s := range m.informerList() {
		m.stopInformer(s)
	}
}

// noteMissing keeps why patterns have no informer, and logs each reason once.
func (m *Manager) noteMissing(now map[string]query.Missing) {
	m.mu.Lock()
	before := m.missing
	m.missing = now
	m.mu.Unlock()
	for k, x := range now {
		if errors.Is(x.Err, dynamicfactory.ErrNotReady) {
			continue // the resolver logs why
		}
		if known, ok := before[k]; !ok || known.Err.Error() != x.Err.Error() {
			log := m.log.Warn
			if errors.Is(x.Err, errNamespacesUnknown) {
				log = m.log.Info // they are being listed, and what fails of that is logged
			}
			log("resource is not available: waiting for it, the other watches run", "watch", x.Watch, "resource", x.Pattern, "reason", x.Reason())
		}
	}
	for k, x := range before {
		if _, ok := now[k]; !ok && !errors.Is(x.Err, dynamicfactory.ErrNotReady) {
			m.log.Info("resource is available now", "watch", x.Watch, "resource", x.Pattern)
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

// adopt puts the new watches of the feeds that stay in place and, if there is one, the
// new state, between two commits. What was recorded before is for snapshots to deliver,
// what is recorded after reaches the watches and sinks by itself.
func (m *Manager) adopt(ctx context.Context, a *adoption, d desired, start []*commit.Feed, stay map[*commit.Feed][]commit.WatchRef) error {
	st := m.currentState()
	running := st != nil // else the store has been opened a moment ago
	var due []string
	var err error
	if a != nil {
		if st = a.state; !m.undiscovered { // or they come with the feeds
			if due, err = m.dueSnapshots(st); err != nil {
				return err
			}
		}
	}
	wants := func(w *plan.Watch, partition string) (resource, part bool) {
		gr, scope := ledger.SplitPartition(partition)
		return m.means(d.resolved, w, gr, func(string) bool { return true }), m.wantsAs(d.resolved, w, gr, scope)
	}
	change, err := m.committer.PrepareChange(st, wants, start, stay, due)
	if err != nil {
		return err
	}
	put := func(b commit.Barrier) error {
		m.noteMissing(d.missing) // what is not missing any more is given from here on
		if running && a != nil && len(start) > 0 {
			// Another process may have had these resources, and sinks that keep the newest state of an object have its sequences.
			if err := m.store.RaiseSequences(); err != nil {
				return ledger.StoreError(err, "continue the sequences from the clock")
			}
		}
		if a != nil {
			if err := m.noteRoutes(b, a.state); err != nil {
				return err
			}
			if a.edits != nil {
				m.adoptEdits(a.edits)
			}
			m.prepareRouter(a.state.Router)
			m.prepareFilters(a.state.Watches)
			b.Adopt(a.state.Router)
			m.setState(a.state)
			for _, j := range m.farewells { // they begin again, by the watches of the new state
				j.Stop()
			}
		}
		return b.Change(change)
	}
	if a == nil {
		var failed error
		err = m.committer.AtBarrier(func(b commit.Barrier) { failed = put(b) })
		err = errors.Join(err, failed)
	} else {
		err = m.fillSinks(ctx, a.state, d, a.unfilled, put)
	}
	if err != nil {
		return err
	}
	if a != nil {
		clear(m.farewells)
	}
	return nil
}
