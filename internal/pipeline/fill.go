package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
)

// fillSinks queues what the log holds for new sinks that start from its beginning and
// for those that are back, if there are any. Then adopt puts the routes to them in
// place, and their workers start.
//
// The last part of it and adopt happen between two commits: what is recorded
// before is the log's and queued from there, what is recorded after is routed, and
// so a sink gets each event once and in order.
func (m *Manager) fillSinks(ctx context.Context, next *plan.State, names []string, adopt func(commit.Barrier) error) error {
	total := map[string]int{}
	fill := func() error {
		for _, name := range names {
			n, err := m.store.Fill(ctx, name, fromLog(next, name))
			if total[name] += n; err != nil {
				return fmt.Errorf("%w: queue the log for sink %s: %w", ledger.ErrStore, name, err)
			}
		}
		return nil
	}
	// Most of it while the watches go on.
	if err := fill(); err != nil {
		return err
	}
	var err error
	ended := m.committer.AtBarrier(func(b commit.Barrier) {
		if err = fill(); err != nil {
			return
		}
		for _, name := range names {
			if err = m.store.Filled(name); err != nil {
				return
			}
		}
		err = adopt(b)
	})
	if err := errors.Join(err, ended); err != nil {
		return err
	}
	for _, name := range names {
		m.log.Info("a sink starts with what the event log holds for it", "sink", name, "events", total[name])
		m.startSink(ctx, next.Sink(name))
	}
	return nil
}

// fromLog selects what of the log a sink gets that is new or back, as if it had been
// there: also what was recorded while there were no sinks, if it gets everything. What
// it was given before it left, if it starts from the log's beginning, is a replay.
func fromLog(st *plan.State, sink string) outbox.Selector {
	leading := leadingFlags(st, sink)
	all := plan.DefaultRoute()
	everything, takesAll := leading[all.Name]
	takesAll = takesAll && printRoutes(st)[all.Name].Matching == all.Matching()
	return func(payload []byte) (uint32, bool) {
		r, err := record.Decode(payload)
		switch {
		case err != nil:
			return 0, false // the stream of events tells of it
		case r.Event.Gap != nil && r.Event.Gap.Cause == commit.CauseRemoved:
			return 0, false // queued for the sink that it is for
		case len(r.Targets) == 0:
			return uint32(everything), takesAll
		}
		flags, given, ok := pick(r, sink, leading)
		if given {
			flags |= record.Replay
		}
		return uint32(flags), ok
	}
}
