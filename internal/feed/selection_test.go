package feed

import (
	"net/http"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
)

// inProd is a watch of namespaces with env=prod, by rules that are recorded.
func inProd(w *plan.Watch) {
	prodPods(w)
	w.Selection.Namespaces.Selector = "env=prod"
	w.Fingerprint += "prod"
}

// TestSelectorWaitsOverARestart gives a watch a namespace selector while namespaces
// cannot be listed, and restarts: it keeps the selection that it had.
func TestSelectorWaitsOverARestart(t *testing.T) {
	api, names := podServer(t, 4)
	api.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path != "/api/v1/namespaces" || strings.Contains(req.URL.RawQuery, "kube-system") {
			return false
		}
		apitest.Fail(w, http.StatusForbidden, "Forbidden")
		return true
	})
	dir := t.TempDir()
	other := podWatch(named("other"))
	l := runLive(t, dir, outbox.Options{}, api, served{pods}).withX()
	l.apply(l.routed(podWatch(), other))
	l.synced()
	l.apply(l.routed(podWatch(inProd), other))
	l.stop()
	l = runLive(t, dir, outbox.Options{}, api, served{pods})
	l.apply(l.routed(podWatch(inProd), other))
	api.Put(podPath, "ns", names[0], phase("1"))
	api.Delete(podPath, "ns", names[1])
	l.caughtUp()
	h := l.queued()
	if got := h.types(names[0]) + ", " + h.types(names[1]); got != "sync updated, sync deleted" {
		t.Errorf("the watch was given %s", got)
	}
}

// TestWatchComesBackAfterParts takes a watch of all namespaces away while another one
// reads two of them, and puts it back: it is given what was recorded meanwhile.
func TestWatchComesBackAfterParts(t *testing.T) {
	api, _ := podServer(t, 1)
	l := runLive(t, t.TempDir(), outbox.Options{}, api, served{pods}).withX()
	l.apply(l.routed(podWatch()))
	l.synced()
	l.apply(l.state(podWatch(named("other"), only("ns"))))
	api.Put(podPath, "ns", "made-meanwhile", nil)
	eventually(t, "the new pod", func() bool { return l.log().types("made-meanwhile") == "added" })
	l.apply(l.routed(podWatch(), podWatch(named("other"))))
	l.caughtUp()
	eventually(t, "the watch is given the new pod", func() bool { return l.queued().types("made-meanwhile") == "sync" })
}

// TestEndBeforeAWiderSourceGives ends the process when the rules of the parts of a source
// are dropped and its watches have not been given their objects: the next start has not
// forgotten that.
func TestEndBeforeAWiderSourceGives(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	parts := r.sourcesOf(podWatch(named("other"), only("a", "b")))
	if err := r.m.noteSelections(givenBy(parts)); err != nil {
		t.Fatal(err)
	}
	s := r.source(pods)
	j := newSnapshot(s, (*s.hits.Load())[0])
	if err := r.m.durable([]*snapshot{j}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.m.noteSelections(given{s.id: {"w": nil}}); err != nil {
		t.Fatal(err)
	}
	if gained, err := r.m.startGains([]*source{s}); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects at the next start, %v", len(gained), err)
	}
}

// sourcesOf are the sources that watches ask for.
func (r *rig) sourcesOf(watches ...plan.Watch) (list []*source) {
	r.Helper()
	d, err := r.m.desire(&plan.State{Watches: watches})
	if err != nil {
		r.Fatal(err)
	}
	for _, s := range d.sources {
		list = append(list, s)
	}
	return list
}

// TestSelectorGoesWithTheDefinition takes a namespace selector out of a watch, and with
// that the labels are forgotten, when a definition goes: its deletions reach the watch.
func TestSelectorGoesWithTheDefinition(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch(inProd))
	s := r.know(change{kind: namespaceSeen, obj: r.namespace("1", "prod")})
	clear(r.m.sources)
	r.commit(change{src: s, kind: objectAdded, obj: r.object("a", "u1", "2")})
	if err := r.m.noteSelections(givenBy([]*source{s})); err != nil {
		t.Fatal(err)
	}
	r.expect("added a u1 2")
	r.m.setState(&plan.State{Watches: []plan.Watch{podWatch()}})
	if err := r.m.forgetNamespaces(); err != nil {
		t.Fatal(err)
	}
	former, err := r.m.formerSource(r.m.currentState(), s.partition, true)
	if err != nil {
		t.Fatal(err)
	}
	r.group.jobs = append(r.group.jobs, &farewell{src: former, notify: r.m.farewellOver})
	r.commit()
	r.expect("deleted a u1 2")
}

// TestSelectorComesAndGoes takes a namespace selector out of a watch and puts it back,
// with an end of the process before the watch was given what it covered in between, and
// while the labels are not known: until they are, it judges by what was in force.
func TestSelectorComesAndGoes(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch(inProd))
	s := r.know(change{kind: namespaceSeen, obj: r.namespace("1", "prod")})
	clear(r.m.sources)
	if err := r.m.noteSelections(givenBy([]*source{s})); err != nil {
		t.Fatal(err)
	}
	r.m.setState(&plan.State{Watches: []plan.Watch{podWatch()}})
	if err := r.m.forgetNamespaces(); err != nil {
		t.Fatal(err)
	}
	sources := r.sourcesOf(podWatch(inProd))
	if len(sources) != 1 {
		t.Fatalf("%d sources", len(sources))
	}
	if h := (*sources[0].hits.Load())[0]; h.watch.Filter.NeedsNamespaces() {
		t.Error("the watch judges by labels that are not known")
	}
	if gained, err := r.m.startGains(sources); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects, %v", len(gained), err)
	}
}
