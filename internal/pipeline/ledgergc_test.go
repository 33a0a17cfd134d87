package pipeline

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestUnwatchedIsForgotten removes watches: what is recorded of their resources is
// kept for as long as delivered events are, and is there for a watch that comes back
// by then, with what is to be reported to it.
func TestUnwatchedIsForgotten(t *testing.T) {
	const unjudged = "unjudged/ns/pods"
	dir := t.TempDir()
	st, err := store.Open(dir, store.Options{Now: rigTime})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(ledger.PutMeta(st, unjudged, []byte(`{"From":"1","Lost":true}`)), st.Close())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, dir, committest.PodWatch())
	s := r.source(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1")))
	b := r.Store.NewBatch()
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(ledger.Checkpoint{ResourceVersion: "1", Synced: true}))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	// after looks for what is to be forgotten, some time later.
	after := func(d time.Duration, kept bool) {
		t.Helper()
		ageNotes(t, r.Store, "unwatched", d)
		if err := r.m.forgetUnwatched(); err != nil {
			t.Fatal(err)
		}
		_, resumable, err := r.m.ledger.Checkpoint(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, noted, err := r.Store.Meta(unjudged)
		if err != nil {
			t.Fatal(err)
		}
		if parts := len(r.Store.Partitions()); resumable != kept || noted != kept || (parts > 0) != kept {
			t.Errorf("%d partitions, checkpoint %t, note %t, want them kept: %t", parts, resumable, noted, kept)
		}
	}
	state := func(patterns ...string) {
		st := &plan.State{Store: plan.Store{RetentionMaxAge: 24 * time.Hour}}
		for i, p := range patterns {
			st.Watches = append(st.Watches, plan.Watch{Name: fmt.Sprint(i), Resources: []string{p}})
		}
		r.m.setState(st)
	}

	r.run(s) // it is watched
	state("pods")
	after(100*time.Hour, true)
	delete(r.m.informers, s.Key) // it is waited for
	after(100*time.Hour, true)
	after(100*time.Hour, true)
	state("nodes", "*")
	after(100*time.Hour, true)

	state("nodes", "*.example.com") // nobody wants it
	after(0, true)
	after(23*time.Hour, true)
	r.run(s) // but then it came back
	after(2*time.Hour, true)
	delete(r.m.informers, s.Key)
	after(time.Hour, true)
	after(23*time.Hour, true)
	if n := testutil.ToFloat64(r.m.metrics.forgottenTotal); n != 0 {
		t.Errorf("%v are counted as forgotten", n)
	}
	after(2*time.Hour, false)
	if n := testutil.ToFloat64(r.m.metrics.forgottenTotal); n != 1 {
		t.Errorf("%v are counted as forgotten, want 1", n)
	}
	r.commit(listedBy(s, r.Object("a", "u1", "1")))
	r.Expect("added a u1 1", "sync a u1 1") // as at the first start
}

// TestUnwatchedReturnsWithoutTheAPIServer has a watch return at a start at which the API server is away for longer than events are kept: what is
// recorded stays, through a reload and another start, as long as the watch waits for its resource.
func TestUnwatchedReturnsWithoutTheAPIServer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := podsAndWidgets(t)
		api.Put(podPath, "ns", "pod", nil)
		api.Put(podPath, "ns", "lost", nil)
		fs := vfs.NewCrashableMem()
		both := func(l *live) *plan.State {
			return l.both()
		}
		l := runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		l.apply(both(l))
		eventually(t, "sync", func() bool { return len(l.log()) == 2 })
		l.checkpointed("pods#", "v1")
		l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
		l.stop()
		for range 2 {
			l = runLive(t, "store", store.Options{FS: fs}, api, unfound())
			l.apply(both(l))
			time.Sleep(100 * time.Hour)
			l.apply(both(l))
			l.stop()
		}
		api.Delete(podPath, "ns", "lost")
		l = runLive(t, "store", store.Options{FS: fs}, api, serving(pods, widgets))
		l.apply(both(l))
		eventually(t, "the deletion", func() bool { return l.log().types("lost") == "sync deleted" })
		if got := l.log().types("pod"); got != "sync" {
			t.Errorf("the other: %s", got)
		}
	})
}

// TestUnwatchedWithoutObjectsIsForgotten removes a watch of a resource that never had an object: its position
// expires as recorded states do.
func TestUnwatchedWithoutObjectsIsForgotten(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	if err := ledger.PutMeta(r.Store, ledger.CheckpointMeta("pods#"), ledger.Encode(ledger.Checkpoint{ResourceVersion: "1", Synced: true})); err != nil {
		t.Fatal(err)
	}
	r.m.setState(&plan.State{Store: plan.Store{RetentionMaxAge: 24 * time.Hour}, Watches: []plan.Watch{{Name: "n", Resources: []string{"nodes"}}}})
	for _, kept := range []bool{true, true, false} {
		if err := r.m.forgetUnwatched(); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := r.m.ledger.Checkpoint("pods#"); err != nil || ok != kept {
			t.Errorf("the checkpoint is kept: %t, want %t, %v", ok, kept, err)
		}
		ageNotes(t, r.Store, "unwatched", 23*time.Hour)
	}
}

// Another form of a resource that is watched is nobody's, whatever the patterns say.
func TestFormerFormIsForgotten(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	s := r.source(pods)
	r.run(s)
	former := r.source(pods)
	former.Partition = s.Partition + "|l=tier=web;f=;m=false;v="
	r.commit(
		addedTo(s, r.Object("a", "u1", "1")),
		addedTo(former, r.Object("a", "u1", "1")),
	)
	for range 2 {
		if err := r.m.forgetUnwatched(); err != nil {
			t.Fatal(err)
		}
		ageNotes(t, r.Store, "unwatched", 2*time.Hour)
	}
	if err := r.m.forgetUnwatched(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.Store.Partitions()); got != "["+s.Partition+"]" {
		t.Errorf("partitions %s are left", got)
	}
}

// TestUnwatchedBesideAClockThatIsAhead has the clock jump ahead by far more than what is recorded is kept without a watch.
func TestUnwatchedBesideAClockThatIsAhead(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := idleRig(t, t.TempDir(), store.Options{Now: func() time.Time { return now }}, allServed)
	b := r.Store.NewBatch()
	b.PutState("pods", "ns/a", []byte("state"))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	r.m.setState(&plan.State{Store: plan.Store{RetentionMaxAge: 24 * time.Hour}})
	for _, ahead := range []time.Duration{0, 1000 * time.Hour} {
		now = now.Add(ahead)
		if err := r.m.forgetUnwatched(); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Store.Partitions(); len(got) != 1 {
		t.Errorf("partitions %q are left", got)
	}
}

// TestWaitingVersionKeepsItsStates has the version that a watch names go away for longer
// than events are kept, while another watch reads the resource at its preferred version.
func TestWaitingVersionKeepsItsStates(t *testing.T) {
	const path = "/apis/example.com/v2beta1/widgets"
	api := apitest.New(t)
	api.Serve(widgetPath, "example.com/v1", "Widget")
	api.Serve(path, "example.com/v2beta1", "Widget")
	api.Put(path, "ns", "stays", nil)
	api.Put(path, "ns", "goes", nil)
	resolver := serving(widgets, widgetsV2)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	l.apply(l.state(watchOf("pinned", nil, "widgets.v2beta1.example.com"), watchOf("any", nil, "widgets.example.com")))
	const pinned = "widgets.example.com@v2beta1"
	l.checkpointed(ledger.FeedID(pinned, ""), "v2beta1")
	resolver.set(widgets)
	eventually(t, "the version is waited for", func() bool { return len(l.m.informerList()) == 1 })
	for range 3 {
		l.forget()
		l.age("unwatched", 100*time.Hour)
	}
	if n := len(l.states(pinned)); n != 2 {
		t.Errorf("%d of the version's 2 states are kept", n)
	}
	api.Delete(path, "ns", "goes")
	resolver.set(widgets, widgetsV2)
	l.becomes(history{"stays": {"sync 101"}, "goes": {"sync 102", "deleted 103"}})
}

// TestExpiryCutShort cuts the power at each write of an expiry. Another watch that covers the objects after
// that is given them, whatever is left.
func TestExpiryCutShort(t *testing.T) {
	const never = 1 << 40
	for name, rest := range map[string]plan.Watch{
		"resource": watchOf("w", nil, "nodes"), "namespace": watchOf("w", only("ns"), "pods"),
	} {
		for _, kept := range []time.Duration{time.Hour, 100 * time.Hour} { // after the start
			for n, over := int64(0), false; !over; n++ {
				t.Run(fmt.Sprintf("%s, kept %v, write %d", name, kept, n), func(t *testing.T) {
					api := apitest.New(t)
					api.Serve(podPath, "v1", "Pod")
					api.Put(podPath, "ns", "a", nil)
					api.Put(podPath, "other", "b", nil)
					disk, fault := vfs.NewCrashableMem(), &brittle{}
					fault.left.Store(never)
					l := runLive(t, "store", store.Options{FS: errorfs.Wrap(disk, fault)}, api, served{pods})
					l.apply(l.state(watchOf("w", only("ns", "other"), "pods")))
					eventually(t, "sync", func() bool { return len(l.log()) == 2 })
					rest.Fingerprint = "rest"
					l.apply(l.state(rest))
					l.forget()
					l.age("unwatched", 2*time.Hour)
					fault.left.Store(n)
					err := l.m.call(t.Context(), func(context.Context) error {
						err := l.m.forgetUnwatched()
						if err != nil {
							l.m.fail(err)
						}
						return err
					})
					fault.left.Store(never)
					if over = !fault.failed.Load(); !over {
						if end := <-l.ended; err == nil || !errors.Is(end, ledger.ErrStore) { // a commit beside it may fail first
							t.Errorf("the expiry ends with %v, the pipeline with %v", err, end)
						}
						l.ended <- nil
					}
					l.stop()
					l = runLive(t, "store", store.Options{FS: disk.CrashClone(vfs.CrashCloneCfg{})}, api, served{pods})
					next := l.state(watchOf("v", only("ns", "other"), "pods"))
					next.Store.RetentionMaxAge = kept
					l.apply(next)
					l.becomes(history{"a": {"sync 101", "sync 101"}, "b": {"sync 102", "sync 102"}})
					eventually(t, "recorded", func() bool { return len(l.states("pods")) == 2 })
				})
			}
		}
	}
}

// TestListsBeforeAnExpiry: of a time at which states were read that have expired, lists are not exact, and an object of which nothing else is
// recorded is not taken for one that was never there.
func TestListsBeforeAnExpiry(t *testing.T) {
	for name, rest := range map[string]plan.Watch{
		"resource": watchOf("w", func(w *plan.Watch) { w.ServerFields = "metadata.namespace=ns" }, "pods"), "namespace": watchOf("w", only("ns"), "pods"),
	} {
		t.Run(name, func(t *testing.T) {
			api := apitest.New(t)
			api.Serve(podPath, "v1", "Pod")
			api.Put(podPath, "ns", "a", nil)
			api.Put(podPath, "other", "b", nil)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			rest.Name, rest.Fingerprint, rest.History = "rest", "rest", true
			wide := watchOf("w", only("ns", "other"), "pods")
			l.apply(l.state(wide, rest)) // without a history: the log has the pods no more than ones that retention has trimmed
			eventually(t, "sync", func() bool { return len(l.states("pods")) == 2 })
			wide.Fingerprint, wide.History = "history", true
			l.apply(l.state(wide, rest))
			h, about := l.m.Reader().History(), event.Resource{Resource: "pods"}
			var at time.Time
			list := func() past.List {
				list, err := h.ListAt(t.Context(), past.Objects{Resource: about}, at, "", 10)
				if err != nil {
					t.Fatal(err)
				}
				return list
			}
			eventually(t, "the history has begun", func() bool {
				at = time.Now()
				return list().As == past.Exact
			})
			l.apply(l.state(rest))
			l.forget()
			l.age("unwatched", 2*time.Hour)
			at = at.Add(-3 * time.Hour) // as is the rest
			err := l.m.ledger.Checkpoints(func(feed string, c ledger.Checkpoint) error {
				c.HistorySince = at.Add(-time.Hour)
				return ledger.PutMeta(l.store, ledger.CheckpointMeta(feed), ledger.Encode(c))
			})
			if err != nil {
				t.Fatal(err)
			}
			if as := list().As; as != past.Exact {
				t.Errorf("before the expiry the list is %s", as)
			}
			l.forget()
			if as := list().As; as == past.Exact {
				t.Errorf("the list is exact: %+v", list())
			}
			if s, err := h.At(t.Context(), past.Object{Resource: about, Namespace: "other", Name: "b"}, at); err != nil || s.As == past.Exact {
				t.Errorf("the object: %+v %v", s, err)
			}
			at = time.Now()
			if as := list().As; as != past.Exact {
				t.Errorf("of now the list is %s", as)
			}
		})
	}
}

// TestExpiryOfDamagedStates has states expire of which a part cannot be read: a start does not fail by them.
func TestExpiryOfDamagedStates(t *testing.T) {
	api, names := podServer(t, 300)
	api.Put(podPath, "other", "b", nil)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(watchOf("w", only("ns", "other"), "pods")))
	eventually(t, "sync", func() bool { return len(l.log()) == len(names)+1 })
	rest := watchOf("w", only("other"), "pods")
	l.apply(l.state(rest))
	l.age("unwatched", 2*time.Hour)
	l.stop()
	damageLedger(t, dir)
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(rest))
	for _, name := range names {
		if _, ok, _ := l.store.State("pods", ledger.Key("ns", name), nil); ok {
			t.Errorf("%s is left", name)
		}
	}
	if _, ok, err := l.store.State("pods", ledger.Key("other", "b"), nil); !ok || err != nil {
		t.Errorf("the watched one: %t, %v", ok, err)
	}
}
