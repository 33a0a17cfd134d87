package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// apply carries out a new state: build, start, swap, then stop. A sink's queue
// exists before a route leads to it, and a route no longer leads to a sink before
// its worker stops. Only the owner goroutine calls it.
func (m *Manager) apply(ctx context.Context, next *plan.State) error {
	if err := m.loadNamespaces(); err != nil {
		return err
	}
	d, err := m.desire(next)
	if err != nil {
		return err
	}
	old := m.currentState()
	diff := plan.Diff(old, next)
	rev, err := m.revise(next, d)
	if err != nil {
		return err
	}
	fresh, err := m.prepareSinks(next, diff)
	if err != nil {
		return err
	}
	m.stopScrub() // it may have to do more now, or by other edits
	if err := m.acceptEdits(&rev); err != nil {
		return err
	}
	if err := m.tellAbsences(next, d); err != nil {
		return err
	}
	// From here on nothing fails for reasons of the new state.
	if err := m.adoptRoutes(ctx, next, &rev, m.startSinks(ctx, next, diff)); err != nil {
		return err
	}
	m.setState(next)
	m.store.SetLimits(outbox.Limits{
		MaxBytes: next.Store.MaxBytes, MinFree: next.Store.MinFree,
		RetentionMaxAge: next.Store.RetentionMaxAge, RetentionMaxBytes: next.Store.RetentionMaxBytes,
		DeadLetterMaxAge: next.Store.DeadLetterMaxAge, DeadLetterMaxBytes: next.Store.DeadLetterMaxBytes,
	})
	gained, err := m.follow(ctx, d)
	if err != nil {
		return err
	}
	if err := m.startScrub(ctx); err != nil {
		return err
	}
	if err := m.followNamespaces(ctx, next); err != nil {
		return err
	}
	m.flush() // nothing is on its way to a sink that goes
	m.removeSinks(diff.Sinks.Remove)
	for _, watch := range diff.Watches.Remove {
		m.metrics.forget(watch)
	}
	if old != nil {
		m.snapshotGained(ctx, gained)
	}
	m.snapshotFresh(ctx, next, fresh)
	return m.forgetUnwatched()
}

// adoptRoutes puts the routes and the edits of a state in place, once the sinks that
// start from the log's beginning have what is in it.
func (m *Manager) adoptRoutes(ctx context.Context, next *plan.State, rev *revision, unfilled []string) error {
	adopt := func() error {
		if err := m.noteRoutes(next); err != nil {
			return err
		}
		m.adoptEdits(rev)
		m.adoptRouter(next.Router)
		m.keepUnrouted.Store(len(next.Sinks) == 0)
		return nil
	}
	err := m.fillSinks(ctx, next, unfilled, adopt)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrEnded) {
		m.fail(err)
	}
	return err
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

// reconcile follows a change of what the cluster serves, under the same state.
func (m *Manager) reconcile(ctx context.Context) {
	st := m.currentState()
	if st == nil {
		return
	}
	d, err := m.desire(st)
	if err != nil {
		m.log.Warn("a watch insists on a resource that is not served any more; the others go on", "error", err)
	}
	if err := m.reviseServed(st, d); err != nil {
		m.fail(err)
		return
	}
	gained, err := m.follow(ctx, d)
	if err != nil {
		m.log.Error("could not follow a change of the served resources", "error", err)
	}
	if err := m.startScrub(ctx); err != nil {
		m.fail(err)
		return
	}
	m.snapshotGained(ctx, gained)
}

// gain is a watch that a running source now feeds too, or feeds by other rules.
type gain struct {
	src *source
	hit hit
	was *hit // by which rules it did before; nil: not at all
}

// follow makes the running sources those of d. What stays is not touched but for
// its list of watches; those in it that are new or different are returned.
func (m *Manager) follow(ctx context.Context, d desired) ([]gain, error) {
	var start, stop []*source
	stay := map[*source]*[]hit{}
	m.mu.Lock()
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
	m.mu.Unlock()
	gained := m.adoptHits(stay)
	m.noteMissing(d.missing)
	for _, s := range d.sources {
		for _, h := range *s.hits.Load() {
			m.metrics.feeds(h.watch.Name, s)
		}
	}

	// A source that takes over another's objects resumes from what that one had
	// committed, so it has to wait for it.
	for _, s := range stop {
		m.stopSource(s)
	}
	if len(stop) > 0 {
		m.flush()
	}
	slices.SortFunc(start, func(a, b *source) int { return strings.Compare(a.id, b.id) })
	if err := m.handOverCheckpoints(start, d); err != nil {
		return gained, err
	}
	var errs []error
	for _, s := range start {
		if err := m.startSource(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("watch %s: %w", s.id, err))
		}
	}
	return gained, errors.Join(errs...)
}

// adoptHits gives running sources their watches, and returns those that gained by
// it. They do so between two commits: what was recorded before is for
// [Manager.snapshotGained] to deliver, what is recorded after reaches them by itself.
func (m *Manager) adoptHits(stay map[*source]*[]hit) []gain {
	var gained []gain
	for s, hits := range stay {
		gained = append(gained, s.gains(*hits)...)
	}
	adopt := func() {
		for s, hits := range stay {
			s.hits.Store(hits)
		}
		for _, g := range gained {
			g.src.told = map[string]struct{}{}
		}
	}
	if len(gained) == 0 {
		adopt()
	} else {
		m.between(adopt)
	}
	return gained
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

// startSource subscribes the source to its informer.
func (m *Manager) startSource(ctx context.Context, s *source) error {
	cp, ok, err := m.loadCheckpoint(s.id)
	if err != nil {
		return err
	}
	if ok {
		s.resume, s.saved, s.synced, s.epoch = cp, cp, cp.Synced, cp.Epoch
		s.warm = cp.Synced && cp.ResourceVersion != ""
	}
	s.stopped = make(chan struct{})
	m.mu.Lock()
	m.sources[s.key] = s
	m.mu.Unlock()
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
			m.send(change{src: s, kind: sourceSynced})
		case <-s.stopped:
		}
	})
	s.log.Info("watch started", "resumed", s.warm)
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
		// Wider than before: a version of a part says nothing of the whole.
		err := m.store.ScanMeta(checkpointMeta(wide), func(key string, _ []byte) error {
			if key != checkpointMeta(wide) {
				b.DeleteMeta(key)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%w: scan checkpoints: %w", ErrStore, err)
		}
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: hand over checkpoints: %w", ErrStore, err)
	}
	return nil
}

func (m *Manager) inherit(b *outbox.Batch, s *source, wide string) error {
	if _, ok, err := m.loadCheckpoint(s.id); err != nil || ok {
		return err
	}
	cp, ok, err := m.loadCheckpoint(wide)
	if err != nil || !ok {
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
		if known, ok := before[k]; !ok || known.err.Error() != x.err.Error() {
			m.log.Warn("resource is not available: waiting for it, the other watches run", "watch", x.watch, "resource", x.pattern, "reason", x.reason())
		}
	}
	for k, x := range before {
		if _, ok := now[k]; !ok {
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
