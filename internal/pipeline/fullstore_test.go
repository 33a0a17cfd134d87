package pipeline

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// maxGroup is how many changes the committer commits together.
const maxGroup = 512

// noRoom is more free disk than there is: ingest pauses.
const noRoom = 1 << 60

// within applies a state, which must not wait for room in the store.
func (l *live) within(st *plan.State) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 10*time.Second)
	defer cancel()
	if err := l.m.Apply(ctx, st); err != nil {
		l.Fatalf("apply in a full store: %v", err)
	}
}

func (l *live) blocked() {
	l.Helper()
	eventually(l.T, "paused, with the committer's queue full", func() bool {
		return l.store.Health().Paused && l.m.committer.Backlogged()
	})
}

// committed is the number of events in the log.
func (l *live) committed() (n int) {
	for _, lines := range l.log() {
		n += len(lines)
	}
	return n
}

func TestReloadAndPurgeInAFullStore(t *testing.T) {
	api, _ := podServer(t, 4000)
	api.Serve("/api/v1/nodes", "v1", "Node")
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods, nodes})
	if _, err := l.store.EnsureSink("dead", store.FromNow); err != nil {
		t.Fatal(err)
	}
	full := l.state(committest.PodWatch())
	full.Store.MinFree = noRoom
	l.apply(full)
	l.blocked()

	without := l.state(plan.Watch{Name: "n", Resources: []string{"nodes"}, Edits: full.Watches[0].Edits})
	without.Store.MinFree = noRoom
	l.within(without)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := l.m.PurgeSink(ctx, "dead"); err != nil {
		t.Errorf("purge: %v", err)
	}
	if n := l.committed(); n > 3*maxGroup {
		t.Errorf("%d events were committed past the limit", n)
	}
}

func TestResourceGoesInAFullStore(t *testing.T) {
	api, _ := podServer(t, 4000)
	resolver := &changing{changed: make(chan struct{}), list: []dynamicfactory.Resource{pods}}
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	full := l.state(committest.PodWatch())
	full.Store.MinFree = noRoom
	l.apply(full)
	l.blocked()
	resolver.set()
	eventually(t, "the watch has stopped", func() bool { return len(l.m.informerList()) == 0 })
	l.within(l.state(committest.PodWatch())) // raises the limit
	eventually(t, "resumed", func() bool { return !l.store.Health().Paused })
}

// A watch is added to a resource with recorded objects. They come once there is room.
func TestReloadAddsAWatchInAFullStore(t *testing.T) {
	api, names := podServer(t, 3000)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	if _, err := l.store.EnsureSink("x", store.FromNow); err != nil {
		t.Fatal(err)
	}
	second := committest.PodWatch(func(w *plan.Watch) { w.Name = "second" })
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	before := l.committed()
	l.store.SetLimits(store.Limits{MinFree: noRoom})
	eventually(t, "paused", func() bool { return l.store.Health().Paused })
	full := l.routed(second, committest.PodWatch())
	full.Store.MinFree = noRoom
	l.within(full)
	if n := l.committed() - before; n > maxGroup {
		t.Errorf("%d events were committed past the limit", n)
	}
	l.within(l.routed(second, committest.PodWatch()))
	q, err := l.store.Queue("x")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second watch's objects", func() bool { return q.Stats().Length == int64(len(names)) })
}

// The pipeline ends while the store is full, and goes on where it was.
func TestStopInAFullStore(t *testing.T) {
	api, names := podServer(t, 4000)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	full := l.state(committest.PodWatch())
	full.Store.MinFree = noRoom
	l.apply(full)
	l.blocked()
	l.stop()
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	h := l.log()
	for _, n := range names {
		if h.types(n) != "sync" {
			t.Fatalf("%s: %q", n, h[n])
		}
	}
}

// TestReloadDuringAFarewell renames a watch while the deletions that came with a
// definition wait for room: they reach the sink under the new name.
func TestReloadDuringAFarewell(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	for i := range 3 {
		api.Put(widgetPath, "ns", fmt.Sprint("widget-", i), nil)
	}
	resolver := serving(widgets)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver).withX()
	watch := func(name string) plan.Watch {
		w := committest.PodWatch(named(name))
		w.Resources = []string{"widgets.example.com"}
		return w
	}
	l.apply(l.routed(watch("w")))
	eventually(t, "the objects are recorded", func() bool { return len(l.queued()) == 3 })
	l.defined("widgets.example.com")
	full := l.routed(watch("w"))
	full.Store.MinFree = noRoom
	l.apply(full)
	eventually(t, "the store is full", func() bool { return l.store.Health().Paused })
	api.Unserve(widgetPath)
	resolver.set()
	eventually(t, "the watch has stopped", func() bool { return len(l.m.informerList()) == 0 })
	renamed := l.routed(watch("renamed"))
	renamed.Store.MinFree = noRoom
	l.within(renamed)
	l.within(l.routed(watch("renamed")))
	eventually(t, "the deletions", func() bool {
		h := l.queued()
		return h.types("widget-0") == "sync deleted" && h.types("widget-1") == "sync deleted" && h.types("widget-2") == "sync deleted"
	})
}

// TestServedAgainDuringAFarewell has a resource served again while the deletions that came
// with its definition wait for room, and go and come once more: each object is deleted twice, and added
// twice again.
func TestServedAgainDuringAFarewell(t *testing.T) {
	api := apitest.New(t)
	resolver := serving(widgets)
	serve := func() {
		api.ServeCustom(widgetPath, "example.com/v1", "Widget")
		for i := range 3 {
			api.Put(widgetPath, "ns", fmt.Sprint("widget-", i), nil)
		}
	}
	serve()
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver).withX()
	watch := watchOf("w", nil, "widgets.example.com")
	l.apply(l.routed(watch))
	received := func(want string) {
		t.Helper()
		eventually(t, want, func() bool {
			h := l.queued()
			return h.types("widget-0") == want && h.types("widget-1") == want && h.types("widget-2") == want
		})
	}
	farewells := func() (n int) {
		_ = l.m.call(t.Context(), func(context.Context) error { n = len(l.m.farewells); return nil })
		return n
	}
	received("sync")
	l.defined("widgets.example.com")
	full := l.routed(watch)
	full.Store.MinFree = noRoom
	l.apply(full)
	eventually(t, "the store is full", func() bool { return l.store.Health().Paused })
	api.Unserve(widgetPath)
	resolver.set()
	eventually(t, "the farewell has begun", func() bool { return farewells() == 1 })
	serve()
	resolver.set(widgets)
	eventually(t, "the watch has started", func() bool { return len(l.m.informerList()) == 1 })
	l.within(l.routed(watch))
	received("sync deleted added")
	l.defined("widgets.example.com")
	api.Unserve(widgetPath)
	resolver.set()
	received("sync deleted added deleted")
	eventually(t, "the farewell is over", func() bool { return len(l.store.Partitions()) == 0 })
	serve()
	resolver.set(widgets)
	received("sync deleted added deleted added")
}

// TestFillOfAFullStore has a new sink start with a history for whose former states, or copies under the
// edits of its route, the store has no room: each event comes, and the store hardly grows.
func TestFillOfAFullStore(t *testing.T) {
	const versions, size, growth = 150, 32 << 10, 3 << 19
	l := lifeOn(t, "store", store.Options{FS: vfs.NewMem()}, allServed)
	all := leadTo("all", "", "b")
	l.apply([]route.Spec{all})
	for range versions {
		var noise strings.Builder
		for noise.Len() < size {
			noise.WriteString(rand.Text())
		}
		l.put("v", rand.Text(), noise.String())
	}
	for _, tc := range []struct {
		sink     string
		maxBytes int64
		drop     []string
		states   int
	}{{"a", 1, nil, 0}, {"d", 1, []string{"metadata.labels"}, 0}, {"c", 0, nil, versions - 1}} {
		states := leadTo("states", "", tc.sink)
		states.Payload, states.Drop = []string{"object", "oldObject", "patch"}, tc.drop
		st := l.state([]route.Spec{all, states}, func(s *plan.Sink) { s.StartFrom = plan.StartEarliest })
		st.Store.MaxBytes = tc.maxBytes
		before := l.Store.Health().Bytes
		if err := l.m.Apply(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		if after := l.Store.Health().Bytes; tc.maxBytes != 0 && after > before+growth {
			t.Errorf("the fill takes the full store from %d to %d MiB", before>>20, after>>20)
		}
		q, err := l.Store.Queue(tc.sink)
		if err != nil {
			t.Fatal(err)
		}
		given, with, last := 0, 0, uint64(0)
		for position := uint64(0); ; {
			items, err := q.Read(position, versions, 8<<20)
			if err != nil {
				t.Fatal(err)
			}
			if len(items) == 0 {
				break
			}
			for _, it := range items {
				e, err := query.Decode(l.m.inflater, tc.sink, it)
				if err != nil || e.Object == nil || e.Sequence <= last || strings.Contains(string(e.Object), `"tier"`) == (tc.drop != nil) {
					t.Fatalf("%d after %d, %v: %+v", it.Sequence, last, err, e)
				}
				if e.OldObject != nil {
					with++
				}
				given, position, last = given+1, it.Position, e.Sequence
			}
		}
		if given != versions || with != tc.states {
			t.Errorf("%d of %d events, %d with the state before, want %d", given, versions, with, tc.states)
		}
	}
}
