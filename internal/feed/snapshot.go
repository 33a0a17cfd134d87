package feed

import (
	"context"
	"fmt"

	"github.com/watcherd/watcherd/internal/plan"
)

// Snapshot delivers the recorded state of every object as Sync events to one
// sink; of one watch only, unless watch is empty. It returns the number of
// objects once their events are committed. Changes that happen meanwhile are
// delivered in order with it, object by object.
func (m *Manager) Snapshot(ctx context.Context, sink, watch string) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, fmt.Errorf("no sink named %q is configured", sink)
	}
	if watch != "" && st.Watch(watch) == nil {
		return 0, fmt.Errorf("no watch named %q is configured", watch)
	}
	only := func(name string) bool { return name == sink }
	n, err := m.snapshotWatches(ctx, only, func(w *plan.Watch) bool { return watch == "" || w.Name == watch })
	m.flush()
	return n, err
}

// snapshotWatches sends what the chosen watches see.
func (m *Manager) snapshotWatches(ctx context.Context, only func(string) bool, chosen func(*plan.Watch) bool) (int, error) {
	total := 0
	for _, s := range m.sourceList() {
		for _, h := range *s.hits.Load() {
			if !chosen(h.watch) {
				continue
			}
			n, err := m.snapshot(ctx, s, snapshotItem{hit: h, only: only})
			total += n
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// snapshotGained gives watches that came to a running source the objects that
// are already recorded. Sources that start from nothing bring theirs themselves.
func (m *Manager) snapshotGained(ctx context.Context, gained []gain) {
	for _, g := range gained {
		if !g.hit.watch.Snapshot {
			continue
		}
		if _, err := m.snapshot(ctx, g.src, snapshotItem{hit: g.hit}); err != nil {
			m.log.Error("snapshot for a new watch did not finish", "watch", g.hit.watch.Name, "source", g.src.id, "error", err)
		}
	}
}

// snapshotSinks gives new sinks that start from a snapshot what is recorded.
func (m *Manager) snapshotSinks(ctx context.Context, st *plan.State, added []string) {
	for _, name := range added {
		if st.Sink(name).From != plan.FromSnapshot {
			continue
		}
		only := func(sink string) bool { return sink == name }
		if _, err := m.snapshotWatches(ctx, only, func(*plan.Watch) bool { return true }); err != nil {
			m.log.Error("snapshot for a new sink did not finish", "sink", name, "error", err)
		}
	}
}
