package pipeline

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestReplaySelects decides what a sink is given again: what the routes that lead to it now
// take, whatever took it then.
func TestReplaySelects(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	st := &plan.State{Watches: []plan.Watch{podWatch()}, Routes: []route.Spec{
		{Name: "all", Sinks: []string{"archive"}},
		{Name: "blue", Sinks: []string{"ops", "archive"}, When: `metadata.labels.tier == "blue"`, Payload: []string{"patch", "oldObject"}},
	}}
	watches := retrace.NewWatches(st.Watches, func(_ *plan.Watch, gr schema.GroupResource, scope string) bool {
		return gr.Resource == "pods" && scope == ""
	}, nil)
	to := func(sink, routes string) []record.Target {
		return []record.Target{{Sink: sink, Flags: record.Object, Routes: routes}}
	}
	const fresh = record.Object
	for _, tc := range []struct {
		name           string
		sink, labels   string
		change         func(r *record.Record)
		replay, fill   record.Flags
		none, unfilled bool
	}{
		{name: "nobody took it", sink: "archive", replay: fresh, fill: fresh},
		{name: "it was given then", sink: "archive", change: func(r *record.Record) { r.Targets = to("archive", "gone") }, replay: fresh, fill: fresh | record.Replay},
		{name: "by a route that is another now", sink: "ops", change: func(r *record.Record) { r.Targets = to("ops", "blue") }, none: true, unfilled: true},
		{name: "two routes take it", sink: "archive", labels: "blue", replay: fresh | record.Patch | record.OldObject, fill: fresh | record.Patch | record.OldObject},
		{name: "one route takes it", sink: "ops", labels: "blue", replay: record.Patch | record.OldObject, fill: record.Patch | record.OldObject},
		{name: "another version of the resource", sink: "archive", change: func(r *record.Record) { r.Scope = "@v2" }, none: true, unfilled: true},
		{name: "another resource", sink: "archive", change: func(r *record.Record) { r.Event.Resource.Resource = "nodes" }, none: true, unfilled: true},
		{name: "the form that an edit gave it", sink: "archive", change: func(r *record.Record) { r.Rerecorded = true }, none: true, unfilled: true},
		{name: "found at the start", sink: "archive", change: func(r *record.Record) { r.Event.Type, r.State = event.Sync, true }, replay: fresh, fill: fresh},
		{name: "its own snapshot", sink: "archive", change: func(r *record.Record) { r.Event.Type, r.Targets = event.Sync, to("archive", "all") }, replay: fresh, fill: fresh | record.Replay},
		{name: "another's snapshot", sink: "archive", change: func(r *record.Record) { r.Event.Type, r.Targets = event.Sync, to("other", "other") }, none: true, unfilled: true},
		{name: "a gap", sink: "archive", change: gapOf("w", "expired"), replay: 0, fill: 0},
		{name: "a gap of a watch that is gone", sink: "archive", change: gapOf("gone", "expired"), replay: 0, fill: 0},
		{name: "a gap of its own", sink: "archive", change: func(r *record.Record) {
			gapOf("w", commit.CauseRemoved)(r)
			r.Targets = to("archive", "")
		}, replay: 0, unfilled: true},
		{name: "a gap of another", sink: "ops", change: func(r *record.Record) {
			gapOf("w", commit.CauseRemoved)(r)
			r.Targets = to("archive", "")
		}, none: true, unfilled: true},
	} {
		rec := record.Record{Event: event.Event{ID: "00", Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "ns", Name: "a"}}
		rec.Object = r.object("a", "u", "1", tc.labels).Body()
		if tc.change != nil {
			tc.change(&rec)
		}
		payload, err := record.Append(nil, &rec)
		if err != nil {
			t.Fatal(err)
		}
		for _, again := range []bool{true, false} {
			want, ok := tc.fill, !tc.unfilled
			if again {
				want, ok = tc.replay|record.Replay, !tc.none
			}
			target, err := r.m.past.NewTarget(st, watches, tc.sink, again)
			if err != nil {
				t.Fatal(err)
			}
			chosen, given, err := target.Select(&store.Item{Payload: payload})
			if err != nil || given != ok || ok && record.Flags(chosen.Flags) != want {
				t.Errorf("%s: again %t: flags %b, %t, %v; want %b, %t", tc.name, again, chosen.Flags, given, err, want, ok)
			}
			if _, ok, err := target.Select(&store.Item{}); ok || err != nil {
				t.Errorf("an unreadable record: %t, %v", ok, err)
			}
		}
	}
}

func gapOf(watch, cause string) func(r *record.Record) {
	return func(r *record.Record) {
		r.Object.Data = nil
		r.Event.Type, r.Event.Gap = event.Gap, &event.GapData{Watch: watch, Cause: cause}
	}
}

// TestEarliestIsAsIfThere compares, over random histories, what a sink is given that starts
// with the log, or is replayed to, with what it would have been given all the time.
func TestEarliestIsAsIfThere(t *testing.T) {
	routes := func(seed uint64) []route.Spec {
		s := leadTo("first", "", "b")
		s.Payload = [][]string{{"object", "oldObject", "patch", "summary"}, {"patch"}, {"summary"}, {"object"}, {"oldObject"}}[seed%5]
		s.When = []string{"", `metadata.labels.tier == "blue"`, `oldObject == null || oldObject.metadata.name != "b"`, `event.type != "deleted"`}[seed/5%4]
		if seed/20%2 == 1 {
			s.Changed = []string{"metadata.labels"}
		}
		if seed/40%2 == 1 {
			s.Drop = []string{"metadata.labels"}
		}
		return []route.Spec{s}
	}
	for seed := range uint64(80) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
			l := newLife(t, t.TempDir())
			apply := func(routes []route.Spec) {
				t.Helper()
				st := l.state(routes, func(s *plan.Sink) { s.StartFrom = plan.StartEarliest })
				if seed%3 == 0 {
					filter, err := selector.NewFilter(selector.Namespaces{}, "tier!=red", "")
					if err != nil {
						t.Fatal(err)
					}
					st.Watches[0].Filter = filter
				}
				if err := l.m.Apply(t.Context(), st); err != nil {
					t.Fatal(err)
				}
			}
			live := routes(seed)
			apply(live)
			for version := 1; version < 40; version++ {
				name, v := string(rune('a'+rnd.IntN(4))), fmt.Sprint(version)
				if rnd.IntN(5) == 0 {
					l.delete(name, v)
				} else {
					l.put(name, v, []string{"red", "blue", "green"}[rnd.IntN(3)])
				}
			}
			later := live[0]
			later.Name, later.Sinks = "second", []string{"a"}
			apply(append(live, later))
			if n, err := l.m.Replay(t.Context(), "b", store.ReplayRange{}, nil); err != nil || n == 0 && seed/5%4 != 1 {
				t.Fatalf("%d replayed, %v", n, err)
			}
			all := l.given("b")
			was := all[:len(all)/2]
			again := all[len(was):]
			for i := range again {
				if !again[i].Replay {
					t.Errorf("%s is no replay", again[i].ID)
				}
				again[i].Replay = false
			}
			if diff := cmp.Diff(was, again); diff != "" {
				t.Errorf("a replay (-live +replay):\n%s", diff)
			}
			if diff := cmp.Diff(was, l.given("a")); diff != "" {
				t.Errorf("a new sink (-live +new):\n%s", diff)
			}
		})
	}
}

// TestReplayHidesWhatIsHiddenNow makes parts of records that were recorded in plaintext for a
// route that asks for them only now.
func TestReplayHidesWhatIsHiddenNow(t *testing.T) {
	pod := func(version, value string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"` + version + `"},"spec":{"a":"` + value + `"}}`
	}
	hide := func(w *plan.Watch) { w.Edits.Redact = []string{"spec.a"} }
	all := func(spec route.Spec) route.Spec {
		spec.Payload = []string{"object", "oldObject", "patch", "summary"}
		return spec
	}
	dropping := leadTo("dropping", "", "sink")
	dropping.Drop = []string{"spec.a"}
	for _, tc := range []struct {
		name  string
		after func(*plan.Watch)
		route route.Spec
	}{
		{"by the watch", hide, all(leadTo("new", "", "sink"))},
		{"by the route", func(*plan.Watch) {}, all(dropping)},
		{"by both", hide, all(dropping)},
		{"by a route that takes nothing else", func(*plan.Watch) {}, dropping},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, t.TempDir(), podWatch())
			r.adopt([]plan.Watch{podWatch()}, leadTo("other", "false", "sink"))
			s := r.source(pods)
			first, second := r.edited(s, pod("1", plaintext)), r.edited(s, pod("2", plaintext+"2"))
			r.commit(addedTo(s, first), updatedIn(s, second, first), deletedFrom(s, second))
			r.adopt([]plan.Watch{podWatch(tc.after)}, tc.route)
			if n, err := r.m.Replay(t.Context(), "sink", store.ReplayRange{}, nil); n != 3 || err != nil {
				t.Fatalf("%d replayed, %v", n, err)
			}
			q, err := r.store.Queue("sink")
			if err != nil {
				t.Fatal(err)
			}
			items, err := q.Read(0, 10, 1<<20)
			if err != nil || len(items) != 3 {
				t.Fatalf("%d items, %v", len(items), err)
			}
			for _, it := range items {
				e, err := query.Decode(r.m.inflater, "sink", it)
				if err != nil {
					t.Fatal(err)
				}
				if text := string(event.AppendData(nil, e)); strings.Contains(text, plaintext) {
					t.Errorf("the plaintext is seen: %s", text)
				}
				if e.Object == nil || len(tc.route.Payload) > 0 && e.Type == event.Updated && (e.OldObject == nil || e.Patch == nil) {
					t.Errorf("parts are missing: %s", event.AppendData(nil, e))
				}
			}
		})
	}
}

// given are the events that a sink has yet to take, without their positions.
func (l *life) given(sink string) []*event.Event {
	l.Helper()
	q, err := l.store.Queue(sink)
	if err != nil {
		l.Fatal(err)
	}
	items, err := q.Read(0, 1000, 1<<20)
	if err != nil {
		l.Fatal(err)
	}
	list := make([]*event.Event, 0, len(items))
	for _, it := range items {
		e, err := query.Decode(l.m.inflater, sink, it)
		if err != nil {
			l.Fatal(err)
		}
		e.Position = 0
		list = append(list, e)
	}
	return list
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
