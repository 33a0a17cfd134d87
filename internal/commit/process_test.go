package commit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func TestOnlyWhatChangedIsAnEvent(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	first := r.Object("a", "u1", "1")
	r.commit(listedBy(s, first), &feedSynced{feed: s})
	r.Expect("sync a u1 1")

	r.commit(listedBy(s, first))
	r.commit(updatedIn(s, first, first))
	r.Expect() // a relist and a resync

	second := r.Object("a", "u1", "2")
	r.commit(updatedIn(s, second, first))
	e := r.Expect("updated a u1 2")[0]
	if got := string(e.OldObject); !strings.Contains(got, `"resourceVersion":"1"`) {
		t.Errorf("old object is %s", got)
	}

	r.commit(listedBy(s, r.Object("b", "u2", "3")))
	r.Expect("added b u2 3") // found by a list, but not the first one

	r.commit(deletedFrom(s, r.Object("a", "u1", "4")))
	if e := r.Expect("deleted a u1 4")[0]; e.FinalStateUnknown {
		t.Error("a deletion that was seen is marked as found by comparison")
	}
	r.commit(missingFrom(s, second))
	r.commit(deletedFrom(s, r.Object("never-seen", "u9", "9")))
	r.Expect()
}

func TestChangesWithinOneCommit(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	a1, a2 := r.Object("a", "u1", "1"), r.Object("a", "u1", "2")
	r.commit(
		addedTo(s, a1),
		updatedIn(s, a2, a1),
		deletedFrom(s, r.Object("a", "u1", "3")),
		addedTo(s, r.Object("a", "u2", "4")),
		addedTo(s, r.Object("a", "u2", "4")),
	)
	r.Expect("added a u1 1", "updated a u1 2", "deleted a u1 3", "added a u2 4")
}

func TestRecreatedUnderOneName(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	old, fresh := r.Object("a", "u1", "1"), r.Object("a", "u2", "7")
	r.commit(addedTo(s, old))
	r.commit(updatedIn(s, fresh, old))
	events := r.Expect("added a u1 1", "deleted a u1 1", "added a u2 7")
	if !events[1].FinalStateUnknown {
		t.Error("the deletion was not seen, and is not marked so")
	}
	r.commit(missingFrom(s, old)) // late news of the first
	r.Expect()
}

// A deletion has one id however it is found: in the stream, or by comparison
// after a crash that kept the first finding from being recorded.
func TestDeletionHasOneID(t *testing.T) {
	var ids []string
	for _, unknown := range []bool{false, true} {
		r := newRig(t, disk(), committest.PodWatch())
		s := r.feed(pods)
		r.commit(addedTo(s, r.Object("a", "u1", "1")))
		if unknown {
			r.commit(missingFrom(s, r.Object("a", "u1", "1")))
		} else {
			r.commit(deletedFrom(s, r.Object("a", "u1", "5"))) // the stream tells the version of the deletion
		}
		ids = append(ids, r.Events()[1].ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("ids %v differ", ids)
	}
}

func TestLedgerSurvivesRestart(t *testing.T) {
	dir := disk()
	t.Run("first life", func(t *testing.T) {
		r := newRig(t, dir, committest.PodWatch())
		s := r.feed(pods)
		r.commit(listedBy(s, r.Object("a", "u1", "1")))
		r.Expect("sync a u1 1")
	})
	t.Run("second life", func(t *testing.T) {
		r := newRig(t, dir, committest.PodWatch())
		r.Read = r.Store.LogStats().Last
		s := r.feed(pods)
		r.commit(listedBy(s, r.Object("a", "u1", "1")))
		r.Expect()
		r.commit(listedBy(s, r.Object("a", "u1", "2")))
		if e := r.Expect("updated a u1 2")[0]; !strings.Contains(string(e.OldObject), `"resourceVersion":"1"`) {
			t.Errorf("old object is %s", e.OldObject)
		}
	})
}

// TestChangedBy reports who made a change that an object went through, of additions and
// updates alone.
func TestChangedBy(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	by := func(version, manager string, at time.Time) *compact.Object {
		return r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":%q,
			"managedFields":[{"manager":"first","operation":"Update","time":"2026-11-22T09:00:00Z"},
				{"manager":%q,"operation":"Apply","subresource":"status","fieldsV1":{"f:a":{}},"time":%q}]}}`, version, manager, at.Format(time.RFC3339)))
	}
	one, two, nobody := by("1", "kubectl", at), by("2", "kubelet", at.Add(time.Second)), r.Object("a", "u", "3")
	for _, step := range []struct {
		c    change
		want *event.ChangedBy
	}{
		{listedBy(s, one), nil}, // a sync
		{updatedIn(s, two, one), &event.ChangedBy{Manager: "kubelet", Operation: "Apply", Subresource: "status", Time: at.Add(time.Second)}},
		{updatedIn(s, nobody, two), nil},
		{updatedIn(s, by("4", "kubelet", at), nobody), &event.ChangedBy{Manager: "kubelet", Operation: "Apply", Subresource: "status", Time: at}},
		{deletedFrom(s, by("5", "kubectl", at)), nil},
		{addedTo(s, by("6", "kubectl", at)), &event.ChangedBy{Manager: "kubectl", Operation: "Apply", Subresource: "status", Time: at}},
	} {
		r.commit(step.c)
		events := r.Events()
		if len(events) != 1 {
			t.Fatalf("%d events", len(events))
		}
		if diff := cmp.Diff(step.want, events[0].ChangedBy); diff != "" {
			t.Errorf("%s at %s (-want +got):\n%s", events[0].Type, events[0].ResourceVersion, diff)
		}
		if strings.Contains(string(events[0].Object), "managedFields") {
			t.Errorf("they are in the event: %s", events[0].Object)
		}
	}
}

func TestSnapshotNever(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Snapshot = false }))
	s := r.feed(pods)
	r.commit(listedBy(s, r.Object("a", "u1", "1")), &feedSynced{feed: s})
	r.Expect()
	r.commit(missingFrom(s, r.Object("a", "u1", "1")))
	r.Expect("deleted a u1 1")
}

func TestClientSideSelector(t *testing.T) {
	filter, err := selector.NewFilter(selector.Namespaces{}, "tier=web", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.Filter = filter }))
	s := r.feed(pods)
	out1, in2, in3, out4 := r.Object("a", "u", "1", "db"), r.Object("a", "u", "2", "web"), r.Object("a", "u", "3", "web"), r.Object("a", "u", "4", "db")
	r.commit(addedTo(s, out1))
	r.Expect()
	for _, step := range []struct {
		c    change
		want string
		sel  event.Selection
	}{
		{updatedIn(s, in2, out1), "updated a u 2", event.Entered},
		{updatedIn(s, in3, in2), "updated a u 3", event.Inside},
		{updatedIn(s, out4, in3), "updated a u 4", event.Left},
	} {
		r.commit(step.c)
		r.Expect(step.want)
		if got := r.selections(1)[0]; got != step.sel {
			t.Errorf("%s: selection %q, want %q", step.want, got, step.sel)
		}
	}
	r.commit(deletedFrom(s, out4))
	r.Expect() // it was outside already
}

func TestServerSideSelector(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.ServerLabels = "tier=web" }))
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u", "1", "web")))
	r.Expect("added a u 1")
	if got := r.selections(1)[0]; got != event.Unknown {
		t.Errorf("selection %q, want unknown", got)
	}
}

func TestGapReachesTheSinks(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	gap := &dynamicfactory.Gap{Cause: "expired", From: "10", To: "99", ToTime: now}
	r.commit(&gapFound{feed: s, gap: gap})
	e := r.Expect("gap   ")[0]
	if e.Gap == nil || e.Gap.Watch != "w" || e.Gap.FromResourceVersion != "10" || e.Gap.ToResourceVersion != "99" || e.Gap.Cause != "expired" {
		t.Errorf("gap %+v", e.Gap)
	}
	if length := len(r.queued()); length != 1 {
		t.Errorf("%d events in the sink's queue, want the gap", length)
	}
}

// After a rollback the same version of the same object is another change.
func TestRollbackMakesNewIDs(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	add := addedTo(s, r.Object("a", "u1", "5"))
	r.commit(add, deletedFrom(s, r.Object("a", "u1", "8")))
	r.commit(&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "8", To: "6"}}, add)
	events := r.Events()
	if first, again := events[0], events[len(events)-1]; first.ID == again.ID {
		t.Error("the addition after the rollback has the id of the one before it")
	}
}

// TestOrderByPath puts everything that happens to one path in one lane, whatever
// lives there; objects without uid are told apart.
func TestOrderByPath(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(
		addedTo(s, r.Object("a", "u1", "1")),
		deletedFrom(s, r.Object("a", "u1", "2")),
		addedTo(s, r.Object("a", "u2", "3")),
		addedTo(s, r.Object("b", "", "4")),
		addedTo(s, r.Object("c", "", "4")),
	)
	q, err := r.Store.Queue("sink")
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
	events := r.Events()
	if events[3].ID == events[4].ID {
		t.Error("additions of two objects without uid have one id")
	}
}

// TestHistoryIsNotReadTwice hands over states that are recorded already, as a watch
// does that resumes from before them, through an informer that begins with the newest.
func TestHistoryIsNotReadTwice(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	a1, a2, a3 := r.Object("a", "u1", "9"), r.Object("a", "u1", "10"), r.Object("a", "u1", "11")
	r.commit(addedTo(s, a1), updatedIn(s, a2, a1))
	r.Expect("added a u1 9", "updated a u1 10")
	s.floor = "10"
	r.commit(
		updatedIn(s, a1, a2),
		updatedIn(s, a2, a1),
	)
	r.Expect()
	if n := testutil.ToFloat64(r.c.metrics.staleTotal); n != 1 {
		t.Errorf("%v states are counted as stale, want 1", n)
	}
	r.commit(updatedIn(s, a3, a2))
	r.Expect("updated a u1 11")
	if s.floor != "" {
		t.Error("the ledger is read for changes that no earlier life can have recorded")
	}
	opaque := r.Object("a", "u1", "x1")
	r.commit(updatedIn(s, opaque, a3))
	r.Expect("updated a u1 x1") // versions that are no numbers have no order
}

// TestFormerStatesAreEdited has versions differ while the form changes: neither the
// old object nor the patch shows what is dropped now.
func TestFormerStatesAreEdited(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(route.Spec{Name: "all", Payload: []string{"object", "oldObject", "patch", "summary"}, Sinks: []string{"sink"}})
	encode := func(s *Feed, version, spec string) change {
		o, err := r.Codec.Encode(fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u1","resourceVersion":%q},"spec":%s}`, version, spec), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		return listedBy(s, o)
	}
	s := r.feed(pods)
	s.recordedForm, s.synced = s.Form, true
	r.commit(encode(s, "1", `{"a":"1","b":"secret"}`))
	r.Expect("added a u1 1")

	r.watches = []plan.Watch{committest.PodWatch(func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.b") })}
	s = r.feed(pods)
	s.recordedForm, s.synced = "v1", true
	r.commit(encode(s, "2", `{"a":"2"}`))
	items, err := r.Store.ReadLog(r.Read, 10)
	if err != nil || len(items) != 1 {
		t.Fatalf("%d events, %v", len(items), err)
	}
	e, err := r.In.Event(items[0].Sequence, record.Object|record.OldObject|record.Patch|record.Summary, items[0].Payload, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(e.OldObject) + string(e.Patch); strings.Contains(got, "secret") || strings.Contains(got, "/spec/b") || !strings.Contains(got, "/spec/a") {
		t.Errorf("old object and patch are %s", got)
	}
	if want := "a 1 -> 2"; e.Summary != want {
		t.Errorf("summary is %q, want %q", e.Summary, want)
	}
}

// TestSummaryAlone has a route ask for the summary only: an update's record holds both
// states, which it is made from.
func TestSummaryAlone(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(route.Spec{Name: "all", Payload: []string{"summary"}, Sinks: []string{"sink"}})
	s := r.feed(pods)
	s.synced = true
	first, second := r.Object("a", "u1", "1", "web"), r.Object("a", "u1", "2", "db")
	r.commit(addedTo(s, first), updatedIn(s, second, first), deletedFrom(s, second))
	items, err := r.Store.ReadLog(0, 10)
	if err != nil || len(items) != 3 {
		t.Fatalf("%d events, %v", len(items), err)
	}
	for i, want := range []string{"added", "label tier web -> db", "deleted"} {
		e, err := r.In.Event(items[i].Sequence, record.Summary, items[i].Payload, "sink")
		if err != nil {
			t.Fatal(err)
		}
		if e.Summary != want || e.Object != nil || e.OldObject != nil || e.Patch != nil {
			t.Errorf("event %d has the summary %q, want %q; parts %s, %s, %s", i, e.Summary, want, e.Object, e.OldObject, e.Patch)
		}
		rec, err := record.Decode(items[i].Payload)
		if err != nil {
			t.Fatal(err)
		}
		if states := len(rec.Object.Data) > 0 && len(rec.OldObject.Data) > 0; states != (i == 1) || len(rec.Patch) > 0 {
			t.Errorf("event %d is recorded with both states: %t; patch %s", i, states, rec.Patch)
		}
	}
}

// TestWritingWithARetiredDictionary records what a cache held before a scrub.
func TestWritingWithARetiredDictionary(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.hide(committest.PodWatch())
	s := r.feed(pods)
	var last *compact.Object
	for i := range 20 {
		last = r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"%d"}}`, i+1))
	}
	r.c.dicts.Retire(func(string, uint32) bool { return true })
	if !r.c.dicts.Retired(last.Body().Dict) {
		t.Fatal("the object has no dictionary")
	}
	r.commit(addedTo(s, last))
	next := r.edited(s, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"99"}}`)
	r.commit(updatedIn(s, next, last), deletedFrom(s, last))
	log, err := r.Store.ReadLog(0, 10)
	if err != nil || len(log) != 3 {
		t.Fatalf("%d records, %v", len(log), err)
	}
	for _, it := range log {
		if _, changed, err := redact.NewReviser(r.edits, r.c.dicts).Record(it.Payload); err != nil || changed {
			t.Errorf("record %d was written with a retired dictionary (%v)", it.Sequence, err)
		}
	}
}

// TestRepairsAreOfOneList marks what the list of a consistency check shows, also of an object that the
// informer does not have, and not what a later list does.
func TestRepairsAreOfOneList(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "5", End: 3}})
	a, b := r.Object("a", "u1", "1").WithPosition(1), r.Object("b", "u2", "2").WithPosition(2)
	r.commit(addedTo(s, a), addedTo(s, b))
	r.recorded(s, r.Object("ghost", "u3", "1"))
	r.told()
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: CauseConsistencyCheck, From: "2", To: "5", FromTime: now, ToTime: now, Position: 3}},
		updatedIn(s, r.Object("a", "u1", "4"), a), updatedIn(s, b.WithPosition(3), b),
	)
	r.commit(missingFrom(s, b))
	want := []told{
		{Type: event.Gap, Cause: CauseConsistencyCheck},
		{Type: event.Updated, UID: "u1", Version: "4", Old: true, Repair: true},
		{Type: event.Deleted, UID: "u3", Version: "1", FinalStateUnknown: true, Repair: true},
		{Type: event.Deleted, UID: "u2", Version: "2", FinalStateUnknown: true},
	}
	if diff := cmp.Diff(want, r.told()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if n := testutil.ToFloat64(s.repaired); n != 2 {
		t.Errorf("%v repairs are counted", n)
	}
}

// TestRepairIsFoundBehindAnEvent has an event follow, in one commit, the list of a check that shows a loss:
// the loss is told of as one.
func TestRepairIsFoundBehindAnEvent(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "5", End: 2}})
	a := r.Object("a", "u1", "1").WithPosition(1)
	r.commit(addedTo(s, a))
	r.recorded(s, r.Object("ghost", "u3", "1"))
	r.Events()
	r.commit(
		&gapFound{feed: s, gap: &dynamicfactory.Gap{Cause: CauseConsistencyCheck, From: "1", To: "5", FromTime: now, ToTime: now, Position: 2}},
		updatedIn(s, a.WithPosition(2), a), addedTo(s, r.Object("b", "u2", "6").WithPosition(3)),
	)
	r.Expect("gap   ", "added b u2 6", "deleted ghost u3 1")
}

// TestCommittedEventsAreCounted counts events, and no record that is of a form alone.
func TestCommittedEventsAreCounted(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1")), updatedIn(s, r.Object("a", "u1", "2"), nil), deletedFrom(s, r.Object("a", "u1", "3")))
	r.commit(addedTo(s, r.Object("b", "u2", "4")))
	s.Form, s.synced = "another", true
	r.commit(updatedIn(s, r.Object("b", "u2", "4"), nil))
	for of, want := range map[event.Type]float64{event.Added: 2, event.Updated: 1, event.Deleted: 1, event.Sync: 0} {
		if n := testutil.ToFloat64(r.c.metrics.committedTotal.WithLabelValues(string(of))); n != want {
			t.Errorf("%v events of type %s are counted, want %v", n, of, want)
		}
	}
	if n := r.Store.LogStats().Records; n != 5 {
		t.Errorf("the log has %d records, want those of 4 events and of a form", n)
	}
}

// TestUncoveredIsNotUnrouted counts as unrouted what a watch covers, alone.
func TestUncoveredIsNotUnrouted(t *testing.T) {
	r := newRig(t, disk(), watchOf("elsewhere", "elsewhere"))
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1")))
	r.Expect()
	if n := testutil.ToFloat64(r.c.metrics.filteredTotal.WithLabelValues(string(event.Added))); n != 0 {
		t.Errorf("%v changes are counted", n)
	}
}

// TestIDsOfNamesakes tells the events of an object from those of its namesake, of the same
// version, and has an object without a uid have an ID of its own.
func TestIDsOfNamesakes(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	ids := map[string]bool{}
	for _, o := range []*compact.Object{r.Object("a", "u1", "5"), r.Object("a", "u2", "5"), r.Object("a", "", "5"), r.Object("b", "", "5")} {
		r.commit(addedTo(s, o))
		ids[r.Events()[0].ID] = true
		r.commit(deletedFrom(s, o))
		r.Events()
	}
	if len(ids) != 4 {
		t.Errorf("%d ids of four objects", len(ids))
	}
}

// TestDeletedInAnotherState deletes an object whose last state, which was not observed, a watch does not
// select. The watch was given the one before, and its end.
func TestDeletedInAnotherState(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) {
		w.Selection = plan.Selection{Labels: "tier=web"}
		var err error
		if w.Filter, err = w.Selection.Filter(); err != nil {
			t.Fatal(err)
		}
	}))
	s := r.feed(pods)
	r.commit(addedTo(s, r.Object("a", "u1", "1", "web")), addedTo(s, r.Object("b", "u2", "2", "db")))
	r.Expect("added a u1 1")
	r.commit(deletedFrom(s, r.Object("a", "u1", "4", "db")), deletedFrom(s, r.Object("b", "u2", "5", "db")))
	r.Expect("deleted a u1 4")
}
