package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// closedSink is the settings of a sink that cannot be opened: what is queued for it
// stays.
type closedSink struct{ sinks.Config }

func (closedSink) Open(context.Context, sinks.Options) (sinks.Sink, error) {
	return nil, errors.New("closed")
}

// life is a pipeline that runs without an API server; changes are handed to it.
type life struct {
	*rig
	ended chan error
	stop  context.CancelFunc
}

func newLife(t *testing.T, dir string) *life {
	t.Helper()
	return lifeOn(t, dir, store.Options{}, allServed)
}

func lifeOn(t *testing.T, dir string, opts store.Options, resolver Resolver) *life {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // it ends before the store is closed
	l := &life{rig: idleRig(t, dir, opts, resolver), ended: make(chan error, 1), stop: stop}
	l.m.setState(nil)
	go func() { l.ended <- l.m.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
	})
	return l
}

// apply applies a state with one watch of pods, the routes, and the sinks that they
// name.
func (l *life) apply(routes []route.Spec, edit ...func(*plan.Sink)) {
	l.Helper()
	if err := l.m.Apply(l.Context(), l.state(routes, edit...)); err != nil {
		l.Fatal(err)
	}
}

func (l *life) state(routes []route.Spec, edit ...func(*plan.Sink)) *plan.State {
	l.Helper()
	st := &plan.State{Watches: []plan.Watch{committest.PodWatch()}, Routes: routes, Store: plan.Store{RetentionMaxAge: time.Hour}}
	var err error
	if st.Router, err = route.Compile(routes); err != nil {
		l.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		if slices.ContainsFunc(routes, func(r route.Spec) bool { return slices.Contains(r.Sinks, name) }) {
			s := plan.Sink{Name: name, Config: closedSink{}, StartFrom: plan.StartLatest, Fingerprint: name}
			for _, f := range edit {
				f(&s)
			}
			st.Sinks = append(st.Sinks, s)
		}
	}
	return st
}

// put has a pod change, and returns when that is committed.
func (l *life) put(name, version string, labels ...string) {
	l.Helper()
	for _, s := range l.m.informerList() {
		addedTo(s.Feed, l.Object(name, "uid-"+name, version, labels...)).to(l.m.committer.Handler(s.Feed))
	}
	l.m.committer.Flush()
}

func (l *life) delete(name, version string) {
	l.Helper()
	for _, s := range l.m.informerList() {
		deletedFrom(s.Feed, l.Object(name, "uid-"+name, version)).to(l.m.committer.Handler(s.Feed))
	}
	l.m.committer.Flush()
}

// lose has the watch of pods lose history.
func (l *life) lose() {
	l.Helper()
	for _, s := range l.m.informerList() {
		now := l.m.cfg.Now()
		l.m.committer.HistoryLost(s.Feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, FromTime: now.Add(-time.Hour), ToTime: now})
	}
	l.m.committer.Flush()
}

// queued are the events that a sink has yet to take.
func (l *life) queued(sink string) (list []string) {
	l.Helper()
	for _, e := range l.given(sink) {
		text := fmt.Sprintf("%s %s %s", e.Type, e.Name, e.ResourceVersion)
		if e.Type == event.Gap {
			text = "gap " + e.Gap.Cause
		}
		if e.Replay {
			text += " again"
		}
		list = append(list, text)
	}
	return list
}

func leadTo(name, when string, sinks ...string) route.Spec {
	return route.Spec{Name: name, When: when, Sinks: sinks}
}

// TestSinkIsPutBack takes a sink out of the configuration and puts it back, in one life
// or over a restart: it misses nothing, or is told what it misses.
func TestSinkIsPutBack(t *testing.T) {
	both, one := []route.Spec{leadTo("all", "", "a", "b")}, []route.Spec{leadTo("all", "", "b")}
	const meanwhile = "added w 2, updated w 3, gap expired, deleted w 4"
	for _, tc := range []struct {
		name         string
		with, absent []route.Spec
		then         []route.Spec // nil: with
		from         string
		want         string
	}{
		{"its route stays", both, one, nil, plan.StartLatest, "added v 1, " + meanwhile + ", added x 5"},
		{"it was the only one", []route.Spec{leadTo("default", "", "a")}, nil, nil, plan.StartLatest, "added v 1, " + meanwhile + ", added x 5"},
		{
			"its route goes, and others take what it took",
			[]route.Spec{leadTo("mine", "true", "a"), leadTo("all", "", "b")},
			one, nil, plan.StartLatest,
			"added v 1, gap expired, gap removed, added x 5",
		},
		{
			"its route becomes another", both, one,
			[]route.Spec{leadTo("all", `metadata.name != "z"`, "a", "b")},
			plan.StartLatest,
			"added v 1, " + meanwhile + ", added x 5",
		},
		{
			"its route was another", both,
			[]route.Spec{leadTo("all", `metadata.name != "w"`, "b")},
			nil, plan.StartLatest,
			"added v 1, gap expired, gap removed, added x 5",
		},
		{"another route leads to it", both, one, []route.Spec{one[0], leadTo("new", "", "a")}, plan.StartLatest, "added v 1, gap expired, gap removed, added x 5"},
		{"from the start", both, one, nil, plan.StartEarliest, "added v 1, added v 1 again, " + meanwhile + ", added x 5"},
		{"from a snapshot", both, one, nil, plan.StartSnapshot, "added v 1, " + meanwhile + ", sync v 1, added x 5"},
		{"a new route leads to it, too", both, one, []route.Spec{both[0], leadTo("new", "", "a")}, plan.StartLatest, "added v 1, " + meanwhile + ", added x 5"},
	} {
		then := tc.then
		if then == nil {
			then = tc.with
		}
		from := func(s *plan.Sink) { s.StartFrom = tc.from }
		t.Run(tc.name, func(t *testing.T) {
			expect := func(l *life) {
				l.Helper()
				if got := strings.Join(l.queued("a"), ", "); got != tc.want {
					l.Errorf("the sink gets\n%s, want\n%s", got, tc.want)
				}
			}
			// rejoin waits for the snapshot, which is delivered beside changes of other objects.
			rejoin := func(l *life) {
				l.apply(then, from)
				if tc.from == plan.StartSnapshot {
					eventually(l, "a snapshot", func() bool { return slices.Contains(l.queued("a"), "sync v 1") })
				}
			}
			change := func(l *life) {
				l.put("w", "2")
				l.put("w", "3")
				l.lose()
				l.delete("w", "4")
			}
			t.Run("reload", func(t *testing.T) {
				l := newLife(t, t.TempDir())
				l.apply(tc.with)
				l.put("v", "1")
				l.apply(tc.absent)
				change(l)
				rejoin(l)
				l.put("x", "5")
				expect(l)
				// What it was given is not given again.
				l.apply(then, from)
				expect(l)
			})
			dir := t.TempDir()
			for step, f := range []func(*life){
				func(l *life) { l.apply(tc.with); l.put("v", "1") },
				func(l *life) { l.apply(tc.absent); change(l) },
				func(l *life) { l.apply(tc.absent) },
				func(l *life) { rejoin(l); l.put("x", "5"); expect(l) },
				func(l *life) { l.apply(then, from); expect(l) },
			} {
				t.Run(fmt.Sprintf("life %d", step+1), func(t *testing.T) { f(newLife(t, dir)) })
			}
		})
	}
}

// A sink that comes back to watches without a history gets a gap for the time in which
// there was no sink: nothing was recorded.
func TestSinkIsPutBackWithoutHistory(t *testing.T) {
	l := newLife(t, t.TempDir())
	apply := func(routes ...route.Spec) {
		t.Helper()
		st := l.state(routes)
		st.Watches[0].History = false
		if err := l.m.Apply(t.Context(), st); err != nil {
			t.Fatal(err)
		}
	}
	apply(leadTo("default", "", "a"))
	l.put("v", "1")
	apply()
	l.put("w", "2")
	apply(leadTo("default", "", "a"))
	l.put("x", "5")
	if got, want := strings.Join(l.queued("a"), ", "), "added v 1, gap removed, added x 5"; got != want {
		t.Errorf("the sink gets\n%s, want\n%s", got, want)
	}
}

// A gap tells from when to when nothing is known.
func TestGapOfAnAbsence(t *testing.T) {
	l := newLife(t, t.TempDir())
	now := time.Unix(1_900_000_000, 0)
	l.apply([]route.Spec{leadTo("mine", "true", "a"), leadTo("all", "", "b")})
	l.apply([]route.Spec{leadTo("all", "", "b")})
	l.apply([]route.Spec{leadTo("mine", "true", "a"), leadTo("all", "", "b")})
	given := l.given("a")
	if len(given) != 1 {
		t.Fatalf("%d events", len(given))
	}
	e := given[0]
	if e.Gap == nil || e.Gap.Watch != "w" || e.Gap.Resource.String() != "pods.v1" || !e.Gap.From.Before(now) || e.Gap.To.IsZero() {
		t.Errorf("gap %+v", e.Gap)
	}
	// The other sink is not concerned.
	if queued := l.queued("b"); len(queued) > 0 {
		t.Errorf("the other sink gets %q", queued)
	}
	// Replaying the log tells the gap to nobody else.
	if n, err := l.m.Replay(t.Context(), "b", store.ReplayRange{}, nil); n != 0 || err != nil {
		t.Errorf("%d replayed, %v", n, err)
	}
}

// TestGapOfAnAbsenceBehindAWatch takes a sink out while its watch is behind, and puts it back when retention has removed
// what was recorded then: the gap of the absence begins with the changes that the sink was not given.
func TestGapOfAnAbsenceBehindAWatch(t *testing.T) {
	dir := t.TempDir()
	var now atomic.Int64
	now.Store(rigTime().UnixNano())
	opts := store.Options{Now: func() time.Time { return time.Unix(0, now.Load()) }}
	with := []route.Spec{leadTo("default", "", "a")}
	known := rigTime().Add(-20 * time.Minute)
	absent := func(l *life) {
		st := l.state(nil)
		st.Store.RetentionMaxBytes = 1
		if err := l.m.Apply(l.Context(), st); err != nil {
			l.Fatal(err)
		}
	}
	t.Run("it leaves", func(t *testing.T) {
		l := lifeOn(t, dir, opts, allServed)
		cp := ledger.Checkpoint{ResourceVersion: "1", Synced: true, Time: known}
		if err := ledger.PutMeta(l.Store, ledger.CheckpointMeta("pods#"), ledger.Encode(cp)); err != nil {
			t.Fatal(err)
		}
		l.apply(with)
		absent(l)
	})
	t.Run("it is back", func(t *testing.T) {
		l := lifeOn(t, dir, opts, allServed)
		absent(l)
		for _, s := range l.m.informerList() {
			l.m.committer.HistoryLost(s.Feed, dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, FromTime: known, ToTime: opts.Now()})
		}
		l.put("w", "2")
		lost := l.Store.LogStats().Last
		for version := 3; version < 6; version++ { // segments of the log
			now.Add(int64(2 * time.Minute))
			l.put("w", fmt.Sprint(version))
		}
		defer l.upkeep()()
		eventually(t, "retention", func() bool { return l.Store.LogStats().First > lost })
		l.apply(with)
		given := l.given("a")
		if len(given) == 0 {
			t.Fatal("it is given nothing")
		}
		last := given[len(given)-1]
		if last.Gap == nil || last.Gap.Cause != commit.CauseRemoved || !last.Gap.From.Equal(known) || last.Gap.To.Before(rigTime()) {
			t.Errorf("it is given %q, with the gap %+v, want one from %s", l.queued("a"), last.Gap, known)
		}
	})
}

// TestPutBackToOtherSelections puts a sink back whose watch selects by other rules now: it is given what was recorded for it
// meanwhile, whatever it starts from.
func TestPutBackToOtherSelections(t *testing.T) {
	both, one := []route.Spec{leadTo("all", "", "a", "b")}, []route.Spec{leadTo("all", "", "b")}
	for name, now := range map[string]plan.Watch{
		"by labels of namespaces that are not known": committest.PodWatch(committest.ProdPods),
		"by other labels": committest.PodWatch(func(w *plan.Watch) {
			w.Selection.Labels = "app=other"
			var err error
			if w.Filter, err = w.Selection.Filter(); err != nil {
				t.Fatal(err)
			}
		}),
	} {
		for _, from := range []string{plan.StartLatest, plan.StartEarliest} {
			t.Run(name+", "+from, func(t *testing.T) {
				l := newLife(t, t.TempDir())
				l.apply(both)
				l.lose()
				l.put("v", "1")
				l.apply(one)
				l.put("w", "2")
				l.delete("w", "3")
				st := l.state(both, func(s *plan.Sink) { s.StartFrom = from })
				st.Watches[0] = now
				if err := l.m.Apply(t.Context(), st); err != nil {
					t.Fatal(err)
				}
				want := "gap expired, added v 1, added w 2, deleted w 3"
				if from == plan.StartEarliest {
					want = "gap expired, added v 1, gap expired again, added w 2, deleted w 3"
				}
				if got := strings.Join(l.queued("a"), ", "); got != want {
					t.Errorf("the sink gets\n%s, want\n%s", got, want)
				}
			})
		}
	}
}

// TestPutBackFromTheStartAgain takes a sink that starts from the beginning of the log out, and puts it back, twice: what it
// was filled with is a replay, too, and so is what was recorded before it was there.
func TestPutBackFromTheStartAgain(t *testing.T) {
	both, one := []route.Spec{leadTo("all", "", "a", "b")}, []route.Spec{leadTo("all", "", "b")}
	earliest := func(s *plan.Sink) { s.StartFrom = plan.StartEarliest }
	l := newLife(t, t.TempDir())
	l.apply(one)
	l.put("v", "1")
	l.apply(both, earliest)
	for _, version := range []string{"2", "3"} {
		l.apply(one)
		l.put("v", version)
		l.apply(both, earliest)
	}
	const want = "added v 1, added v 1 again, updated v 2, added v 1 again, updated v 2 again, updated v 3"
	if got := strings.Join(l.queued("a"), ", "); got != want {
		t.Errorf("the sink gets\n%s, want\n%s", got, want)
	}
}

// TestPutBackOverDamage puts a sink back, for which a part of the log cannot be read: a dead
// letter tells of it, as it does to the sinks that were there.
func TestPutBackOverDamage(t *testing.T) {
	both, one := []route.Spec{leadTo("all", "", "a", "b")}, []route.Spec{leadTo("all", "", "b")}
	for _, from := range []string{plan.StartLatest, plan.StartEarliest} {
		t.Run(from, func(t *testing.T) {
			dir := t.TempDir()
			const pods = 300
			t.Run("away", func(t *testing.T) {
				l := newLife(t, dir)
				l.apply(both)
				l.apply(one)
				for i := range pods {
					l.put(fmt.Sprintf("pod-%03d", i), fmt.Sprint(i+1))
				}
			})
			t.Run("tables", func(t *testing.T) { newLife(t, dir) }) // its log becomes tables
			damageTables(t, dir, []byte{layout.PrefixLog, 0, 6})    // sequences are microseconds
			l := newLife(t, dir)
			l.apply(both, func(s *plan.Sink) { s.StartFrom = from })
			got := l.queued("a")
			q, err := l.Store.Queue("a")
			if err != nil {
				t.Fatal(err)
			}
			letters, err := q.DeadLetters(0, 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) < pods/2 || len(got) >= pods || len(letters) != 1 || letters[0].Reason != store.ReasonUnreadable {
				t.Errorf("%d of %d events, dead letters %+v", len(got), pods, letters)
			}
		})
	}
}
