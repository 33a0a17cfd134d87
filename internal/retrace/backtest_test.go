package retrace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// world is a committer that works in the time of a bubble.
type world struct {
	*testing.T
	st    *store.Store
	c     *commit.Committer
	feed  *commit.Feed
	codec *compact.Codec
	r     *Reader
	in    *record.Inflater
	begin time.Time
	state *plan.State
	given map[string][]*event.Event // by sink

	version int
	objects map[string]*compact.Object
}

// stream is what the committer sees of an informer.
type stream struct{}

func (stream) Ack(uint64)               {}
func (stream) Checkpoint(uint64) string { return "" }
func (stream) Watch() dynamicfactory.WatchStatus {
	return dynamicfactory.WatchStatus{State: dynamicfactory.StateWatching}
}
func (stream) Known(uint64) time.Time { return time.Time{} }
func (stream) Quiet(uint64) string    { return "" }

func (stream) NextList(uint64, bool) (l dynamicfactory.List, ok bool) { return l, false }
func (stream) Informer() cache.SharedIndexInformer                    { return noObjects{} }

type noObjects struct{ cache.SharedIndexInformer }

func (noObjects) GetStore() cache.Store { return cache.NewStore(cache.MetaNamespaceKeyFunc) }

// now is the time of the bubble, in this century.
func (w *world) now() time.Time { return time.Unix(1_900_000_000, 0).UTC().Add(time.Since(w.begin)) }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func stateOf(t *testing.T, routes []route.Spec) *plan.State {
	t.Helper()
	st := &plan.State{Watches: []plan.Watch{{Name: "w", Resources: []string{"pods"}, Snapshot: true, History: true, Edits: redact.DefaultEdits()}}, Routes: routes}
	var err error
	if st.Router, err = route.Compile(routes); err != nil {
		t.Fatal(err)
	}
	return st
}

func newWorld(t *testing.T, routes []route.Spec) *world {
	t.Helper()
	w := &world{T: t, begin: time.Now(), state: stateOf(t, routes), given: map[string][]*event.Event{}, objects: map[string]*compact.Object{}}
	var err error
	w.st, err = store.Open("store", store.Options{FS: vfs.NewMem(), Now: w.now})
	w.must(err)
	dicts, err := ledger.LoadDictionaries(w.st)
	w.must(err)
	w.codec, w.in = compact.NewCodec(dicts), &record.Inflater{Cluster: "test", Dictionaries: dicts}
	w.r = New(w.st, w.in, func() *redact.Table { return nil })
	w.c, err = commit.New(commit.Config{
		Cluster: "test", Store: w.st, Ledger: ledger.New(w.st, dicts), Dictionaries: dicts, Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Now: w.now, Running: func() []*commit.Feed { return []*commit.Feed{w.feed} },
	})
	w.must(err)
	for _, spec := range routes {
		for _, sink := range spec.Sinks {
			_, err := w.st.EnsureSink(sink, store.FromNow)
			w.must(err)
		}
	}
	served := dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}
	id, err := commit.IdentityOf(&w.state.Watches[0], served, "", "", make([]byte, 32))
	w.must(err)
	w.feed = w.c.NewFeed(id, commit.NewWatchRef(&w.state.Watches[0]))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- w.c.Run(ctx, ctx) }()
	go func() { done <- w.st.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		w.must(w.st.Close())
	})
	w.must(w.c.AtBarrier(func(b commit.Barrier) { b.Adopt(w.state.Router) }))
	w.must(w.c.Prepare(w.feed))
	w.feed.Subscribed(stream{})
	_, err = w.c.Begin(w.feed)
	w.must(err)
	w.c.Synced(w.feed)
	w.c.Flush()
	return w
}

// change has an object be in a tier, or be deleted.
func (w *world) change(name, tier string) {
	w.Helper()
	w.version++
	old, h := w.objects[name], w.c.Handler(w.feed)
	uid := fmt.Sprint("u", w.version)
	if old != nil {
		uid = string(old.GetUID())
	}
	o, err := w.codec.Encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":"%d","labels":{"tier":%q}}}`, name, uid, w.version, tier), nil, 0)
	w.must(err)
	switch o = o.WithPosition(uint64(w.version)); {
	case tier == "" && old != nil:
		delete(w.objects, name)
		h.OnDelete(o)
	case tier == "":
	case old == nil:
		w.objects[name] = o
		h.OnAdd(o, false)
	default:
		w.objects[name] = o
		h.OnUpdate(old, o)
	}
	w.c.Flush()
}

// deliver takes what is in the queues.
func (w *world) deliver() {
	w.Helper()
	for _, sink := range w.st.Sinks() {
		q, err := w.st.Queue(sink)
		w.must(err)
		items, err := q.Read(0, 10_000, 1<<30)
		w.must(err)
		for _, it := range items {
			e, err := w.in.Event(it.Sequence, record.Flags(it.Flags), it.Payload, sink)
			w.must(err)
			w.given[sink] = append(w.given[sink], e)
			w.must(q.Ack(it.Position))
		}
	}
}

// tally is how many events a sink was given, or is held for, and how many those replace.
type tally struct{ events, coalesced int }

// tallies are those of the sinks.
func (w *world) tallies() map[string]tally {
	w.Helper()
	w.deliver()
	all, seen := map[string]tally{}, map[string]bool{}
	for sink, events := range w.given {
		for _, e := range events {
			all[sink] = tally{all[sink].events + 1, all[sink].coalesced + e.Coalesced}
		}
	}
	w.must(timer.NewTable(w.st).Rows(nil, "", func(_ string, row *timer.Row) error {
		if row.Sequence == 0 {
			return nil
		}
		r, err := record.Decode(row.Record)
		sink := r.Targets[0].Sink
		if again := fmt.Sprint(sink, row.Sequence); err == nil && !seen[again] {
			seen[again] = true
			all[sink] = tally{all[sink].events + 1, all[sink].coalesced + r.Event.Coalesced}
		}
		return err
	}))
	return all
}

func (w *world) backtest(now, next []route.Spec, to time.Time) *Backtest {
	w.Helper()
	watches := func(st *plan.State) *Watches {
		return NewWatches(st.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, func(string) (labels.Set, bool) { return nil, false })
	}
	before := stateOf(w.T, now)
	st := stateOf(w.T, next)
	b, err := w.r.Rehearse(w.Context(), before, st, watches(before), watches(st), time.Time{}, to, func(int) {})
	w.must(err)
	return b
}

// TestExplainHeld names what is held of an event, and since when its object matches.
func TestExplainHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes := []route.Spec{tiered("slow", "", per(time.Minute)), tiered("stuck", "red", lasts(10*time.Minute))}
		w := newWorld(t, routes)
		begin := w.now()
		w.change("a", "red")
		time.Sleep(time.Second)
		w.change("a", "red")
		synctest.Wait()
		explained := func(last bool) []Hold {
			t.Helper()
			sequence := w.st.LogStats().First
			if last {
				sequence = w.st.LogStats().Last
			}
			watches := NewWatches(w.state.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, nil)
			x, err := w.r.Explain(t.Context(), w.state, watches, fmt.Sprint(sequence))
			w.must(err)
			return x.Holds
		}
		match := Hold{Route: "stuck", Since: begin, Due: begin.Add(10 * time.Minute)}
		if got, want := explained(true), []Hold{{"slow", "slow", begin, begin.Add(time.Minute)}, match}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if got := explained(false); !slices.Equal(got, []Hold{match}) {
			t.Errorf("%v of what was delivered, want %v", got, match)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := explained(false), []Hold{{Route: "stuck", Since: begin}}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func tiered(name, tier string, edit func(*route.Spec)) route.Spec {
	s := route.Spec{Name: name, Sinks: []string{name}}
	if tier != "" {
		s.When = fmt.Sprintf(`metadata.labels["tier"] == %q`, tier)
	}
	edit(&s)
	return s
}

func per(d time.Duration, sinks ...string) func(*route.Spec) {
	return func(s *route.Spec) {
		if s.Throttle = d; len(sinks) > 0 {
			s.Sinks = sinks
		}
	}
}

func lasts(d time.Duration) func(*route.Spec) {
	return func(s *route.Spec) { s.For = d }
}

// TestBacktestHoldsAsTheCommitter compares, over random histories and at several of their
// moments, what a backtest finds with what the sinks were given and the routes held.
func TestBacktestHoldsAsTheCommitter(t *testing.T) {
	routes := []route.Spec{
		tiered("slow", "", per(time.Minute)),
		tiered("calm", "blue", per(5*time.Minute)),
		tiered("stuck", "red", lasts(4*time.Minute)),
		tiered("rare", "red", func(s *route.Spec) { s.For, s.Throttle = 2*time.Minute, 20*time.Minute }),
		tiered("one", "", per(2*time.Minute, "shared")),
		tiered("two", "blue", per(3*time.Minute, "shared")),
		tiered("urgent", "red", per(0, "shared")),
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 3))
				w := newWorld(t, routes)
				moments := map[time.Time]map[string]tally{}
				for range 150 {
					// No change is at the time of a timer, or within the pause of the committer between two looks.
					time.Sleep(time.Duration(1+random.IntN(4))*10*time.Second + 60*time.Millisecond)
					w.change(string(rune('a'+random.IntN(3))), []string{"", "red", "red", "blue", "blue", "green"}[random.IntN(6)])
					synctest.Wait()
					if random.IntN(25) == 0 {
						moments[w.now()] = w.tallies()
					}
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				moments[w.now()] = w.tallies()
				w.checkExplained()
				for at, want := range moments {
					b := w.backtest(nil, routes, at)
					if len(b.Sinks) != len(want) {
						t.Errorf("until %s: %+v, want %v", at, b.Sinks, want)
					}
					for _, s := range b.Sinks {
						i := slices.IndexFunc(b.Routes, func(r RouteTest) bool { return r.Route == s.Sink })
						if of := want[s.Sink]; s.Matches != of.events || s.Added != of.events || s.Running != 0 || i >= 0 && b.Routes[i].Coalesced != of.coalesced {
							t.Errorf("until %s, sink %s: %+v, %+v, want %+v", at, s.Sink, s, b.Routes, of)
						}
					}
					for _, s := range w.backtest(routes, routes, at).Sinks {
						if of := want[s.Sink]; s.Matches != of.events || s.Running != of.events || s.Added+s.Lost != 0 {
							t.Errorf("until %s, sink %s: %+v, want no difference, and %+v", at, s.Sink, s, of)
						}
					}
				}
			})
		})
	}
}

// checkExplained expects that a sink was given, or waits for, each event that is recorded for
// it, unless a throttle may have replaced it.
func (w *world) checkExplained() {
	w.Helper()
	w.deliver()
	watches := NewWatches(w.state.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, nil)
	certain, replaceable := 0, 0
	items, err := w.st.ReadLog(0, 10_000)
	w.must(err)
	for _, it := range items {
		x, err := w.r.Explain(w.Context(), w.state, watches, fmt.Sprint(it.Sequence))
		w.must(err)
		for _, to := range x.Recorded {
			given := slices.ContainsFunc(w.given[to.Sink], func(e *event.Event) bool { return e.Sequence == it.Sequence })
			held := slices.ContainsFunc(x.Holds, func(h Hold) bool { return h.Sink == to.Sink })
			switch {
			case to.Throttle != "":
				replaceable++
			case !given && !held:
				w.Errorf("%s of %s is recorded for %s, which was not given it", x.Type, x.Subject, to.Sink)
			default:
				certain++
			}
		}
	}
	if certain == 0 || replaceable == 0 {
		w.Errorf("%d are certain, %d may be replaced", certain, replaceable)
	}
}

// TestBacktestOfOtherPeriods compares routes that hold with those that hold for another time,
// and makes the bodies of what is held.
func TestBacktestOfOtherPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := `event.coalesced > 0 || event.summary.startsWith("matches") ? dyn({"text": event.summary, "replaces": event.coalesced}) : null`
		running := []route.Spec{tiered("all", "", per(0)), tiered("stuck", "red", lasts(time.Minute)), tiered("gone", "red", lasts(time.Minute))}
		next := []route.Spec{tiered("all", "", per(time.Minute)), tiered("stuck", "red", lasts(10*time.Minute))}
		w := newWorld(t, running)
		begin := w.now()
		for i, tier := range []string{"red", "green", "blue", "red"} {
			w.change("a", tier)
			if i == 0 {
				w.change("b", tier)
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(5 * time.Minute)
		w.change("a", "blue")
		time.Sleep(time.Hour)
		proposal := ProposalOf(stateOf(t, next))
		proposal.Bodies = []ProposedBody{{Sink: "all", Body: text}, {Sink: "stuck", Body: text}}
		st, err := proposal.State()
		w.must(err)
		before := stateOf(t, running)
		watches := func(st *plan.State) *Watches {
			return NewWatches(st.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, nil)
		}
		b, err := w.r.Rehearse(t.Context(), before, st, watches(before), watches(st), begin, w.now(), func(int) {})
		w.must(err)
		for i, want := range []SinkTest{
			{Sink: "all", Matches: 4, Running: 6, Lost: 2, BodyNulls: 3, Body: `{"replaces":2,"text":"no visible change"}`},
			{Sink: "gone", Running: 2, Lost: 2},
			{Sink: "stuck", Matches: 1, Running: 2, Lost: 1, Body: `{"replaces":0,"text":"matches for 10m0s"}`},
		} {
			got := b.Sinks[i]
			got.Gained, got.Missed = nil, nil
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		if r := b.Routes[0]; r.Matches != 6 || r.Coalesced != 2 || b.Routes[1].Matches != 1 || b.Routes[1].PeakMinute != 1 {
			t.Errorf("%+v", b.Routes)
		}
		if missed := b.Sinks[2].Missed; len(missed) != 1 || missed[0].Subject != "/api/v1/namespaces/ns/pods/a" {
			t.Errorf("%+v", missed)
		}
	})
}

// TestBacktestWithTheGapOfASink: what a sink has missed while it was not configured is in the history, and ends no match.
func TestBacktestWithTheGapOfASink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes := []route.Spec{tiered("stuck", "red", lasts(3*time.Minute))}
		w := newWorld(t, routes)
		w.change("a", "red")
		time.Sleep(time.Minute)
		pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
		payload, err := record.Append(nil, &record.Record{Event: event.Event{
			Type: event.Gap, Time: w.now(), Resource: pods, Gap: &event.GapData{Watch: "w", Resource: pods, Cause: record.CauseRemoved, From: w.now(), To: w.now()},
		}})
		w.must(err)
		b := w.st.NewBatch()
		b.Append(store.Record{Time: w.now(), Payload: payload}, []store.Route{{Sink: "stuck"}})
		w.must(w.st.Commit(b))
		time.Sleep(time.Minute)
		w.change("a", "red")
		time.Sleep(2 * time.Minute)
		w.change("a", "blue")
		synctest.Wait()
		if got := w.backtest(routes, routes, w.now()); got.Gaps != 0 || got.Routes[0].Matches != 1 {
			t.Errorf("%d gaps, %+v, want a match", got.Gaps, got.Routes)
		}
	})
}

// TestBacktestAfterTheClockRanAhead: a record with the time of a clock that ran ahead does not end the period before those that follow it.
func TestBacktestAfterTheClockRanAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes := []route.Spec{tiered("red", "red", per(0))}
		w := newWorld(t, routes)
		w.change("a", "red")
		pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
		ahead := w.now().Add(time.Hour)
		payload, err := record.Append(nil, &record.Record{Event: event.Event{
			Type: event.Gap, Time: ahead, Resource: pods, Gap: &event.GapData{Watch: "w", Resource: pods, Cause: dynamicfactory.CauseExpired, From: ahead, To: ahead},
		}})
		w.must(err)
		b := w.st.NewBatch()
		b.Append(store.Record{Time: ahead, Payload: payload}, nil)
		w.must(w.st.Commit(b))
		w.change("a", "red")
		time.Sleep(time.Minute)
		until := w.now()
		time.Sleep(time.Minute)
		w.change("a", "red")
		if got := w.backtest(routes, routes, until); got.Scanned != 2 || got.Gaps != 0 || got.Routes[0].Matches != 2 || got.To.After(until) {
			t.Errorf("%+v, want both changes", got)
		}
	})
}

// TestBacktestPerHour: the rate of a route is that of the period, or of the log if that is shorter, whenever the records were made.
func TestBacktestPerHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes := []route.Spec{tiered("red", "red", per(0))}
		w := newWorld(t, routes)
		w.change("a", "blue")
		time.Sleep(9 * time.Hour)
		w.change("a", "red")
		time.Sleep(time.Hour)
		end := w.now()
		watches := NewWatches(w.state.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, nil)
		for _, tc := range []struct {
			since time.Duration
			want  float64
		}{{5 * time.Hour, 0.2}, {10 * time.Hour, 0.1}, {20 * time.Hour, 0.1}} {
			st := stateOf(t, routes)
			b, err := w.r.Rehearse(t.Context(), st, st, watches, watches, end.Add(-tc.since), end, func(int) {})
			w.must(err)
			if got := b.Routes[0]; got.Matches != 1 || got.PerHour != tc.want {
				t.Errorf("in %v: %d matches, %v an hour, want %v", tc.since, got.Matches, got.PerHour, tc.want)
			}
		}
	})
}

// trimmed is a log whose begin retention deletes once some of it has been read.
type trimmed struct {
	Log
	reads int
	first uint64 // of what stays
}

func (l *trimmed) ReadLog(after uint64, most int) ([]store.Item, error) {
	if l.reads++; l.reads > 1 {
		after = max(after, l.first-1)
	}
	return l.Log.ReadLog(after, min(most, 2))
}

func (l *trimmed) LogStats() store.LogStats {
	s := l.Log.LogStats()
	if l.reads > 1 {
		s.First = l.first
	}
	return s
}

// TestBacktestBesideRetention: what retention deletes before a backtest has come to it is not left out silently.
func TestBacktestBesideRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		for i := range 6 {
			w.change(fmt.Sprint("a", i), "red")
		}
		st, first, last := w.state, w.st.LogStats().First, w.st.LogStats().Last
		for keeps, want := range map[uint64]bool{first: false, first + 2: false, first + 4: true, last + 1: true} {
			w.r.log = &trimmed{Log: w.st, first: keeps}
			watches := NewWatches(st.Watches, func(*plan.Watch, schema.GroupResource, string) bool { return true }, nil)
			b, err := w.r.Rehearse(t.Context(), st, st, watches, watches, time.Time{}, w.now(), func(int) {})
			w.must(err)
			if b.Overtaken != want {
				t.Errorf("the log begins at %d in place of %d, up to %d: %+v", keeps, first, last, b)
			}
		}
	})
}
