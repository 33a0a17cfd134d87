package pipeline

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// plaintext is what must not be seen once it is redacted.
const plaintext = "hunter2-canary"

var secretResource = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, Kind: "Secret", Namespaced: true}

var namespaceResource = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"}

// adopt puts the edits of a state with these watches and routes in place, as a reload does.
func (r *rig) adopt(watches []plan.Watch, routes ...route.Spec) {
	r.Helper()
	if len(routes) == 0 {
		routes = []route.Spec{allParts("all")}
	}
	router, err := route.Compile(routes)
	if err != nil {
		r.Fatal(err)
	}
	st := &plan.State{Watches: watches, Router: router, Routes: routes, Sinks: []plan.Sink{{Name: "sink"}}}
	d, err := r.m.desire(st)
	if err != nil {
		r.Fatal(err)
	}
	rev, err := r.m.revise(st, d)
	if err != nil {
		r.Fatal(err)
	}
	if err := r.m.acceptEdits(&rev); err != nil {
		r.Fatal(err)
	}
	r.m.adoptEdits(&rev)
	r.m.prepareRouter(router)
	r.adoptRouter(router)
	r.m.setState(st)
}

func allParts(name string) route.Spec {
	return route.Spec{Name: name, Payload: []string{"object", "oldObject", "patch"}, Sinks: []string{"sink"}}
}

// edited is an object as the source's informer would hold it.
func (r *rig) edited(s *commit.Feed, raw string) *compact.Object {
	r.Helper()
	return r.Edited(s.Partition, s.Key.GVR.GroupResource().String(), s.Edit, raw)
}

// everything is all that a sink, an onlooker and a reader of dead letters would see now.
func (r *rig) everything() (text string, events []*event.Event) {
	r.Helper()
	var b bytes.Buffer
	add := func(e *event.Event, err error) {
		if err != nil {
			r.Fatal(err)
		}
		if e == nil {
			return // no event
		}
		events = append(events, e)
		b.Write(event.AppendCloudEvent(nil, e))
	}
	q, err := r.Store.Queue("sink")
	if err != nil {
		r.Fatal(err)
	}
	items, err := q.Read(0, 1000, 1<<20)
	if err != nil {
		r.Fatal(err)
	}
	for _, it := range items {
		add(query.Decode(r.m.inflater, "sink", it))
	}
	letters, err := q.DeadLetters(0, 1000)
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range letters {
		add(r.m.reader.LetterEvent("sink", l.Item))
		b.WriteString(r.m.reader.LetterReason(&l))
	}
	log, err := r.Store.ReadLog(0, 1000)
	if err != nil {
		r.Fatal(err)
	}
	for _, it := range log {
		add(r.m.reader.LogEvent(it, func(*event.Event, []string) bool { return true }))
	}
	return b.String(), events
}

// TestTightenedEditsReachWhatIsRecorded records plaintext, hides it, and looks wherever
// it could still come out.
func TestTightenedEditsReachWhatIsRecorded(t *testing.T) {
	pod := func(version, value string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"` + version + `"},"spec":{"a":"` + value + `","b":{"c":["` + value + `"]}}}`
	}
	secret := func(version, value string) string {
		return `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"` + version + `"},"data":{"a":"` + value + `"}}`
	}
	exposed := func(w *plan.Watch) { w.Resources, w.Edits.ExposeSecrets = []string{"secrets"}, true }
	for _, tc := range []struct {
		name          string
		res           dynamicfactory.Resource
		raw           func(version, value string) string
		before, after func(*plan.Watch)
		namespaced    bool
		kept          bool // what is hidden leaves a hash
	}{
		{"redact", pods, pod, func(*plan.Watch) {}, func(w *plan.Watch) { w.Edits.Redact = []string{"spec.a", "spec.b.c[*]"} }, false, true},
		{"redact above", pods, pod, func(*plan.Watch) {}, func(w *plan.Watch) { w.Edits.Redact = []string{"spec"} }, false, true},
		{"drop", pods, pod, func(*plan.Watch) {}, func(w *plan.Watch) { w.Edits.Drop = append(w.Edits.Drop, "spec.a", "spec.b") }, false, false},
		{"secrets", secretResource, secret, exposed, func(w *plan.Watch) { w.Resources = []string{"secrets"} }, false, true},
		{"the watch waits for its resource", pods, pod, func(*plan.Watch) {}, func(w *plan.Watch) { w.Resources, w.Edits.Redact = []string{"pods.v9"}, []string{"spec"} }, false, true},
		{"of a namespace", pods, pod, func(*plan.Watch) {}, func(w *plan.Watch) { w.Namespaces, w.Edits.Redact = []string{"ns"}, []string{"spec"} }, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			check := func(r *rig) {
				text, events := r.everything()
				if strings.Contains(text, plaintext) {
					t.Errorf("the plaintext is seen: %s", text)
				}
				if hashes := strings.Contains(text, "redacted:hmac-sha256:"); hashes != tc.kept {
					t.Errorf("hashes in the place of values: %t, want %t: %s", hashes, tc.kept, text)
				}
				for _, e := range events {
					if e.Type == event.Updated && (e.Object == nil || e.OldObject == nil || e.Patch == nil) {
						t.Errorf("parts are missing: %s", event.AppendData(nil, e))
					}
				}
			}
			t.Run("reload", func(t *testing.T) {
				r := newRig(t, dir, committest.PodWatch(tc.before))
				r.adopt([]plan.Watch{committest.PodWatch(tc.before)})
				s := r.source(tc.res)
				first, second := r.edited(s, tc.raw("1", plaintext)), r.edited(s, tc.raw("2", plaintext+"2"))
				r.commit(addedTo(s, first), updatedIn(s, second, first))
				r.commit(deletedFrom(s, second))
				q, err := r.Store.Queue("sink")
				if err != nil {
					t.Fatal(err)
				}
				items, err := q.Read(0, 1, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				if err := q.DeadLetter(items[0].Position, store.Letter{Reason: "refused: status 422: no " + plaintext}); err != nil {
					t.Fatal(err)
				}
				if text, _ := r.everything(); strings.Count(text, plaintext) < 8 {
					t.Fatalf("the plaintext is not where it should be: %s", text)
				}
				changed, tightened := r.m.editsChanged.Load(), r.m.editsTightened.Load()
				r.adopt([]plan.Watch{committest.PodWatch(tc.after)})
				check(r)
				// Workers decode again what they have, and show no error of before.
				if r.m.editsChanged.Load() == changed || r.m.editsTightened.Load() == tightened {
					t.Error("the workers are not notified")
				}
				changed, tightened = r.m.editsChanged.Load(), r.m.editsTightened.Load()
				// Looser edits bring back only what is recorded; here nothing was rewritten.
				r.adopt([]plan.Watch{committest.PodWatch(tc.before)})
				if text, _ := r.everything(); !strings.Contains(text, plaintext) {
					t.Errorf("nothing is seen any more: %s", text)
				}
				if r.m.editsChanged.Load() == changed || r.m.editsTightened.Load() != tightened {
					t.Error("the workers are not notified, or withhold errors that quote nothing hidden")
				}
				r.adopt([]plan.Watch{committest.PodWatch(tc.after)})
			})
			t.Run("restart", func(t *testing.T) {
				check(newRig(t, dir, committest.PodWatch(tc.after)))
			})
		})
	}
}

// TestTightenedEditsReachWhatRoutesCount has a route quote plaintext in the error of its
// expression and in the labels of its metric, and hides it.
func TestTightenedEditsReachWhatRoutesCount(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	spec := allParts("all")
	spec.When = "quantity(object.spec.a).isInteger()"
	counting := allParts("counting")
	counting.Metric = &route.Metric{Name: "m", Labels: map[string]string{"a": "object.spec.a"}, MaxSeries: 10}
	seen := func() string {
		var b strings.Builder
		router := r.m.currentState().Router
		for _, s := range router.Stats() {
			fmt.Fprintln(&b, s.Route, s.Matched, s.Errors, s.FirstError)
		}
		for _, m := range router.Metrics() {
			fmt.Fprintln(&b, m.Series)
		}
		return b.String()
	}
	happens := func(watch plan.Watch, version string) {
		r.adopt([]plan.Watch{watch}, spec, counting)
		s := r.source(pods)
		r.commit(addedTo(s, r.edited(s, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a`+version+`","uid":"u`+version+`","resourceVersion":"`+version+`"},"spec":{"a":"`+plaintext+`"}}`)))
	}
	happens(committest.PodWatch(), "1")
	if text := seen(); strings.Count(text, plaintext) != 2 {
		t.Fatalf("the plaintext is not where it should be: %s", text)
	}
	happens(committest.PodWatch(func(w *plan.Watch) { w.Edits.Redact = []string{"spec.a"} }), "2")
	if text := seen(); strings.Contains(text, plaintext) || strings.Count(text, "redacted:hmac-sha256:") != 2 || !strings.Contains(text, "all 0 2 ") {
		t.Errorf("after the edits: %s", text)
	}
}

// TestTightenedEditsReachUnseenFields has a route read a key that an object names and no object has, and hides the name.
func TestTightenedEditsReachUnseenFields(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	spec := allParts("all")
	spec.When = "object.spec[object.spec.a] == 1"
	r.adopt([]plan.Watch{committest.PodWatch()}, spec)
	s := r.source(pods)
	for i := range unseen.Enough {
		r.commit(addedTo(s, r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a%[1]d","uid":"u%[1]d","resourceVersion":"1%[1]d"},"spec":{"a":%[2]q}}`, i, plaintext))))
	}
	seen := func() string { return fmt.Sprint(r.m.currentState().Router.Stats()[0].Unseen) }
	if text := seen(); !strings.Contains(text, plaintext) {
		t.Fatalf("the plaintext is not where it should be: %s", text)
	}
	r.adopt([]plan.Watch{committest.PodWatch(func(w *plan.Watch) { w.Edits.Redact = []string{"spec.a"} })}, spec)
	if text := seen(); strings.Contains(text, plaintext) || !strings.Contains(text, "when") {
		t.Errorf("after the edits: %s", text)
	}
}

// TestEditsOfRoutes are applied to what a sink gets: of several routes those of all.
func TestEditsOfRoutes(t *testing.T) {
	raw := func(version, a, b string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"` + version + `"},"spec":{"a":"` + a + `","b":"` + b + `"}}`
	}
	r := newRig(t, t.TempDir(), committest.PodWatch())
	if _, err := r.Store.EnsureSink("open", store.FromNow); err != nil {
		t.Fatal(err)
	}
	one, two, open := allParts("one"), allParts("two"), allParts("open")
	one.Redact, two.Drop, open.Sinks = []string{"spec.a"}, []string{"spec.b"}, []string{"open"}
	one.When, two.When = `object.spec.a.startsWith("A")`, `object.spec.b == "B2" || object.spec.b == "B1"` // they see what the sink does not
	r.adopt([]plan.Watch{committest.PodWatch()}, one, two, open)
	s := r.source(pods)
	first, second := r.edited(s, raw("1", "A1", "B1")), r.edited(s, raw("2", "A2", "B2"))
	r.commit(addedTo(s, first), updatedIn(s, second, first))

	got := func(sink string) string {
		q, err := r.Store.Queue(sink)
		if err != nil {
			t.Fatal(err)
		}
		items, err := q.Read(0, 10, 1<<20)
		if err != nil || len(items) != 2 {
			t.Fatalf("%d events, %v", len(items), err)
		}
		var text string
		for _, it := range items {
			e, err := query.Decode(r.m.inflater, sink, it)
			if err != nil {
				t.Fatal(err)
			}
			text += string(event.AppendData(nil, e))
		}
		return text
	}
	closed := got("sink")
	for _, hidden := range []string{"A1", "A2", "B1", "B2", `"b"`} {
		if strings.Contains(closed, hidden) {
			t.Errorf("%s is in %s", hidden, closed)
		}
	}
	if !strings.Contains(closed, `"path":"/spec/a","value":"redacted:hmac-sha256:`) {
		t.Errorf("the change does not show in the patch: %s", closed)
	}
	if text := got("open"); strings.Contains(text, "redacted:") || !strings.Contains(text, "B2") {
		t.Errorf("a route without edits has them: %s", text)
	}

	// A route that is gone leaves its edits to what it led on.
	r.adopt([]plan.Watch{committest.PodWatch()}, open)
	if text := got("sink"); text != closed {
		t.Errorf("without its routes the sink gets %s", text)
	}
	// Tighter edits reach the backlog; other routes to the sink do not matter to it.
	one.Drop = []string{"spec"}
	r.adopt([]plan.Watch{committest.PodWatch()}, one, two, open)
	if text := got("sink"); strings.Contains(text, `"spec"`) || strings.Contains(text, "/spec/") {
		t.Errorf("spec is in %s", text)
	}
}

// unknown is a Resolver before its first answer of the API server.
type unknown struct{}

func (unknown) Changed() <-chan struct{} { return nil }
func (unknown) Resolve(string) ([]dynamicfactory.Resource, error) {
	return nil, dynamicfactory.ErrNotReady
}

func (u unknown) Table() func(string) ([]dynamicfactory.Resource, error) { return u.Resolve }

// TestStartWithoutDiscoveryKeepsEditsByNamespace hides in each namespace what its watch
// hides, while the served resources are not known.
func TestStartWithoutDiscoveryKeepsEditsByNamespace(t *testing.T) {
	dir := t.TempDir()
	watches := []plan.Watch{watchIn("open", "ns"), watchIn("closed", "other", "spec.password")}
	t.Run("first life", func(t *testing.T) {
		r := newRig(t, dir)
		r.adopt(watches)
		for _, s := range mustDesire(r).feeds {
			if s.Key.Namespace == "ns" {
				canaryPods(r, s, 1)
			}
		}
	})
	t.Run("second life", func(t *testing.T) {
		r := newRig(t, dir)
		r.m.cfg.Resolver = unknown{}
		r.adopt(watches)
		if text, _ := r.everything(); !strings.Contains(text, plaintext) || strings.Contains(text, "redacted:") {
			t.Errorf("the edits of one namespace apply to another: %.600s", text)
		}
		if s := r.m.scrubStatus(); s != nil {
			t.Errorf("a scrub is begun though nothing more is hidden: %+v", s)
		}
	})
}

// watchIn watches the pods of one namespace.
func watchIn(name, namespace string, redact ...string) plan.Watch {
	w := committest.PodWatch()
	w.Name, w.Namespaces, w.Edits.Redact = name, []string{namespace}, redact
	return w
}

func mustDesire(r *rig) desired {
	r.Helper()
	d, err := r.m.desire(r.m.currentState())
	if err != nil {
		r.Fatal(err)
	}
	return d
}

// TestNothingIsTightenedByTheSameState applies one state twice, where namespaces are
// edited differently and what was recorded of others is kept.
func TestNothingIsTightenedByTheSameState(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.adopt([]plan.Watch{committest.PodWatch()})
	watches := []plan.Watch{watchIn("open", "ns"), watchIn("closed", "other", "spec.password")}
	r.adopt(watches)
	st := r.m.currentState()
	d := mustDesire(r)
	rev, err := r.m.revise(st, d)
	if err != nil {
		t.Fatal(err)
	}
	if len(rev.tightened) > 0 {
		t.Errorf("the same state again hides more of %v", rev.tightened)
	}
}

// TestEditsDoNotWaitForNamespaces hides at once what a watch is to hide, although the
// labels of namespaces are not known by which it selects from now on.
func TestEditsDoNotWaitForNamespaces(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	r.adopt([]plan.Watch{committest.PodWatch()})
	s := r.source(pods)
	r.run(s)
	canaryPods(r, s, 1)
	r.adopt([]plan.Watch{committest.PodWatch(hiding, func(w *plan.Watch) {
		w.Selection.Namespaces.Selector = "env=prod"
		filter, err := w.Selection.Filter()
		if err != nil {
			t.Fatal(err)
		}
		w.Filter = filter
	})})
	if text, _ := r.everything(); strings.Contains(text, plaintext) {
		t.Errorf("the plaintext is seen: %.600s", text)
	}
	after := r.source(pods)
	if text, err := r.edited(after, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"new","uid":"u","resourceVersion":"9"},"spec":{"password":"`+plaintext+`"}}`).AppendJSON(nil); err != nil || strings.Contains(string(text), plaintext) {
		t.Errorf("a new object is %s, %v", text, err)
	}
	if h, ok := after.WatchNamed("w"); !ok || h.Watch.Filter != nil {
		t.Error("it selects by labels that are not known")
	}
}
