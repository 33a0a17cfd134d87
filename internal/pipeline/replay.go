package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
)

// Replay delivers recorded events to a sink again, in their order, marked as a
// replay: those that were routed to it when they were recorded, and those that went
// through a route that leads to it now. It returns how many were queued, and calls
// progress, if not nil, with the number so far.
func (m *Manager) Replay(ctx context.Context, sink string, r outbox.ReplayRange, progress func(events int)) (int, error) {
	st := m.currentState()
	if st == nil || st.Sink(sink) == nil {
		return 0, &UnknownError{"sink", sink}
	}
	pick := pickFor(st, sink)
	count := 0
	n, err := m.store.ReplaySelected(ctx, sink, r, func(payload []byte) (uint32, bool) {
		flags, ok := pick(payload)
		if ok {
			count++
			if progress != nil {
				progress(count)
			}
		}
		return uint32(flags | record.Replay), ok
	})
	if err != nil {
		return n, fmt.Errorf("replay to sink %s: %w", sink, err)
	}
	return n, nil
}

// pickFor decides which records a sink gets, and what of them.
func pickFor(st *plan.State, sink string) func(payload []byte) (record.Flags, bool) {
	leading := leadingFlags(st, sink)
	return func(payload []byte) (record.Flags, bool) {
		r, err := record.Decode(payload)
		if err != nil {
			return 0, false // the stream of events tells of it
		}
		flags, _, ok := pick(r, sink, leading)
		return flags, ok
	}
}

// leadingFlags are the routes that lead to a sink, with what they ask for.
func leadingFlags(st *plan.State, sink string) map[string]record.Flags {
	leading := map[string]record.Flags{}
	for _, spec := range st.Routes {
		if slices.Contains(spec.Sinks, sink) {
			leading[spec.Name] = payloadFlags(spec)
		}
	}
	return leading
}

// pick says what a sink gets of a record, and whether it was given it when it was
// recorded.
func pick(r *record.Record, sink string, leading map[string]record.Flags) (flags record.Flags, given, ok bool) {
	for _, t := range r.Targets {
		if t.Sink == sink {
			return t.Flags, true, true
		}
		for name := range strings.SplitSeq(t.Routes, ",") {
			if asked, leads := leading[name]; leads {
				flags |= asked.WithSelection(t.Flags.Selection())
				ok = true
			}
		}
	}
	return flags, false, ok
}

func payloadFlags(spec route.Spec) record.Flags {
	if len(spec.Payload) == 0 {
		return record.Object
	}
	var f record.Flags
	for _, part := range spec.Payload {
		switch part {
		case "object":
			f |= record.Object
		case "oldObject":
			f |= record.OldObject
		case "patch":
			f |= record.Patch
		}
	}
	return f
}
