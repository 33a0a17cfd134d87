package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// diary is what happens to the sinks of a test, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) of() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// noted is the settings of a sink that writes into a diary; as a Sink, the opened one.
type noted struct {
	*diary
	name   string
	broken bool // it does not open
}

func (noted) Validate() error          { return nil }
func (noted) Defaults() sinks.Delivery { return sinks.Delivery{} }

func (n noted) Open(context.Context, sinks.Options) (sinks.Sink, error) {
	if n.broken {
		n.write("%s does not open", n.name)
		return nil, errors.New("broken")
	}
	n.write("%s opens", n.name)
	return n, nil
}

func (n noted) Write(_ context.Context, batch []*event.Event) error {
	for _, e := range batch {
		n.write("%s gets %s %s", n.name, e.Type, e.Name)
	}
	return nil
}

func (n noted) Close(context.Context) error {
	n.write("%s closes", n.name)
	return nil
}

// TestSinkSet changes the sinks of a running pipeline.
func TestSinkSet(t *testing.T) {
	const worker, other = "first", "second"
	for _, tc := range []struct {
		name   string
		before []string // settings of sink a, in force when v is added
		after  []string // then, when w is added
		from   string
		want   []string
	}{
		{
			name: "added, from now", after: []string{worker},
			want: []string{"first opens", "first gets added w"},
		},
		{
			name: "added, from the log", after: []string{worker}, from: plan.StartEarliest,
			want: []string{"first opens", "first gets added v", "first gets added w"},
		},
		{
			name: "added, from a snapshot", after: []string{worker}, from: plan.StartSnapshot,
			want: []string{"first opens", "first gets sync v", "first gets added w"},
		},
		{
			name: "kept", before: []string{worker}, after: []string{worker},
			want: []string{"first opens", "first gets added v", "first gets added w"},
		},
		{
			name: "replaced", before: []string{worker}, after: []string{other},
			want: []string{"first opens", "first gets added v", "first closes", "second opens", "second gets added w"},
		},
		{
			name: "replaced, from the log", before: []string{worker}, after: []string{other}, from: plan.StartEarliest,
			want: []string{"first opens", "first gets added v", "first closes", "second opens", "second gets added w"},
		},
		{
			name: "removed", before: []string{worker},
			want: []string{"first opens", "first gets added v", "first closes"},
		},
		{
			name: "replaced by one that does not open, and put back", before: []string{worker}, after: []string{"broken", worker},
			want: []string{"first opens", "first gets added v", "first closes", "broken does not open", "first opens", "first gets added w"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, t.TempDir())
			d := &diary{}
			state := func(settings string) *plan.State {
				to := []string{"b"}
				if settings != "" {
					to = append(to, "a")
				}
				return l.state([]route.Spec{leadTo("r", "", to...)}, func(s *plan.Sink) {
					if s.Name == "a" {
						s.Config, s.Fingerprint, s.StartFrom = noted{d, settings, settings == "broken"}, settings, tc.from
					}
				})
			}
			for i, settings := range []([]string){tc.before, tc.after} {
				if len(settings) == 0 {
					settings = []string{""}
				}
				for j, one := range settings {
					if err := l.m.Apply(t.Context(), state(one)); err != nil {
						t.Fatal(err)
					}
					if tc.from == plan.StartSnapshot && one == worker { // the order of v and w is not promised
						eventually(t, "the snapshot", func() bool { return slices.Contains(d.of(), "first gets sync v") })
					}
					if j == 0 {
						l.put([]string{"v", "w"}[i], fmt.Sprint(i+1))
					}
					switch one {
					case "":
					case "broken":
						eventually(t, "an attempt", func() bool { return slices.Contains(d.of(), "broken does not open") })
					default:
						eventually(t, "an empty queue", func() bool {
							q, err := l.Store.Queue("a")
							return err == nil && q.Stats().Length == 0 && !q.Filling()
						})
					}
				}
			}
			got := slices.CompactFunc(d.of(), func(a, b string) bool { return a == b && a == "broken does not open" })
			got = slices.DeleteFunc(got, func(line string) bool { return line == "broken closes" })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// slow is the settings of a sink whose writes end when the test says so.
type slow struct{ writing, release chan struct{} }

func (slow) Validate() error                                           { return nil }
func (slow) Defaults() sinks.Delivery                                  { return sinks.Delivery{} }
func (s slow) Open(context.Context, sinks.Options) (sinks.Sink, error) { return s, nil }
func (slow) Close(context.Context) error                               { return nil }

func (s slow) Write(ctx context.Context, _ []*event.Event) error {
	s.writing <- struct{}{}
	select {
	case <-s.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestSinksStopTogether changes several sinks with writes in flight: the writes are waited
// for together, as each may take as long as its timeout.
func TestSinksStopTogether(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after []route.Spec
	}{
		{"replaced", []route.Spec{leadTo("r", "", "a", "b", "c")}},
		{"removed", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, t.TempDir())
			settings := slow{make(chan struct{}, 3), make(chan struct{})}
			l.apply([]route.Spec{leadTo("r", "", "a", "b", "c")}, func(s *plan.Sink) { s.Config = settings })
			l.put("v", "1")
			l.m.mu.Lock()
			workers := slices.Collect(maps.Values(l.m.sinks))
			l.m.mu.Unlock()
			for range workers {
				<-settings.writing
			}
			applied := make(chan error, 1)
			next := l.state(tc.after, func(s *plan.Sink) { s.Fingerprint = "other" })
			go func() { applied <- l.m.Apply(t.Context(), next) }()
			eventually(t, "all sinks wait for their writes", func() bool {
				return len(workers) == 3 && !slices.ContainsFunc(workers, func(sw *sinkWorker) bool { return sw.worker.Status().State != delivery.Draining })
			})
			for _, sink := range l.m.reader.Status().Sinks {
				if sink.Name != "sink" && (sink.State != string(delivery.Draining) || sink.InFlight != 1) {
					t.Errorf("status of a sink that is waited for: %+v", sink)
				}
			}
			_, skip := l.m.SkipEvent(t.Context(), "a", 0)
			resumed := make(chan error, 1)
			go func() { resumed <- l.m.ResumeSink(t.Context(), "a") }()
			close(settings.release)
			if err := <-applied; err != nil {
				t.Error(err)
			}
			// A sink that is replaced is a known one.
			_, unknown := errors.AsType[*UnknownError](<-resumed)
			if known := tc.after != nil; unknown == known || known && !errors.Is(skip, delivery.ErrNotDelivering) {
				t.Errorf("resume: unknown %t; skip: %v", unknown, skip)
			}
		})
	}
}

// TestPauseSink pauses a sink over a reload and a restart; another one gets its events.
func TestPauseSink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := &diary{}
	apply := func(l *life, fingerprint string) {
		l.apply([]route.Spec{leadTo("r", "", "a", "b")}, func(s *plan.Sink) { s.Config, s.Fingerprint = noted{d, s.Name, false}, fingerprint })
	}
	expect := func(l *life, waiting int, lines ...string) {
		l.Helper()
		eventually(l.T, "deliveries", func() bool {
			return len(l.queued("a")) == waiting && len(l.queued("b")) == 0
		})
		got := slices.DeleteFunc(d.of(), func(line string) bool { return !strings.HasPrefix(line, "a gets") })
		if diff := cmp.Diff(lines, got, cmpopts.EquateEmpty()); diff != "" {
			l.Errorf("(-want +got):\n%s", diff)
		}
		var st delivery.Status
		eventually(l.T, "the state", func() bool {
			l.m.mu.Lock()
			defer l.m.mu.Unlock()
			st = l.m.sinks["a"].worker.Status()
			return (st.State == delivery.Paused) == (waiting > 0)
		})
		if st.OnRequest != (waiting > 0) {
			l.Errorf("status %+v", st)
		}
	}
	for _, tc := range []struct {
		name string
		run  func(l *life)
	}{
		{"paused", func(l *life) {
			apply(l, "one")
			if _, ok := errors.AsType[*UnknownError](l.m.PauseSink(l.Context(), "c")); !ok {
				l.Error("an unknown sink is paused")
			}
			if err := l.m.PauseSink(l.Context(), "a"); err != nil {
				l.Fatal(err)
			}
			l.put("v", "1")
			expect(l, 1)
			apply(l, "two")
			l.put("w", "2")
			expect(l, 2)
		}},
		{"restarted", func(l *life) {
			apply(l, "two")
			l.put("x", "3")
			expect(l, 3)
			if err := l.m.ResumeSink(l.Context(), "a"); err != nil {
				l.Fatal(err)
			}
			expect(l, 0, "a gets added v", "a gets added w", "a gets added x")
		}},
		{"resumed and purged", func(l *life) {
			apply(l, "two")
			l.put("y", "4")
			expect(l, 0, "a gets added v", "a gets added w", "a gets added x", "a gets added y")
			if err := l.m.PauseSink(l.Context(), "a"); err != nil {
				l.Fatal(err)
			}
			l.apply(nil)
			if err := l.m.PurgeSink(l.Context(), "a"); err != nil {
				l.Fatal(err)
			}
			if _, found, err := l.Store.Meta(pausedMeta + "a"); found || err != nil {
				l.Errorf("the pause stays: %t, %v", found, err)
			}
			if err := ledger.PutMeta(l.Store, pausedMeta+"a", nil); err != nil { // as left by an interrupted purge
				l.Fatal(err)
			}
			_ = l.m.PurgeSink(l.Context(), "a")
			if _, found, err := l.Store.Meta(pausedMeta + "a"); found || err != nil {
				l.Errorf("the pause of a purged sink stays: %t, %v", found, err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(newLife(t, dir)) })
	}
}

// TestPurgeBeforeTheFirstState purges a sink before a configuration is in force, as while a start waits for the API server:
// the sink may be configured, and its backlog stays.
func TestPurgeBeforeTheFirstState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	routes := []route.Spec{leadTo("r", "", "a")}
	t.Run("record", func(t *testing.T) {
		l := newLife(t, dir)
		l.apply(routes)
		l.put("v", "1")
	})
	l := newLife(t, dir)
	if err := l.m.PurgeSink(t.Context(), "a"); !errors.Is(err, ErrNotApplied) {
		t.Errorf("the purge: %v", err)
	}
	l.apply(routes)
	if got := strings.Join(l.queued("a"), ", "); got != "added v 1" {
		t.Errorf("the sink has %q", got)
	}
}

// TestSinceLeft selects what of the log a sink gets that is back.
func TestSinceLeft(t *testing.T) {
	t.Parallel()
	specs := func(all ...route.Spec) *plan.State {
		router, err := route.Compile(all)
		if err != nil {
			t.Fatal(err)
		}
		return &plan.State{Watches: []plan.Watch{{Name: "w"}, {Name: "other"}}, Routes: all, Router: router, Sinks: []plan.Sink{{Name: "a"}}}
	}
	patches := leadTo("mine", "", "a")
	patches.Payload = []string{"patch"}
	whole := plan.DefaultRoute()
	whole.Sinks = []string{"a"}
	apart := leadTo("mine", "", "a")
	apart.Watches = []string{"other"}
	nodes := leadTo("mine", "", "a")
	nodes.Resources = []string{"nodes"}
	target := func(sink, routes string, flags record.Flags) []record.Target {
		return []record.Target{{Sink: sink, Routes: routes, Flags: flags}}
	}
	for _, tc := range []struct {
		name    string
		st      *plan.State
		targets []record.Target
		gap     string
		want    record.Flags
		ok      bool
	}{
		{"it was given it", specs(), target("a", "gone", record.Object), "", record.Object | record.Replay, true},
		{"its route led on", specs(patches), target("b", "other,mine", record.Object), "", record.Patch, true},
		{"with the selection of that time", specs(patches), target("b", "mine", record.Flags(0).WithSelection(event.Left)), "", record.Patch.WithSelection(event.Left), true},
		{"another route led on", specs(patches), target("b", "other", record.Object), "", 0, false},
		{"no route led on, and it takes everything", specs(whole), nil, "", record.Object, true},
		{"no route led on", specs(patches), nil, "", 0, false},
		{"a gap of a sink", specs(whole), target("b", "", 0), commit.CauseRemoved, 0, false},
		{"a gap", specs(patches), target("b", "", 0), dynamicfactory.CauseExpired, 0, true},
		{"a gap while there was no sink", specs(whole), nil, dynamicfactory.CauseExpired, 0, true},
		{"a gap of another watch", specs(apart), target("b", "", 0), dynamicfactory.CauseExpired, 0, false},
		{"a gap of another resource", specs(nodes), target("b", "", 0), dynamicfactory.CauseExpired, 0, false},
		{"a gap of the history", specs(whole), nil, record.CauseQuiet, 0, false},
	} {
		r := record.Record{Event: event.Event{ID: "00ff", Type: event.Added, Time: time.Unix(1, 0), Resource: event.Resource{Version: "v1", Resource: "pods"}}, Targets: tc.targets}
		if tc.gap != "" {
			r.Event.Type, r.Event.Gap = event.Gap, &event.GapData{Watch: "w", Cause: tc.gap}
		}
		payload, err := record.Append(nil, &r)
		if err != nil {
			t.Fatal(err)
		}
		if chosen, ok, err := sinceLeft(tc.st, "a")(&store.Item{Payload: payload}); record.Flags(chosen.Flags) != tc.want || ok != tc.ok || err != nil {
			t.Errorf("%s: flags %b, %t, %v; want %b, %t", tc.name, chosen.Flags, ok, err, tc.want, tc.ok)
		}
	}
	gone := specs(apart)
	gone.Watches = gone.Watches[1:]
	r := record.Record{Event: event.Event{ID: "00ff", Type: event.Gap, Time: time.Unix(1, 0), Gap: &event.GapData{Watch: "w", Cause: dynamicfactory.CauseExpired}}}
	payload, err := record.Append(nil, &r)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := sinceLeft(gone, "a")(&store.Item{Payload: payload}); !ok || err != nil {
		t.Errorf("a gap of a watch that is gone: %t, %v", ok, err)
	}
	if _, ok, err := sinceLeft(specs(whole), "a")(&store.Item{Payload: []byte("damaged")}); ok || err != nil {
		t.Error("a damaged record is selected")
	}
}

// TestAbsence follows the routes of a sink that is not configured.
func TestAbsence(t *testing.T) {
	t.Parallel()
	before := routePrints{"r": {"x", []string{"a", "b"}}, "other": {"y", []string{"b"}}}
	left := absence{Routes: routePrints{"r": before["r"]}}
	for _, tc := range []struct {
		name string
		now  routePrints
		want absence
	}{
		{"its route stays", routePrints{"r": {"x", []string{"b"}}}, left},
		{"its route leads nowhere", routePrints{"r": {"x", nil}}, left},
		{"its route takes others", routePrints{"r": {"z", []string{"b"}}}, absence{Routes: routePrints{}, Broken: true}},
		{"its route goes", routePrints{"other": before["other"]}, absence{Routes: routePrints{}, Broken: true}},
	} {
		if diff := cmp.Diff(tc.want, before.leave("a").under(tc.now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	if unknown := routePrints(nil).leave("a"); !unknown.Broken {
		t.Error("nothing was known of its routes, and nothing is missing")
	}
	broken := absence{Routes: routePrints{}, Broken: true}
	if diff := cmp.Diff(broken, broken.under(before)); diff != "" {
		t.Errorf("what is broken stays so (-want +got):\n%s", diff)
	}
}
