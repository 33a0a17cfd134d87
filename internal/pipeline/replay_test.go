package pipeline

import (
	"testing"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestReplaySelects decides what a sink is given again: what it was given, as it was
// given, and what took a route that leads to it now.
func TestReplaySelects(t *testing.T) {
	st := &plan.State{Routes: []route.Spec{
		{Name: "all", Sinks: []string{"archive"}},
		{Name: "blue", Sinks: []string{"ops", "archive"}, Payload: []string{"patch", "oldObject"}},
	}}
	left := record.Flags(0).WithSelection(event.Left)
	for _, tc := range []struct {
		name    string
		sink    string
		targets []record.Target
		flags   record.Flags
		ok      bool
	}{
		{"it was given then", "archive", []record.Target{{Sink: "archive", Flags: record.Patch, Routes: "all"}}, record.Patch, true},
		{"under a route that is gone", "archive", []record.Target{{Sink: "archive", Flags: record.Object, Routes: "gone"}}, record.Object, true},
		{"by a route that leads to it now", "ops", []record.Target{{Sink: "archive", Flags: record.Object | left, Routes: "all,blue"}}, record.Patch | record.OldObject | left, true},
		{"by routes that do not", "ops", []record.Target{{Sink: "archive", Flags: record.Object, Routes: "all"}}, 0, false},
		{"a gap told to it", "archive", []record.Target{{Sink: "archive"}}, 0, true},
		{"a gap told to others", "ops", []record.Target{{Sink: "archive"}}, 0, false},
		{"nobody", "archive", nil, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			payload, err := record.Append(nil, &record.Record{Event: event.Event{ID: "00", Type: event.Added}, Targets: tc.targets})
			if err != nil {
				t.Fatal(err)
			}
			if flags, ok := pickFor(st, tc.sink)(payload); flags != tc.flags || ok != tc.ok {
				t.Errorf("flags %b, %t; want %b, %t", flags, ok, tc.flags, tc.ok)
			}
		})
	}
	if _, ok := pickFor(st, "archive")(nil); ok {
		t.Error("an unreadable record was selected")
	}
}

// TestReplayHasPosition: two replays of an event differ in their position in the queue
// alone.
func TestReplayHasPosition(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	r.commit(addedTo(r.source(pods), r.object("a", "u1", "1")))
	for range 2 {
		if _, err := r.store.Replay(t.Context(), "sink", store.ReplayRange{}, uint32(record.Replay|record.Object)); err != nil {
			t.Fatal(err)
		}
	}
	q, err := r.store.Queue("sink")
	if err != nil {
		t.Fatal(err)
	}
	items, err := q.Read(0, 10, 1<<20)
	if err != nil || len(items) != 3 {
		t.Fatalf("%d items: %v", len(items), err)
	}
	last := uint64(0)
	for i, it := range items {
		e, err := query.Decode(r.m.inflater, "sink", it)
		if err != nil {
			t.Fatal(err)
		}
		if e.Position <= last || e.Sequence != items[0].Sequence || e.Replay != (i > 0) {
			t.Errorf("delivery %d: position %d after %d, sequence %d, replay %t", i, e.Position, last, e.Sequence, e.Replay)
		}
		last = e.Position
	}
}
