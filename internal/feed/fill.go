package feed

import (
	"context"
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
)

// fillSinks queues what the log holds for new sinks that start from its beginning,
// then has adopt put the routes to them in place, and starts their workers.
//
// The last part of it and adopt happen between two commits: what is recorded
// before is the log's and queued from there, what is recorded after is routed, and
// so a sink gets each event once and in order.
func (m *Manager) fillSinks(ctx context.Context, next *plan.State, names []string, adopt func(*group)) error {
	total := map[string]int{}
	fill := func() error {
		for _, name := range names {
			n, err := m.store.Fill(ctx, name, fromLog(next, name))
			if total[name] += n; err != nil {
				return fmt.Errorf("%w: queue the log for the new sink %s: %w", ErrStore, name, err)
			}
		}
		return nil
	}
	// Most of it while the watches go on.
	if err := fill(); err != nil {
		return err
	}
	var err error
	ended := m.between(func(g *group) {
		if err = fill(); err != nil {
			return
		}
		for _, name := range names {
			if err = m.store.Filled(name); err != nil {
				return
			}
		}
		adopt(g)
	})
	if err := errors.Join(err, ended); err != nil {
		return err
	}
	for _, name := range names {
		m.log.Info("a new sink starts with what the event log holds for it", "sink", name, "events", total[name])
		m.startSink(ctx, next.Sink(name))
	}
	return nil
}

// fromLog selects what of the log a new sink gets, as if it had been there.
func fromLog(st *plan.State, sink string) outbox.Selector {
	pick := pickFor(st, sink)
	return func(payload []byte) (uint32, bool) {
		flags, ok := pick(payload)
		return uint32(flags), ok
	}
}
