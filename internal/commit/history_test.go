package commit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// logged are the records of the log, each as "type name version<the version before, with
// + if the record has that state too", and checks the headlines against them.
func (r *rig) logged() (lines []string) {
	r.Helper()
	items, err := r.Store.ReadLog(0, 1000)
	if err != nil {
		r.Fatal(err)
	}
	versions := map[uint64]string{0: "none"}
	var want, got []headline.Row
	for _, it := range items {
		rec, err := record.Decode(it.Payload)
		if err != nil {
			r.Fatal(err)
		}
		e := &rec.Event
		versions[it.Sequence] = e.ResourceVersion
		line := fmt.Sprintf("%s %s %s", e.Type, e.Name, e.ResourceVersion)
		if rec.State {
			line += "<" + versions[rec.Prev]
			if len(rec.Object.Data) == 0 {
				r.Errorf("%s has no state", line)
			}
		}
		if rec.State && len(rec.OldObject.Data) > 0 {
			line += "+"
		}
		if rec.Rerecorded {
			line += " rerecorded"
		}
		if rec.Status {
			line += " status"
		}
		lines = append(lines, line)
		row := rec.Headline(it.Sequence, event.Inside)
		want = append(want, row)
	}
	err = r.Store.ScanHeadlines(0, 1<<62, false, func(blocks []byte) error {
		return new(headline.Reader).Read(blocks, "", func(row *headline.Row) error {
			kept := *row // its texts are those of the blocks
			kept.Class = 0
			kept.Namespace, kept.Name, kept.Manager = strings.Clone(row.Namespace), strings.Clone(row.Name), strings.Clone(row.Manager)
			got = append(got, kept)
			return nil
		})
	})
	if err != nil {
		r.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("headlines: %s", diff)
	}
	return lines
}

// Every change of a watch is in the log, with the record that it follows on, whether a
// route takes it or not.
func TestHistory(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(route.Spec{Name: "deletions", Events: []event.Type{event.Deleted}, Payload: []string{"patch"}, Sinks: []string{"sink"}})
	s := r.feed(pods)
	s.synced, s.recordedForm = true, s.Form
	a1, a2, a3, b2 := r.Object("a", "u1", "1"), r.Object("a", "u1", "2"), r.Object("a", "u1", "3"), r.Object("b", "u2", "2")
	r.commit(addedTo(s, a1), updatedIn(s, a2, a1), addedTo(s, b2))
	r.commit(updatedIn(s, a3, a2), deletedFrom(s, r.Object("b", "u2", "4")))
	r.commit(updatedIn(s, a3, a3))

	s = r.feed(pods) // the next process: the informer begins with what the ledger has
	s.synced, s.recordedForm, s.floor = true, s.Form, "4"
	a5, a6 := r.Object("a", "u1", "5"), r.Object("a", "u9", "6")
	r.commit(listedBy(s, r.Object("a", "u1", "3")), updatedIn(s, a5, r.Object("a", "u1", "3")), listedBy(s, a6))
	want := []string{
		"added a 1<none", "updated a 2<1", "added b 2<none", "updated a 3<2", "deleted b 4<2", "updated a 5<3",
		"deleted a 5<5", "added a 6<none",
	}
	if diff := cmp.Diff(want, r.logged()); diff != "" {
		t.Error(diff)
	}
	if items := r.queued(); len(items) != 2 {
		t.Errorf("%d events are queued, want the deletions", len(items))
	}
}

// A state before that may leave the log long before the record is in the record too.
func TestHistoryKeepsOldStates(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route()
	s := r.feed(pods)
	s.synced = true
	a1, a2, a3 := r.Object("a", "u1", "1"), r.Object("a", "u1", "2"), r.Object("a", "u1", "3")
	r.commit(addedTo(s, a1), addedTo(s, r.Object("b", "u2", "1")))
	r.c.store = agedStore{r.c.store, r.Store.LogStats().Last}
	r.commit(updatedIn(s, a2, a1))
	r.commit(updatedIn(s, a3, a2), deletedFrom(s, r.Object("b", "u2", "4")))
	want := []string{"added a 1<none", "added b 1<none", "updated a 2<1+", "updated a 3<2", "deleted b 4<1"}
	if diff := cmp.Diff(want, r.logged()); diff != "" {
		t.Error(diff)
	}
}

// A watch without a history has recorded what routes take, and the history that begins
// later says that it does not know what was before.
func TestWithoutHistory(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(func(w *plan.Watch) { w.History = false }))
	r.route(route.Spec{Name: "deletions", Events: []event.Type{event.Deleted}, Payload: []string{"object"}, Sinks: []string{"sink"}})
	s := r.feed(pods)
	s.synced = true
	a1, a2, a3 := r.Object("a", "u1", "1"), r.Object("a", "u1", "2"), r.Object("a", "u1", "3")
	r.commit(addedTo(s, a1), updatedIn(s, a2, a1), deletedFrom(s, r.Object("a", "u1", "3")))
	r.commit(addedTo(s, a1))
	r.watches[0].History = true
	s = r.feed(pods)
	s.synced = true
	r.commit(updatedIn(s, a2, a1))
	r.commit(updatedIn(s, a3, a2))
	want := []string{"deleted a 3", "updated a 2<none+", "updated a 3<2"}
	if diff := cmp.Diff(want, r.logged()); diff != "" {
		t.Error(diff)
	}
}

// The form that other edits give a state is in the history, and no event.
func TestHistoryOfEdits(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route(route.Spec{Name: "all", Payload: []string{"object"}, Sinks: []string{"sink"}})
	s := r.feed(pods)
	s.synced, s.recordedForm = true, s.Form
	r.commit(addedTo(s, r.Object("a", "u1", "1")))
	s = r.feed(pods)
	s.synced, s.recordedForm = true, "another"
	a1 := r.Object("a", "u1", "1")
	r.commit(listedBy(s, a1), updatedIn(s, r.Object("a", "u1", "2"), a1))
	want := []string{"added a 1<none", "sync a 1<1 rerecorded", "updated a 2<1"}
	if diff := cmp.Diff(want, r.logged()); diff != "" {
		t.Error(diff)
	}
	r.Expect("added a u1 1", "updated a u1 2") // the rig leaves out what is no event
	if items := r.queued(); len(items) != 2 {
		t.Errorf("%d events are queued, want 2", len(items))
	}
}

// agedStore has a log that has aged up to a sequence.
type agedStore struct {
	Store
	last uint64
}

func (s agedStore) Old(time.Time) uint64 { return s.last }

// An update is of status alone if it was made through the status subresource, and leaves generation,
// labels and deletion: a deletion changes no managed fields.
func TestStatusAlone(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	r.route()
	s := r.feed(pods)
	version := 0
	object := func(label, deleted, subresource string, generation int) *compact.Object {
		version++
		return r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"%d","generation":%d,"labels":{"app":%q}%s,
			"managedFields":[{"manager":"kubectl","operation":"Update","time":"2026-11-22T09:00:00Z"},{"manager":"kubelet","operation":"Update","subresource":%q,"time":"2026-11-22T09:00:01Z"}]}}`,
			version, generation, label, deleted, subresource))
	}
	states := []*compact.Object{
		object("web", "", "status", 1),
		object("web", "", "status", 1),
		object("web", "", "status", 2),
		object("api", "", "status", 2),
		object("api", `,"deletionTimestamp":"2026-11-22T09:00:02Z"`, "status", 2),
		object("api", `,"deletionTimestamp":"2026-11-22T09:00:02Z"`, "", 2),
		object("api", `,"deletionTimestamp":"2026-11-22T09:00:02Z"`, "scale", 2),
		object("api", `,"deletionTimestamp":"2026-11-22T09:00:02Z"`, "status", 2),
	}
	r.commit(addedTo(s, states[0]))
	for i := 1; i < len(states); i++ {
		r.commit(updatedIn(s, states[i], states[i-1]))
	}
	var got []string
	for _, line := range r.logged() {
		if strings.HasSuffix(line, " status") {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff([]string{"updated a 2<1 status", "updated a 8<7 status"}, got); diff != "" {
		t.Error(diff)
	}
}
