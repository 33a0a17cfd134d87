package feed

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/plan"
)

// TestEventsOfRecordedStatesAreEdited hides what recorded states show, and has events
// made of these states before they are recorded again: what is hidden is not seen, now
// and after more is hidden.
func TestEventsOfRecordedStatesAreEdited(t *testing.T) {
	const raw = `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"2"},"spec":{"a":"` + plaintext + `","b":"shown"}}`
	for name, make := range map[string]func(r *rig, s *source){
		"a deletion that the first list shows": func(r *rig, s *source) {
			s.listed = map[uint64]struct{}{}
			r.commit(change{src: s, kind: sourceSynced})
		},
		"a namespace gets other labels": func(r *rig, s *source) {
			r.m.sources[s.key] = s
			r.commit(change{kind: namespaceSeen, obj: r.namespace("3", "prod")})
			clear(r.m.sources)
		},
		"an object goes while its namespace gets other labels": func(r *rig, s *source) {
			r.m.sources[s.key] = s
			r.commit(
				change{kind: namespaceSeen, obj: r.namespace("3", "prod")},
				change{src: s, kind: objectDeleted, obj: r.edited(s, raw)},
			)
			clear(r.m.sources)
		},
		"the definition is gone": func(r *rig, s *source) {
			former, err := r.m.formerSource(r.m.currentState(), s.partition, true)
			if err != nil {
				r.Fatal(err)
			}
			r.group.jobs = append(r.group.jobs, &farewell{src: former, notify: r.m.farewellOver})
			r.commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := func(*plan.Watch) {}
			if strings.Contains(name, "labels") {
				all = prodPods
			}
			r := newRig(t, t.TempDir(), podWatch(all))
			r.adopt([]plan.Watch{podWatch(all)})
			r.know(change{kind: namespaceSeen, obj: r.namespace("1", "dev")})
			s := r.source(pods)
			clear(r.m.sources)
			r.commit(change{src: s, kind: objectAdded, obj: r.edited(s, raw)})
			if err := r.m.noteSelections(givenBy([]*source{s})); err != nil {
				t.Fatal(err)
			}
			r.events()
			first := r.read

			hide := func(path string) func(*plan.Watch) {
				return func(w *plan.Watch) { w.Edits.Redact = append(w.Edits.Redact, path) }
			}
			r.adopt([]plan.Watch{podWatch(all, hide("spec.a"))})
			clear(r.m.sources)
			s = r.source(pods)
			s.recordedForm, s.synced = "v1", true
			make(r, s)
			r.read = first
			events := r.events()
			if len(events) == 0 {
				t.Error("there are no events")
			}
			for _, e := range events {
				if strings.Contains(string(e.Object), plaintext) || !strings.Contains(string(e.Object), "shown") {
					t.Errorf("%s with %s", e.Type, e.Object)
				}
			}
			r.adopt([]plan.Watch{podWatch(all, hide("spec"))})
			r.read = first
			for _, e := range r.events() {
				if strings.Contains(string(e.Object), "shown") {
					t.Errorf("later %s with %s", e.Type, e.Object)
				}
			}
		})
	}
}
