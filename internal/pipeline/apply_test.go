package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
)

func TestRouteFailuresAreLoggedOnce(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	router, err := route.Compile([]route.Spec{{Name: "bad", When: `int(metadata.name) > 1`, Sinks: []string{"sink"}}})
	if err != nil {
		t.Fatal(err)
	}
	logs := &countingHandler{}
	r.m.log = logs.logger()
	r.m.prepareRouter(router)
	r.adoptRouter(router)
	s := r.source(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1")), addedTo(s, r.Object("b", "u2", "2")))
	if n := logs.count.Load(); n != 1 {
		t.Errorf("%d messages for two failures, want 1", n)
	}
	if stats := router.Stats()[0]; stats.Errors != 2 {
		t.Errorf("stats are %+v", stats)
	}
}

// note overwrites what the store remembers under a key.
func (l *life) note(key, value string) {
	l.Helper()
	if err := ledger.PutMeta(l.Store, key, []byte(value)); err != nil {
		l.Fatal(err)
	}
}

// reshaped is a state that differs from the one of the routes in everything that a reload
// changes: a new scope and edits of the watch, a sink that goes, one that is replaced, and
// one that is new and starts with a snapshot or with the log.
func reshaped(l *life, from string) *plan.State {
	l.Helper()
	st := l.state([]route.Spec{leadTo("r", "", "b", "c")}, func(s *plan.Sink) {
		s.Fingerprint += " replaced"
		if s.Name == "c" {
			s.StartFrom = from
		}
	})
	st.Watches[0].Namespaces, st.Watches[0].Fingerprint = []string{"ns"}, "narrow"
	st.Watches[0].Edits.Drop = append(st.Watches[0].Edits.Drop, "spec.a")
	st.Hash = "reshaped"
	return st
}

// TestRefusedStateChangesNothing applies states that cannot run, over what the store
// remembers or a damage to it: the informer, the sinks and the routes of the old state stay.
func TestRefusedStateChangesNothing(t *testing.T) {
	for _, tc := range []struct {
		name   string
		spoil  func(*plan.State)
		damage [2]string
	}{
		{name: "a selector that cannot be watched", spoil: func(st *plan.State) { st.Watches[0].ServerLabels = "!!" }},
		{name: "a resource that is insisted on", spoil: func(st *plan.State) {
			st.Watches[0].Resources, st.Watches[0].FailOnMissing = []string{"gadgets"}, true
		}},
		{name: "watches that edit the same objects differently", spoil: func(st *plan.State) {
			st.Watches = append(st.Watches, committest.PodWatch(named("other")))
		}},
		{name: "an edit that does not compile", spoil: func(st *plan.State) { st.Watches[0].Edits.Drop = []string{"spec["} }},
		{name: "an edit of a route that does not compile", spoil: func(st *plan.State) { st.Routes[0].Drop = []string{"spec["} }},
		{name: "a damaged selection", damage: [2]string{ledger.SelectionKey("w", "pods#"), "damaged"}},
		{name: "a selection that does not compile", damage: [2]string{ledger.SelectionKey("w", "pods#"), `{"rules":{"labels":"!!"}}`}},
		{name: "a damaged snapshot", damage: [2]string{"snapshot/pods#/w/a/", "damaged"}},
		{name: "damaged routes", damage: [2]string{routesMeta, "damaged"}},
		{name: "a damaged absence of a sink", damage: [2]string{leftMeta + "sink", "damaged"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, t.TempDir())
			l.apply([]route.Spec{leadTo("r", "", "a", "b")})
			l.put("v", "1")
			running, sink, sinks := l.m.informerList()[0], l.m.sinks["b"], l.Store.Sinks()
			next := reshaped(l, plan.StartEarliest)
			if tc.spoil != nil {
				tc.spoil(next)
			}
			if key := tc.damage[0]; key != "" {
				l.note(key, tc.damage[1])
			}
			if err := l.m.Apply(t.Context(), next); err == nil || errors.Is(err, commit.ErrEnded) {
				t.Fatalf("applied: %v", err)
			}
			if now := l.m.informerList(); len(now) != 1 || now[0] != running || l.m.sinks["b"] != sink || l.m.currentState() == next {
				t.Error("something of the old state has stopped")
			}
			if diff := cmp.Diff(sinks, l.Store.Sinks()); diff != "" {
				t.Errorf("sinks (-before +after):\n%s", diff)
			}
			l.put("w", "2")
			for _, name := range []string{"a", "b"} {
				if diff := cmp.Diff([]string{"added v 1", "added w 2"}, l.queued(name)); diff != "" {
					t.Errorf("sink %s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// TestApplyGoesOverDamage applies a state although a part of what the store remembers is
// damaged, and no part that the state needs.
func TestApplyGoesOverDamage(t *testing.T) {
	for _, key := range []string{ledger.CheckpointMeta("pods#"), ledger.UnwatchedMeta + "pods", unservedMeta + "pods"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, t.TempDir())
			l.apply([]route.Spec{leadTo("r", "", "a", "b")})
			l.put("v", "1")
			l.note(key, "damaged")
			if err := l.m.Apply(t.Context(), reshaped(l, plan.StartLatest)); err != nil {
				t.Fatal(err)
			}
			l.put("w", "2")
			if diff := cmp.Diff([]string{"added v 1", "added w 2"}, l.queued("b")); diff != "" {
				t.Errorf("sink b (-want +got):\n%s", diff)
			}
		})
	}
}

// brittle fails every sync of the store's log from one on.
type brittle struct {
	left   atomic.Int64
	failed atomic.Bool
}

func (b *brittle) String() string { return "brittle" }

func (b *brittle) MaybeError(op errorfs.Op) error {
	if (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.HasSuffix(op.Path, ".log") && b.left.Add(-1) < 0 {
		b.failed.Store(true)
		return syscall.EIO
	}
	return nil
}

// TestApplyThatTheStoreFails fails each write of a reload in turn. The pipeline ends with
// the store's error, and its successor gives the sinks of either state what they would
// have been given.
func TestApplyThatTheStoreFails(t *testing.T) {
	const never = 1 << 40
	before := []route.Spec{leadTo("r", "", "a", "b")}
	for _, tc := range []struct {
		name    string
		from    string // how the new sink starts
		returns bool   // the successor starts with the old state
		want    map[string][]string
	}{
		{"a sink from the log", plan.StartEarliest, false, map[string][]string{
			"b": {"added v 1", "added w 2"}, "c": {"added v 1", "added w 2"},
		}},
		{"a sink from a snapshot", plan.StartSnapshot, false, map[string][]string{
			"b": {"added v 1", "added w 2"}, "c": {"sync v 1", "added w 2"},
		}},
		{"back to the old state", plan.StartEarliest, true, map[string][]string{
			"a": {"added v 1", "added w 2"}, "b": {"added v 1", "added w 2"},
		}},
	} {
		for n, applied := int64(0), false; !applied; n++ {
			t.Run(fmt.Sprintf("%s, write %d", tc.name, n), func(t *testing.T) {
				disk, fault := vfs.NewCrashableMem(), &brittle{}
				fault.left.Store(never)
				t.Run("fail", func(t *testing.T) {
					l := lifeOn(t, "store", store.Options{FS: errorfs.Wrap(disk, fault)}, allServed)
					l.apply(before)
					l.put("v", "1")
					fault.left.Store(n)
					err := l.m.Apply(t.Context(), reshaped(l, tc.from))
					fault.left.Store(never)
					if applied = !fault.failed.Load(); applied {
						if err != nil {
							t.Error(err)
						}
						return
					}
					if err != nil && !errors.Is(err, commit.ErrEnded) { // nil: a scrub that the reload has begun failed
						t.Errorf("the reload ends with %v", err)
					}
					if err := <-l.ended; !errors.Is(err, ledger.ErrStore) {
						t.Errorf("the pipeline ends with %v", err)
					}
					l.ended <- nil
				})
				disk = disk.CrashClone(vfs.CrashCloneCfg{})
				t.Run("start", func(t *testing.T) {
					l := lifeOn(t, "store", store.Options{FS: disk}, allServed)
					next := reshaped(l, tc.from)
					if tc.returns {
						next = l.state(before)
					}
					if err := l.m.Apply(t.Context(), next); err != nil {
						t.Fatal(err)
					}
					l.put("w", "2")
					diff := ""
					for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) { // a snapshot comes in the background
						got := map[string][]string{}
						for i := range next.Sinks {
							got[next.Sinks[i].Name] = l.queued(next.Sinks[i].Name)
						}
						if diff = cmp.Diff(byObject(tc.want), byObject(got)); diff == "" {
							return
						}
					}
					t.Errorf("queued (-want +got):\n%s", diff)
				})
			})
		}
	}
}

// byObject has the lines of each sink by object: a snapshot may give one object behind a change
// of another.
func byObject(queued map[string][]string) map[string][]string {
	sorted := map[string][]string{}
	for sink, lines := range queued {
		sorted[sink] = slices.Clone(lines)
		slices.SortStableFunc(sorted[sink], func(a, b string) int { return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1]) })
	}
	return sorted
}

// startHook is called when a watch has started.
type startHook struct {
	slog.Handler
	started func()
}

func (h startHook) Enabled(context.Context, slog.Level) bool { return true }

func (h startHook) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h startHook) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "watch started" {
		h.started()
	}
	return nil
}

// TestSourcesAreShownBeforeTheyStart starts the sources of a watch one after the other, at
// first and by a reload: whenever the status shows the watch it has all of them, those that
// have not started as not synced, so that nobody takes the first for everything.
func TestSourcesAreShownBeforeTheyStart(t *testing.T) {
	api, resolver := clusterOf(t)
	var l *live
	var seen []string
	l = runLogged(t, t.TempDir(), store.Options{}, api, resolver, testKey, startHook{slog.DiscardHandler, func() {
		feeds := l.m.Running().Feeds
		waiting := 0
		for _, f := range feeds {
			if f.Informer == nil {
				waiting++
			}
		}
		seen = append(seen, fmt.Sprintf("%d of %d wait", waiting, len(feeds)))
	}})
	of := func(resources ...string) plan.Watch {
		return committest.PodWatch(func(w *plan.Watch) { w.Resources = resources })
	}
	l.apply(l.state(of("pods", "events")))
	l.apply(l.state(of("pods", "events", "replicasets.apps", "deployments.apps")))
	want := []string{"1 of 2 wait", "0 of 2 wait", "1 of 4 wait", "0 of 4 wait"}
	if d := cmp.Diff(want, seen); d != "" {
		t.Error(d)
	}
}
