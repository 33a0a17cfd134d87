package pipeline

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// fromSnapshot is a state in which sink x is configured, and starts with a snapshot.
func (l *live) fromSnapshot(watches ...plan.Watch) *plan.State {
	l.Helper()
	st := l.routed(watches...)
	st.Sinks = []plan.Sink{{Name: "x", Config: closedSink{}, StartFrom: plan.StartSnapshot, Fingerprint: "x"}}
	return st
}

// unfound is a resolver that knows nothing yet.
func unfound() *names {
	n := serving()
	n.err = dynamicfactory.ErrNotReady
	return n
}

// TestSnapshotOfASinkIsFinished interrupts the snapshot that a new sink starts with: the
// sink is given the rest.
func TestSnapshotOfASinkIsFinished(t *testing.T) {
	edited := committest.PodWatch(func(w *plan.Watch) {
		w.Edits.Drop = append(w.Edits.Drop, "spec.a")
		w.Fingerprint = "edited"
	})
	for name, interrupt := range map[string]func(t *testing.T, l *live, again func(Resolver) *live) *live{
		"a start without the API server": func(_ *testing.T, l *live, again func(Resolver) *live) *live {
			l.stop()
			later := unfound()
			l = again(later)
			l.apply(l.fromSnapshot(committest.PodWatch()))
			later.set(pods)
			return l
		},
		"two starts, one without the API server": func(_ *testing.T, l *live, again func(Resolver) *live) *live {
			l.stop()
			l = again(unfound())
			l.apply(l.fromSnapshot(committest.PodWatch()))
			l.stop()
			l = again(served{pods})
			l.apply(l.fromSnapshot(committest.PodWatch()))
			return l
		},
		"other edits": func(_ *testing.T, l *live, _ func(Resolver) *live) *live {
			l.apply(l.fromSnapshot(edited))
			return l
		},
		"other edits at a start": func(_ *testing.T, l *live, again func(Resolver) *live) *live {
			l.stop()
			l = again(served{pods})
			l.apply(l.fromSnapshot(edited))
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, pod := podServer(t, 3000)
			var fs *vfs.MemFS
			again := func(r Resolver) *live { return runLive(t, "store", store.Options{FS: fs}, api, r) }
			var l *live
			for l == nil || len(l.queued()) == len(pod) { // the snapshot was faster
				if l != nil {
					l.stop()
				}
				fs = vfs.NewCrashableMem()
				l = again(served{pods})
				l.apply(l.state(committest.PodWatch()))
				l.synced()
				l.apply(l.fromSnapshot(committest.PodWatch()))
			}
			l = interrupt(t, l, again)
			eventually(t, "all objects", func() bool { return len(l.queued()) == len(pod) })
		})
	}
}

// TestNewSinkWithoutTheAPIServer makes a sink that starts with a snapshot while the
// resources are not known, and ends before they are.
func TestNewSinkWithoutTheAPIServer(t *testing.T) {
	api, pod := podServer(t, 10)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.stop()
	l = runLive(t, dir, store.Options{}, api, unfound())
	l.apply(l.fromSnapshot(committest.PodWatch()))
	l.stop()
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.fromSnapshot(committest.PodWatch()))
	eventually(t, "all objects", func() bool { return len(l.queued()) == len(pod) })
}

// TestSnapshotIsNotOwedToTheNextSink purges a sink before its first snapshot could begin, and makes one of its name that starts
// with the next change: it gets no snapshot when that is edited later.
func TestSnapshotIsNotOwedToTheNextSink(t *testing.T) {
	api, _ := podServer(t, 3)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.stop()
	resolver := unfound()
	l = runLive(t, dir, store.Options{}, api, resolver)
	l.apply(l.fromSnapshot(committest.PodWatch()))
	l.apply(l.state(committest.PodWatch()))
	if err := l.m.PurgeSink(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	next := l.fromSnapshot(committest.PodWatch())
	next.Sinks[0].StartFrom = plan.StartLatest
	l.apply(next)
	resolver.set(pods)
	l.synced()
	edited := l.fromSnapshot(committest.PodWatch())
	edited.Sinks[0].Fingerprint = "edited"
	l.apply(edited)
	api.Put(podPath, "ns", "new", nil)
	eventually(t, "the next change", func() bool { return len(l.queued()["new"]) > 0 })
	if got := l.queued(); len(got) != 1 {
		t.Errorf("the sink gets %q", got)
	}
}

// TestNewSinkOfAResourceThatIsNotServed makes a sink that starts with a snapshot while one of the recorded resources is not served: the sink is
// given its objects when it is.
func TestNewSinkOfAResourceThatIsNotServed(t *testing.T) {
	for _, stopped := range []bool{false, true} { // before it is served again
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			api, _ := podServer(t, 3)
			api.Serve("/api/v1/nodes", "v1", "Node")
			api.Put("/api/v1/nodes", "", "node", nil)
			w := committest.PodWatch()
			w.Resources = []string{"pods", "nodes"}
			resolver, dir := serving(pods, nodes), t.TempDir()
			l := runLive(t, dir, store.Options{}, api, resolver)
			l.apply(l.state(w))
			eventually(t, "the first lists", func() bool { return len(l.log()) == 4 })
			resolver.set(pods)
			eventually(t, "the nodes are not served", func() bool { return len(l.m.informerList()) == 1 })
			l.apply(l.fromSnapshot(w))
			if stopped {
				l.stop()
				l = runLive(t, dir, store.Options{}, api, resolver)
				l.apply(l.fromSnapshot(w))
			}
			resolver.set(pods, nodes)
			eventually(t, "all objects", func() bool { return len(l.queued()) == 4 })
			if got := l.queued().types("node"); got != "sync" {
				t.Errorf("the node: %q", got)
			}
		})
	}
}

// TestNewWatchLeadsToANewSink adds a watch together with a sink that starts with a snapshot and that a route leads to from the watch:
// the sink is given each object once.
func TestNewWatchLeadsToANewSink(t *testing.T) {
	api, pod := podServer(t, 10)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.apply(l.fromSnapshot(committest.PodWatch(named("new")), committest.PodWatch()))
	eventually(t, "the snapshots are over", func() bool {
		over := true
		err := l.store.ScanMeta("snapshot/", func(string, []byte) error { over = false; return nil })
		return over && err == nil
	})
	got := l.queued()
	for _, n := range pod {
		if got.types(n) != "sync" {
			t.Errorf("%s: %q", n, got[n])
		}
	}
}

// TestNewSinkOfSharedObjects makes a sink that starts with a snapshot, and that several watches of the same objects lead to: it is given
// each object once.
func TestNewSinkOfSharedObjects(t *testing.T) {
	for name, tc := range map[string]struct{ before, after []plan.Watch }{
		"two watches": {
			[]plan.Watch{committest.PodWatch(named("a")), committest.PodWatch(named("b"))},
			[]plan.Watch{committest.PodWatch(named("a")), committest.PodWatch(named("b"))},
		},
		"one of them is new": {
			[]plan.Watch{committest.PodWatch(named("a"))},
			[]plan.Watch{committest.PodWatch(named("a")), committest.PodWatch(named("b"))},
		},
		"one that widens": {
			[]plan.Watch{committest.PodWatch(named("all")), committest.PodWatch(named("a"), only("elsewhere"))},
			[]plan.Watch{committest.PodWatch(named("a")), committest.PodWatch(named("all"))},
		},
		"one that widens, with its feed": {
			[]plan.Watch{committest.PodWatch(named("a"), only("ns"))},
			[]plan.Watch{committest.PodWatch(named("a"))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, pod := podServer(t, 1500)
			api.Put(podPath, "elsewhere", "other", nil)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(tc.before...))
			eventually(t, "sync", func() bool { return len(l.log()) >= len(pod) })
			st := toX(l, tc.after...)
			st.Sinks = l.fromSnapshot(tc.after...).Sinks
			l.apply(st)
			l.synced()
			eventually(t, "the snapshots are over", func() bool {
				over := true
				err := l.store.ScanMeta("snapshot/", func(string, []byte) error { over = false; return nil })
				return over && err == nil
			})
			got, wrong := l.queued(), 0
			for _, n := range append(pod, "other") {
				if types := got.types(n); types != "sync" && !(n == "other" && types == "added") {
					if wrong++; wrong < 3 {
						t.Errorf("%s: %q", n, got[n])
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d objects are wrong", wrong, len(pod)+1)
			}
		})
	}
}
