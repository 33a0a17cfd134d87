package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	recorded "github.com/watcherd/watcherd/internal/history"
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
	r := newRig(t, t.TempDir(), committest.PodWatch())
	st := &plan.State{Watches: []plan.Watch{committest.PodWatch()}, Routes: []route.Spec{
		{Name: "all", Sinks: []string{"archive"}},
		{Name: "blue", Sinks: []string{"ops", "archive"}, When: `metadata.labels.tier == "blue"`, Payload: []string{"patch", "oldObject"}},
		{Name: "long", Sinks: []string{"ops"}, When: `metadata.labels.tier == "blue"`, For: time.Minute},
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
		{name: "a match that lasted", sink: "ops", labels: "blue", change: lasted(to("ops", "long")), replay: fresh, fill: fresh | record.Replay},
		{name: "a match that lasted, for another sink then", sink: "ops", labels: "blue", change: lasted(to("archive", "long")), replay: fresh, fill: fresh},
		{name: "a match that would not last now", sink: "ops", labels: "red", change: lasted(to("ops", "long")), none: true, unfilled: true},
		{name: "a match of another route", sink: "ops", labels: "blue", change: lasted(to("ops", "gone")), none: true, unfilled: true},
		{name: "a match is no change", sink: "archive", labels: "blue", change: lasted(to("ops", "long")), none: true, unfilled: true},
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
		rec.Object = r.Object("a", "u", "1", tc.labels).Body()
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
			if err != nil || given != ok || ok && record.Flags(chosen.Flags).WithRouteSet(0) != want {
				t.Errorf("%s: again %t: flags %b, %t, %v; want %b, %t", tc.name, again, chosen.Flags, given, err, want, ok)
			}
			if _, ok, err := target.Select(&store.Item{}); ok || err != nil {
				t.Errorf("an unreadable record: %t, %v", ok, err)
			}
		}
	}
}

func lasted(to []record.Target) func(r *record.Record) {
	return func(r *record.Record) {
		r.Event.Type, r.Event.For, r.Targets = event.Updated, &event.For{}, to
	}
}

func gapOf(watch, cause string) func(r *record.Record) {
	return func(r *record.Record) {
		r.Object.Data = nil
		r.Event.Type, r.Event.Gap = event.Gap, &event.GapData{Watch: watch, Cause: cause}
	}
}

// TestEarliestIsAsIfThere compares, over random histories, what a sink is given that starts
// with the log, or is replayed to, with what it would have been given all the time. A backtest
// counts the same, and each event is explained like that.
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
			rnd := rand.New(rand.NewPCG(seed, 1))
			l := newLife(t, t.TempDir())
			state := func(routes []route.Spec) *plan.State {
				t.Helper()
				st := l.state(routes, func(s *plan.Sink) { s.StartFrom = plan.StartEarliest })
				if seed%3 == 0 {
					filter, err := selector.NewFilter(selector.Namespaces{}, "tier!=red", "")
					if err != nil {
						t.Fatal(err)
					}
					st.Watches[0].Filter, st.Watches[0].Selection = filter, plan.Selection{Labels: "tier!=red"}
				}
				return st
			}
			apply := func(routes []route.Spec) {
				t.Helper()
				if err := l.m.Apply(t.Context(), state(routes)); err != nil {
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
			proposal := retrace.ProposalOf(state(append(live, later)))
			b, err := l.m.Backtest(t.Context(), &proposal, time.Unix(1, 0), time.Time{}, func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			expected := l.given("b")
			if live[0].When != "" && len(live[0].Changed) == 0 && seed%3 != 0 {
				l.found(live[0].When, expected)
			}
			l.explained(expected)
			for i := range b.Sinks {
				s := &b.Sinks[i]
				if s.Matches != len(expected) || s.Lost != 0 || s.Added+s.Running != len(expected) || (s.Sink == "b") != (s.Added == 0) || len(s.Gained) != min(s.Added, 5) {
					t.Errorf("%d events, and the backtest has %+v", len(expected), s)
				}
			}
			if len(b.Sinks) != min(2*len(expected), 2) || b.Routes[1].Matches != uint64(len(expected)) || b.Truncated {
				t.Errorf("%d events, and the backtest has %+v", len(expected), b)
			}
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

// found expects that these events of the log are those on which an expression is true.
func (l *life) found(when string, want []*event.Event) {
	l.Helper()
	test, err := l.m.past.When(when)
	if err != nil {
		l.Fatal(err)
	}
	page, err := recorded.New(l.Store, l.m.ledger, l.m.inflater).Query(l.Context(), recorded.Query{Oldest: true, Limit: 1000, Test: test})
	if err != nil {
		l.Fatal(err)
	}
	if !slices.EqualFunc(page.Items, want, func(c recorded.Change, e *event.Event) bool { return c.Sequence == e.Sequence }) || page.Failed > 0 {
		l.Errorf("%s: %d changes, want %d; %d failures", when, len(page.Items), len(want), page.Failed)
	}
}

// explained expects that the route first takes these events of the log, and no others.
func (l *life) explained(taken []*event.Event) {
	l.Helper()
	items, err := l.Store.ReadLog(0, 1000)
	if err != nil {
		l.Fatal(err)
	}
	for _, it := range items {
		i := slices.IndexFunc(taken, func(e *event.Event) bool { return e.Sequence == it.Sequence })
		name := fmt.Sprint(it.Sequence)
		if i >= 0 {
			name = taken[i].ID
		}
		x, err := l.m.Explain(l.Context(), name)
		if err != nil {
			l.Fatal(err)
		}
		if (x.Routes[0].Verdict == route.Taken) != (i >= 0) || x.Sequence != it.Sequence || (len(x.Recorded) > 0) != (i >= 0) {
			l.Errorf("of %d, given: %t: %+v", it.Sequence, i >= 0, x)
		}
	}
}

// TestExplain has each reason for which a watch or a route does not take an event.
func TestExplain(t *testing.T) {
	l := newLife(t, t.TempDir())
	st := l.state([]route.Spec{
		leadTo("taken", "", "a"),
		{Name: "resources", Resources: []string{"nodes"}, Sinks: []string{"a"}},
		{Name: "watches", Watches: []string{"blue"}, Sinks: []string{"a"}},
		{Name: "events", Events: []event.Type{event.Deleted}, Sinks: []string{"a"}},
		{Name: "changed", Changed: []string{"spec"}, Sinks: []string{"a"}},
		leadTo("when", `metadata.name == "other"`, "a"),
		leadTo("missing", `object.spec.none == 1`, "a"),
		leadTo("error", `object.metadata.name == 1 || int(object.metadata.name) == 1`, "a"),
		{Name: "for", When: "true", For: time.Hour, Sinks: []string{"a"}},
		{Name: "sample", Sample: 1e-9, Sinks: []string{"a"}},
		{Name: "passed", When: `object.spec.none == 1`, OnError: route.OnErrorPass, Sinks: []string{"a"}},
	})
	for name, edit := range map[string]func(*plan.Watch){
		"blue":       func(w *plan.Watch) { w.Selection.Labels = "tier=blue" },
		"namespaces": func(w *plan.Watch) { w.Selection.Namespaces.Include = []string{"x*"} },
		"named":      func(w *plan.Watch) { w.Namespaces = []string{"x"} },
		"resources":  func(w *plan.Watch) { w.Resources = []string{"gadgets.example.com"} }, // not served: it has no feed
	} {
		w := committest.PodWatch(edit)
		w.Name = name
		var err error
		if w.Filter, err = w.Selection.Filter(); err != nil {
			t.Fatal(err)
		}
		st.Watches = append(st.Watches, w)
	}
	if err := l.m.Apply(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	l.put("v", "1", "red")
	l.put("v", "2", "red")
	given := l.given("a")
	last := given[len(given)-1]
	x, err := l.m.Explain(t.Context(), fmt.Sprint(last.Sequence))
	if err != nil {
		t.Fatal(err)
	}
	if x.ID != last.ID || x.Subject != last.Subject() || x.Type != event.Updated {
		t.Errorf("%+v", x)
	}
	for _, r := range x.Routes {
		want := route.Verdict(r.Route)
		if r.Route == "passed" {
			want = route.Taken
		}
		if r.Verdict != want || (r.Error != "") != (want == route.Missing || want == route.Failed || r.Route == "passed") {
			t.Errorf("%+v", r)
		}
	}
	verdicts := map[string]retrace.WatchVerdict{"w": retrace.Covered, "blue": retrace.NotSelected, "namespaces": retrace.OtherSpaces, "named": retrace.OtherSpaces, "resources": retrace.OtherResources}
	for _, w := range x.Watches {
		if w.Verdict != verdicts[w.Watch] {
			t.Errorf("%+v", w)
		}
	}
	if diff := cmp.Diff([]retrace.Recorded{{Sink: "a", Routes: []string{"taken", "passed"}}}, x.Recorded); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"1", "00ff00ff00ff00ff00ff00ff00ff00ff", "no-id"} {
		if _, err := l.m.Explain(t.Context(), name); !errors.Is(err, retrace.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBacktestCompares runs other routes and bodies than the running ones.
func TestBacktestCompares(t *testing.T) {
	l := newLife(t, t.TempDir())
	l.apply([]route.Spec{leadTo("red", `metadata.labels.tier == "red"`, "a")})
	l.put("v", "1", "red")
	l.put("w", "2", "blue")
	l.put("x", "3", "red")
	st := l.state([]route.Spec{leadTo("blue", `metadata.labels.tier == "blue" || metadata.name == "x"`, "a", "b")})
	proposal := retrace.ProposalOf(st)
	proposal.Bodies = []retrace.ProposedBody{{Sink: "a", Body: `{"text": event.summary}`}, {Sink: "b", Body: `object.none`}}
	run := func(from time.Time) *retrace.Backtest {
		t.Helper()
		b, err := l.m.Backtest(t.Context(), &proposal, from, time.Time{}, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := run(time.Unix(1, 0))
	a := b.Sinks[0]
	if a.Matches != 2 || a.Running != 2 || a.Added != 1 || a.Lost != 1 || !strings.HasSuffix(a.Gained[0].Subject, "/w") || !strings.HasSuffix(a.Missed[0].Subject, "/v") {
		t.Errorf("%+v", a)
	}
	if a.Body != `{"text":"added Pod w"}` && !strings.Contains(a.Body, `"text"`) || a.BodyErrors != 0 {
		t.Errorf("body %q, %d errors", a.Body, a.BodyErrors)
	}
	if s := b.Sinks[1]; s.BodyErrors != 2 || !strings.Contains(s.BodyError, "no such key: none") {
		t.Errorf("%+v", s)
	}
	if r := b.Routes[0]; r.Matches != 2 || r.PeakMinute != 2 || len(r.Samples) != 2 || r.PerHour <= 0 {
		t.Errorf("%+v", r)
	}
	// A body runs before what its route hides is hidden: neither it nor its error is shown.
	proposal.Routes[0].Redact = []string{"metadata.labels.tier"}
	proposal.Bodies[1].Body = `object.metadata.labels[object.metadata.labels.tier]`
	b = run(time.Unix(1, 0))
	if text, err := json.Marshal(b.Sinks); err != nil || b.Sinks[1].BodyErrors != 2 || strings.Contains(string(text), "blue") {
		t.Errorf("%s, %v", text, err)
	}
	if b := run(time.Unix(1_900_000_000, 0)); b.Scanned != 0 || len(b.Sinks) != 0 {
		t.Errorf("after all: %+v", b)
	}
	proposal.Routes = append(proposal.Routes, proposal.Routes[0])
	for _, name := range []string{"blue", "red,green"} {
		proposal.Routes[1].Name = name
		if _, err := l.m.Backtest(t.Context(), &proposal, time.Unix(1, 0), time.Time{}, func(int) {}); !errors.Is(err, retrace.ErrProposal) {
			t.Errorf("a second route with the name %s: %v", name, err)
		}
	}
	proposal.Routes[0].When = "nonsense("
	if _, err := l.m.Backtest(t.Context(), &proposal, time.Unix(1, 0), time.Time{}, nil); !errors.Is(err, retrace.ErrProposal) {
		t.Errorf("a route that does not compile: %v", err)
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
			r := newRig(t, t.TempDir(), committest.PodWatch())
			r.adopt([]plan.Watch{committest.PodWatch()}, leadTo("other", "false", "sink"))
			s := r.source(pods)
			first, second := r.edited(s, pod("1", plaintext)), r.edited(s, pod("2", plaintext+"2"))
			r.commit(addedTo(s, first), updatedIn(s, second, first), deletedFrom(s, second))
			r.adopt([]plan.Watch{committest.PodWatch(tc.after)}, tc.route)
			proposal := retrace.ProposalOf(&plan.State{Watches: []plan.Watch{committest.PodWatch(tc.after)}, Routes: []route.Spec{tc.route}})
			proposal.Bodies = []retrace.ProposedBody{{Sink: "sink", Body: `[object, oldObject, patch, event.summary]`}}
			b, err := r.m.Backtest(t.Context(), &proposal, time.Unix(1, 0), time.Time{}, func(int) {})
			if err != nil || b.Sinks[0].Matches != 3 || b.Sinks[0].BodyErrors != 0 {
				t.Errorf("%+v, %v", b, err)
			}
			if text, err := json.Marshal(b); err != nil || strings.Contains(string(text), plaintext) {
				t.Errorf("the plaintext is seen: %s, %v", text, err)
			}
			if n, err := r.m.Replay(t.Context(), "sink", store.ReplayRange{}, nil); n != 3 || err != nil {
				t.Fatalf("%d replayed, %v", n, err)
			}
			q, err := r.Store.Queue("sink")
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

// TestReplayHidesOwners makes a part of a record that has the object's owners, which are hidden
// only now.
func TestReplayHidesOwners(t *testing.T) {
	watch := committest.PodWatch(func(w *plan.Watch) { w.Edits.Drop = []string{"metadata.ownerReferences"} })
	r := newRig(t, t.TempDir(), committest.PodWatch())
	spec := leadTo("new", "", "sink")
	spec.Payload, spec.Enrich = []string{"patch"}, []string{"owner"}
	r.adopt([]plan.Watch{watch}, spec)
	rec := record.Record{
		Event:  event.Event{ID: "00", Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "ns", Name: "a"},
		Object: r.Object("a", "u", "2").Body(), OldObject: r.Object("a", "u", "1").Body(),
		Enrichment: &record.Enrichment{Owner: json.RawMessage(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"` + plaintext + `","uid":"o"}]}}`)},
	}
	payload, err := record.Append(nil, &rec)
	if err != nil {
		t.Fatal(err)
	}
	st := &plan.State{Watches: []plan.Watch{watch}, Routes: []route.Spec{spec}}
	target, err := r.m.past.NewTarget(st, r.m.WatchesOf(st), "sink", true)
	if err != nil {
		t.Fatal(err)
	}
	chosen, ok, err := target.Select(&store.Item{Payload: payload})
	if !ok || err != nil || chosen.Payload == nil {
		t.Fatalf("%t, %v: %+v", ok, err, chosen)
	}
	e, err := r.m.inflater.Event(1, record.Flags(chosen.Flags), chosen.Payload, "sink")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(event.AppendData(nil, e)); e.Patch == nil || strings.Contains(text, plaintext) {
		t.Errorf("the owner is seen, or there is no patch: %s", text)
	}
}

// given are the events that a sink has yet to take, without their positions.
func (l *life) given(sink string) []*event.Event {
	l.Helper()
	q, err := l.Store.Queue(sink)
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
	r := newRig(t, t.TempDir(), committest.PodWatch())
	r.commit(addedTo(r.source(pods), r.Object("a", "u1", "1")))
	for range 2 {
		if _, err := r.Store.Replay(t.Context(), "sink", store.ReplayRange{}, func(*store.Item) (store.Selected, bool, error) {
			return store.Selected{Flags: uint32(record.Replay | record.Object)}, true, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	q, err := r.Store.Queue("sink")
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
