package commit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestEventsOfRecordedStatesAreEdited hides what recorded states show, and has events
// made of these states before they are recorded again: what is hidden is not seen, now
// and after more is hidden.
func TestEventsOfRecordedStatesAreEdited(t *testing.T) {
	const raw = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"2"},"spec":{"a":"hunter2","b":"shown"}}`
	for name, make := range map[string]func(r *rig, s *Feed){
		"a deletion that the first list shows": func(r *rig, s *Feed) {
			s.listed = map[uint64]struct{}{}
			r.commit(&feedSynced{feed: s})
		},
		"a namespace gets other labels": func(r *rig, s *Feed) {
			r.running = append(r.running, s)
			r.commit(&namespaceSeen{obj: r.namespace("3", "prod")})
			r.running = nil
		},
		"an object goes while its namespace gets other labels": func(r *rig, s *Feed) {
			r.running = append(r.running, s)
			r.commit(
				&namespaceSeen{obj: r.namespace("3", "prod")},
				deletedFrom(s, r.edited(s, raw)),
			)
			r.running = nil
		},
		"the definition is gone": func(r *rig, s *Feed) {
			former, err := r.c.FormerFeed(s.Partition, r.watches, meant, true)
			if err != nil {
				r.Fatal(err)
			}
			Barrier{r.group}.add(&Farewell{feed: former, notify: make(chan struct{}, 1)})
			r.commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := func(*plan.Watch) {}
			if strings.Contains(name, "labels") {
				all = committest.ProdPods
			}
			r := newRig(t, disk(), committest.PodWatch(all))
			r.hide(committest.PodWatch(all))
			r.route(route.Spec{Name: "all", Payload: []string{"object", "oldObject", "patch"}, Sinks: []string{"sink"}})
			r.know(&namespaceSeen{obj: r.namespace("1", "dev")})
			s := r.feed(pods)
			r.running = nil
			r.commit(addedTo(s, r.edited(s, raw)))
			if err := r.note(givenBy([]*Feed{s})); err != nil {
				t.Fatal(err)
			}
			r.Events()
			first := r.Read

			hide := func(path string) func(*plan.Watch) {
				return func(w *plan.Watch) { w.Edits.Redact = append(w.Edits.Redact, path) }
			}
			r.hide(committest.PodWatch(all, hide("spec.a")))
			r.running = nil
			s = r.feed(pods)
			s.recordedForm, s.synced = "v1", true
			make(r, s)
			r.Read = first
			events := r.Events()
			if len(events) == 0 {
				t.Error("there are no events")
			}
			for _, e := range events {
				if strings.Contains(string(e.Object), "hunter2") || !strings.Contains(string(e.Object), "shown") {
					t.Errorf("%s with %s", e.Type, e.Object)
				}
			}
			r.hide(committest.PodWatch(all, hide("spec")))
			r.Read = first
			for _, e := range r.Events() {
				if strings.Contains(string(e.Object), "shown") {
					t.Errorf("later %s with %s", e.Type, e.Object)
				}
			}
		})
	}
}

// TestWidenedFeedHidesRecordedStates widens a watch to all namespaces and hides what recorded states show, at once: what is hidden is not
// seen in the events that follow, whether a state is in the list of the whole, is later than that, or goes.
func TestWidenedFeedHidesRecordedStates(t *testing.T) {
	for _, lives := range []int{1, 2} {
		t.Run(fmt.Sprint("lives: ", lives), func(t *testing.T) {
			r := newRig(t, disk(), committest.PodWatch())
			r.hide(committest.PodWatch())
			r.route(route.Spec{Name: "all", Payload: []string{"object", "oldObject", "patch"}, Sinks: []string{"sink"}})
			state := func(s *Feed, name, version string, position uint64) *compact.Object {
				return r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":%q},"spec":{"a":"hunter2","b":"shown"}}`, name, "u-"+name, version)).WithPosition(position)
			}
			part := r.feedIn(pods, "ns")
			r.commit(addedTo(part, state(part, "still", "80", 0)), addedTo(part, state(part, "moving", "90", 0)), addedTo(part, state(part, "going", "91", 0)))
			r.commit(updatedIn(part, state(part, "moving", "150", 0), nil))
			r.Events()
			r.saveAll(map[string]ledger.Checkpoint{
				"pods#a":  {ResourceVersion: "100", Synced: true, Time: now, Form: part.Form},
				"pods#ns": {ResourceVersion: "200", Synced: true, Time: now, Form: part.Form},
			})
			first := r.Read
			r.hide(committest.PodWatch(func(w *plan.Watch) { w.Edits.Redact = append(w.Edits.Redact, "spec.a") }))
			var s *Feed
			for range lives {
				s = r.feed(pods)
				r.succeeds(s)
				s.Subscribed(&informer{list: &dynamicfactory.List{ResourceVersion: "100", End: 1}, checkpoints: map[uint64]string{1: "100", 2: "149", 5: "220"}})
				r.commit(listedBy(s, state(s, "still", "80", 0)), listedBy(s, state(s, "going", "91", 0)), listedBy(s, state(s, "moving", "90", 1)), &feedSynced{feed: s})
			}
			r.commit(updatedIn(s, state(s, "moving", "150", 2), nil))
			r.commit(updatedIn(s, state(s, "still", "210", 3), nil), updatedIn(s, state(s, "moving", "211", 4), nil), deletedFrom(s, state(s, "going", "220", 5)))
			if cp := r.saved(s); cp.Ahead != nil || cp.Form != s.Form {
				t.Errorf("the checkpoint is %+v", cp)
			}
			r.Read = first
			for _, e := range r.Expect("updated still u-still 210", "updated moving u-moving 211", "deleted going u-going 220") {
				if text := string(e.Object) + string(e.OldObject) + string(e.Patch); strings.Contains(text, "hunter2") || !strings.Contains(text, "shown") {
					t.Errorf("%s with %s, old %s, patch %s", e.Type, e.Object, e.OldObject, e.Patch)
				}
			}
		})
	}
}

// TestFarewellOfDamagedStates deletes a definition of whose recorded objects one is damaged: as the deletion of
// that one cannot be reported, there is a gap.
func TestFarewellOfDamagedStates(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.liveFeed()
	r.commit(addedTo(s, r.Object("a", "u1", "3")), addedTo(s, r.Object("b", "u2", "4")))
	r.damaged(s, "a")
	if err := r.note(givenBy([]*Feed{s})); err != nil {
		t.Fatal(err)
	}
	r.Events()
	r.running = nil
	former, err := r.c.FormerFeed(s.Partition, r.watches, meant, false)
	if err != nil {
		t.Fatal(err)
	}
	Barrier{r.group}.add(&Farewell{feed: former, at: r.at, notify: make(chan struct{}, 1)})
	r.commit()
	for _, e := range r.Expect("deleted b u2 4", "gap   ") {
		if e.Gap != nil && e.Gap.Cause != dynamicfactory.CauseUnreadable {
			t.Errorf("the gap is %+v", e.Gap)
		}
	}
}
