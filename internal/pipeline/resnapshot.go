package pipeline

import (
	"context"
	"fmt"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
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
	return m.committer.Snapshot(ctx, m.running(), sink, watch, progress)
}

// oweSnapshot notes that a sink begins with a snapshot, if it does.
func (m *Manager) oweSnapshot(sink *plan.Sink) error {
	if sink.StartFrom != plan.StartSnapshot {
		return nil
	}
	if err := ledger.PutMeta(m.store, commit.DueMeta+sink.Name, []byte("{}")); err != nil {
		return fmt.Errorf("%w: note the snapshot of sink %s: %w", ledger.ErrStore, sink.Name, err)
	}
	return nil
}

// dueSnapshots are the sinks of a state whose first snapshot has not begun.
func (m *Manager) dueSnapshots(st *plan.State) (due []string, err error) {
	for i := range st.Sinks {
		s := &st.Sinks[i]
		if s.StartFrom != plan.StartSnapshot {
			continue
		}
		_, ok, err := m.store.Meta(commit.DueMeta + s.Name)
		if err != nil {
			return nil, fmt.Errorf("%w: snapshot of sink %s: %w", ledger.ErrStore, s.Name, err)
		}
		if ok {
			due = append(due, s.Name)
		}
	}
	return due, nil
}
