package feed

import (
	"context"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Snapshot delivers the recorded state of every object as Sync events to one
// sink; of one watch only, unless watch is empty. It returns the number of
// objects once their events are committed. Changes that happen meanwhile are
// delivered in order with it, object by object. progress, if not nil, is called
// with the number of objects so far.
func (m *Manager) Snapshot(ctx context.Context, sink, watch string, progress func(objects int)) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, &UnknownError{"sink", sink}
	}
	if watch != "" && st.Watch(watch) == nil {
		return 0, &UnknownError{"watch", watch}
	}
	item := snapshotItem{only: func(name string) bool { return name == sink }}
	if progress != nil {
		count := 0
		item.seen = func() { count++; progress(count) }
	}
	n, err := m.snapshotWatches(ctx, item, func(w *plan.Watch) bool { return watch == "" || w.Name == watch })
	m.flush()
	return n, err
}

// snapshotWatches sends what the chosen watches see, in the manner of item.
func (m *Manager) snapshotWatches(ctx context.Context, item snapshotItem, chosen func(*plan.Watch) bool) (int, error) {
	total := 0
	for _, s := range m.sourceList() {
		for _, h := range *s.hits.Load() {
			if !chosen(h.watch) {
				continue
			}
			item.hit = h
			n, err := m.snapshot(ctx, s, item)
			total += n
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// snapshotGained gives watches that came to a running source the objects that
// are already recorded, and those whose selection was widened the ones that it
// covers only now. Sources that start from nothing bring theirs themselves.
func (m *Manager) snapshotGained(ctx context.Context, gained []gain) {
	if len(gained) == 0 {
		return
	}
	for _, g := range gained {
		if !g.hit.watch.Snapshot {
			continue
		}
		n, err := m.snapshot(ctx, g.src, snapshotItem{hit: g.hit, was: g.was, gained: true})
		switch {
		case err != nil:
			g.src.log.Error("a watch was not given all that it covers now; ask for a snapshot", "watch", g.hit.watch.Name, "error", err)
		case g.was != nil && n > 0:
			g.src.log.Info("a watch covers more than before: those objects are delivered as sync events", "watch", g.hit.watch.Name, "objects", n)
		}
	}
	m.between(func() {
		for _, g := range gained {
			g.src.told = nil
		}
	})
}

// snapshotFresh gives sinks that are new to the store and are to start from a
// snapshot theirs.
func (m *Manager) snapshotFresh(ctx context.Context, st *plan.State, fresh []string) {
	for _, name := range fresh {
		if st.Sink(name).From != plan.FromSnapshot {
			continue
		}
		item := snapshotItem{only: func(sink string) bool { return sink == name }}
		if _, err := m.snapshotWatches(ctx, item, func(*plan.Watch) bool { return true }); err != nil {
			m.log.Error("a new sink was not given all of its snapshot; ask for one", "sink", name, "error", err)
		}
	}
}

// snapshotItem asks for the recorded state of one object as a Sync event, for one
// watch, to some sinks.
type snapshotItem struct {
	hit  hit
	was  *hit                   // leave out what the watch covered by these rules; nil: nothing
	only func(sink string) bool // nil: every sink the watch leads to
	seen func()                 // called for each object sent; nil: nobody wants to know

	gained bool // leave out what the watch was told of since it came to the source
}

// snapshotObject delivers the object's recorded state. It is read again here: the
// object may have changed or gone since the snapshot was asked for, and then the
// event must not be older than what was already delivered.
func (g *group) snapshotObject(c *change) error {
	now, err := g.recorded(c.src, c.obj)
	if err != nil || now == nil {
		return err
	}
	_, told := c.src.told[stateKey(now.GetNamespace(), now.GetName())]
	if told && c.snap.gained || g.m.knew(c.snap, now) {
		return nil
	}
	s, ok := c.snap.hit.selection(event.Sync, nil, now, g.m.namespaces.labels)
	if !ok {
		return nil
	}
	hits := []route.Hit{{Watch: c.snap.hit.watch.Name, Selection: s}}
	return g.deliver(c.src, c.at, occurrence{t: event.Sync, after: now}, hits, c.snap.only)
}

// knew reports whether a watch has been given the object before its definition
// changed, so that the item leaves it out.
func (m *Manager) knew(item *snapshotItem, o *compact.Object) bool {
	return item.was != nil && item.was.covers(o, m.namespaces.labels)
}

// snapshot sends the recorded state of every object that the watch sees through
// the source to the committer, as Sync events. It returns the number of objects
// sent, early when ctx is done.
func (m *Manager) snapshot(ctx context.Context, s *source, item snapshotItem) (int, error) {
	n := 0
	err := m.scan(s, func(o *compact.Object) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if item.was != nil && (m.knew(&item, o) || !item.hit.covers(o, m.namespaces.labels)) {
			return nil
		}
		n++
		m.send(change{src: s, kind: snapshotObject, obj: o, snap: &item})
		if item.seen != nil {
			item.seen()
		}
		return nil
	})
	return n, err
}
