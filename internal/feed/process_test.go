package feed

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func TestOnlyWhatChangedIsAnEvent(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	first := r.object("a", "u1", "1")
	r.commit(change{src: s, kind: objectAdded, obj: first, initial: true}, change{src: s, kind: sourceSynced})
	r.expect("sync a u1 1")

	r.commit(change{src: s, kind: objectAdded, obj: first, initial: true})
	r.commit(change{src: s, kind: objectUpdated, obj: first, old: first})
	r.expect() // a relist and a resync

	second := r.object("a", "u1", "2")
	r.commit(change{src: s, kind: objectUpdated, obj: second, old: first})
	e := r.expect("updated a u1 2")[0]
	if got := string(e.OldObject); !strings.Contains(got, `"resourceVersion":"1"`) {
		t.Errorf("old object is %s", got)
	}

	r.commit(change{src: s, kind: objectAdded, obj: r.object("b", "u2", "3"), initial: true})
	r.expect("added b u2 3") // found by a list, but not the first one

	r.commit(change{src: s, kind: objectDeleted, obj: r.object("a", "u1", "4")})
	if e := r.expect("deleted a u1 4")[0]; e.FinalStateUnknown {
		t.Error("a deletion that was seen is marked as found by comparison")
	}
	r.commit(change{src: s, kind: objectDeleted, obj: second, unknown: true})
	r.commit(change{src: s, kind: objectDeleted, obj: r.object("never-seen", "u9", "9")})
	r.expect()
}

func TestChangesWithinOneCommit(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	a1, a2 := r.object("a", "u1", "1"), r.object("a", "u1", "2")
	r.commit(
		change{src: s, kind: objectAdded, obj: a1},
		change{src: s, kind: objectUpdated, obj: a2, old: a1},
		change{src: s, kind: objectDeleted, obj: r.object("a", "u1", "3")},
		change{src: s, kind: objectAdded, obj: r.object("a", "u2", "4")},
		change{src: s, kind: objectAdded, obj: r.object("a", "u2", "4")},
	)
	r.expect("added a u1 1", "updated a u1 2", "deleted a u1 3", "added a u2 4")
}

func TestRecreatedUnderOneName(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	old, fresh := r.object("a", "u1", "1"), r.object("a", "u2", "7")
	r.commit(change{src: s, kind: objectAdded, obj: old})
	r.commit(change{src: s, kind: objectUpdated, obj: fresh, old: old})
	events := r.expect("added a u1 1", "deleted a u1 1", "added a u2 7")
	if !events[1].FinalStateUnknown {
		t.Error("the deletion was not seen, and is not marked so")
	}
	r.commit(change{src: s, kind: objectDeleted, obj: old, unknown: true}) // late news of the first
	r.expect()
}

// A deletion has one id however it is found: in the stream, or by comparison
// after a crash that kept the first finding from being recorded.
func TestDeletionHasOneID(t *testing.T) {
	var ids []string
	for _, c := range []change{{kind: objectDeleted}, {kind: objectDeleted, unknown: true}} {
		r := newRig(t, t.TempDir(), podWatch())
		c.src = r.source(pods)
		r.commit(change{src: c.src, kind: objectAdded, obj: r.object("a", "u1", "1")})
		c.obj = r.object("a", "u1", "1")
		if !c.unknown {
			c.obj = r.object("a", "u1", "5") // the stream tells the version of the deletion
		}
		r.commit(c)
		ids = append(ids, r.events()[1].ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("ids %v differ", ids)
	}
}

func TestLedgerSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	t.Run("first life", func(t *testing.T) {
		r := newRig(t, dir, podWatch())
		s := r.source(pods)
		r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1"), initial: true})
		r.expect("sync a u1 1")
	})
	t.Run("second life", func(t *testing.T) {
		r := newRig(t, dir, podWatch())
		r.read = r.store.LogStats().Last
		s := r.source(pods)
		r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1"), initial: true})
		r.expect()
		r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "2"), initial: true})
		if e := r.expect("updated a u1 2")[0]; !strings.Contains(string(e.OldObject), `"resourceVersion":"1"`) {
			t.Errorf("old object is %s", e.OldObject)
		}
	})
}

func TestSnapshotNever(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch(func(w *plan.Watch) { w.Snapshot = false }))
	s := r.source(pods)
	r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1"), initial: true}, change{src: s, kind: sourceSynced})
	r.expect()
	r.commit(change{src: s, kind: objectDeleted, obj: r.object("a", "u1", "1"), unknown: true})
	r.expect("deleted a u1 1")
}

func TestClientSideSelector(t *testing.T) {
	filter, err := selector.NewFilter(selector.Namespaces{}, "tier=web", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, t.TempDir(), podWatch(func(w *plan.Watch) { w.Filter = filter }))
	s := r.source(pods)
	out1, in2, in3, out4 := r.object("a", "u", "1", "db"), r.object("a", "u", "2", "web"), r.object("a", "u", "3", "web"), r.object("a", "u", "4", "db")
	r.commit(change{src: s, kind: objectAdded, obj: out1})
	r.expect()
	for _, step := range []struct {
		c    change
		want string
		sel  event.Selection
	}{
		{change{obj: in2, old: out1}, "updated a u 2", event.Entered},
		{change{obj: in3, old: in2}, "updated a u 3", event.Inside},
		{change{obj: out4, old: in3}, "updated a u 4", event.Left},
	} {
		step.c.src, step.c.kind = s, objectUpdated
		r.commit(step.c)
		r.expect(step.want)
		if got := r.selectionOfLast(); got != step.sel {
			t.Errorf("%s: selection %q, want %q", step.want, got, step.sel)
		}
	}
	r.commit(change{src: s, kind: objectDeleted, obj: out4})
	r.expect() // it was outside already
}

func TestServerSideSelector(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch(func(w *plan.Watch) { w.ServerLabels = "tier=web" }))
	s := r.source(pods)
	r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u", "1", "web")})
	r.expect("added a u 1")
	if got := r.selectionOfLast(); got != event.Unknown {
		t.Errorf("selection %q, want unknown", got)
	}
}

func TestGapReachesTheSinks(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	gap := &dynamicfactory.Gap{Cause: "expired", From: "10", To: "99", ToTime: r.m.cfg.Now()}
	r.commit(change{src: s, kind: gapFound, gap: gap})
	e := r.expect("gap   ")[0]
	if e.Gap == nil || e.Gap.Watch != "w" || e.Gap.FromResourceVersion != "10" || e.Gap.ToResourceVersion != "99" || e.Gap.Cause != "expired" {
		t.Errorf("gap %+v", e.Gap)
	}
	if length := r.queueLength(); length != 1 {
		t.Errorf("%d events in the sink's queue, want the gap", length)
	}
}

// After a rollback the same version of the same object is another change.
func TestRollbackMakesNewIDs(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	add := change{src: s, kind: objectAdded, obj: r.object("a", "u1", "5")}
	r.commit(add, change{src: s, kind: objectDeleted, obj: r.object("a", "u1", "8")})
	r.commit(change{src: s, kind: gapFound, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "8", To: "6"}}, add)
	events := r.events()
	if first, again := events[0], events[len(events)-1]; first.ID == again.ID {
		t.Error("the addition after the rollback has the id of the one before it")
	}
}

func (r *rig) selectionOfLast() event.Selection {
	r.Helper()
	q, err := r.store.Queue("sink")
	if err != nil {
		r.Fatal(err)
	}
	items, err := q.Read(0, 1000, 1<<20)
	if err != nil {
		r.Fatal(err)
	}
	e, err := r.m.decodeFor("sink")(items[len(items)-1])
	if err != nil {
		r.Fatal(err)
	}
	return e.Selection
}

func (r *rig) queueLength() int {
	r.Helper()
	q, err := r.store.Queue("sink")
	if err != nil {
		r.Fatal(err)
	}
	return int(q.Stats().Length)
}

// TestOrderByPath puts everything that happens to one path in one lane, whatever
// lives there; objects without uid are told apart.
func TestOrderByPath(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	r.commit(
		change{src: s, kind: objectAdded, obj: r.object("a", "u1", "1")},
		change{src: s, kind: objectDeleted, obj: r.object("a", "u1", "2")},
		change{src: s, kind: objectAdded, obj: r.object("a", "u2", "3")},
		change{src: s, kind: objectAdded, obj: r.object("b", "", "4")},
		change{src: s, kind: objectAdded, obj: r.object("c", "", "4")},
	)
	q, err := r.store.Queue("sink")
	if err != nil {
		t.Fatal(err)
	}
	items, err := q.Read(0, 10, 1<<20)
	if err != nil || len(items) != 5 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if a := items[0].Lane; items[1].Lane != a || items[2].Lane != a || items[3].Lane == a || items[4].Lane == items[3].Lane {
		t.Errorf("lanes %d, %d, %d of one path, %d and %d of two others", a, items[1].Lane, items[2].Lane, items[3].Lane, items[4].Lane)
	}
	events := r.events()
	if events[3].ID == events[4].ID {
		t.Error("additions of two objects without uid have one id")
	}
}

// TestHistoryIsNotReadTwice hands over states that are recorded already, as a watch
// does that resumes from before them, through an informer that begins with the newest.
func TestHistoryIsNotReadTwice(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	a1, a2, a3 := r.object("a", "u1", "9"), r.object("a", "u1", "10"), r.object("a", "u1", "11")
	r.commit(change{src: s, kind: objectAdded, obj: a1}, change{src: s, kind: objectUpdated, obj: a2, old: a1})
	r.expect("added a u1 9", "updated a u1 10")
	s.floor = "10"
	r.commit(
		change{src: s, kind: objectUpdated, obj: a1, old: a2},
		change{src: s, kind: objectUpdated, obj: a2, old: a1},
	)
	r.expect()
	if n := testutil.ToFloat64(r.m.metrics.staleTotal); n != 1 {
		t.Errorf("%v states are counted as stale, want 1", n)
	}
	r.commit(change{src: s, kind: objectUpdated, obj: a3, old: a2})
	r.expect("updated a u1 11")
	if s.floor != "" {
		t.Error("the ledger is read for changes that no earlier life can have recorded")
	}
	opaque := r.object("a", "u1", "x1")
	r.commit(change{src: s, kind: objectUpdated, obj: opaque, old: a3})
	r.expect("updated a u1 x1") // versions that are no numbers have no order
}
