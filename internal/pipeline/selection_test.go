package pipeline

import (
	"net/http"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/unseen"
)

// inProd is a watch of namespaces with env=prod, by rules that are recorded.
func inProd(w *plan.Watch) {
	committest.ProdPods(w)
	w.Selection.Namespaces.Selector = "env=prod"
	w.Fingerprint += "prod"
}

// TestSelectorWaitsOverARestart gives a watch a namespace selector while namespaces
// cannot be listed, and restarts: it keeps the selection that it had.
func TestSelectorWaitsOverARestart(t *testing.T) {
	api, names := podServer(t, 4)
	api.Intercept(refuseNamespaces)
	dir := t.TempDir()
	other := committest.PodWatch(named("other"))
	l := runLive(t, dir, store.Options{}, api, served{pods}).withX()
	l.apply(l.routed(committest.PodWatch(), other))
	l.synced()
	l.apply(l.routed(committest.PodWatch(inProd), other))
	l.stop()
	l = runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.routed(committest.PodWatch(inProd), other))
	api.Put(podPath, "ns", names[0], phase("1"))
	api.Delete(podPath, "ns", names[1])
	l.caughtUp()
	h := l.queued()
	if got := h.types(names[0]) + ", " + h.types(names[1]); got != "sync updated, sync deleted" {
		t.Errorf("the watch was given %s", got)
	}
}

// TestSelectorOverARestartAfterOtherNamespaces gives a watch a namespace selector while the process
// is down, and namespaces cannot be listed: it keeps the selection that it had last, not one that it
// had before.
func TestSelectorOverARestartAfterOtherNamespaces(t *testing.T) {
	for name, before := range map[string][]string{"all": nil, "another one": {"a"}, "more": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			api := apitest.New(t)
			api.Serve(podPath, "v1", "Pod")
			api.Put(podPath, "a", "left", nil)
			api.Put(podPath, "b", "kept", nil)
			api.Intercept(refuseNamespaces)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods}).withX()
			l.apply(l.routed(committest.PodWatch(only(before...))))
			eventually(t, "the first list", func() bool { return l.queued().types("left") == "sync" })
			l.apply(l.routed(committest.PodWatch(only("b"))))
			eventually(t, "the pod", func() bool { return l.queued().types("kept") == "sync" })
			l.stop()
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.routed(committest.PodWatch(inProd)))
			if feeds := l.m.running(); len(feeds) != 1 || feeds[0].ID != "pods#b" {
				t.Fatalf("%d feeds run, the first is %s, want that of the namespace alone", len(feeds), feeds[0].ID)
			}
			api.Put(podPath, "b", "kept", phase("1"))
			eventually(t, "the change", func() bool { return l.queued().types("kept") == "sync updated" })
		})
	}
}

// TestReloadKeepsCountsOfSelections reloads with another watch: one that has selected objects is not
// suspected of selecting none.
func TestReloadKeepsCountsOfSelections(t *testing.T) {
	front := func(w *plan.Watch) {
		f, err := selector.NewFilter(selector.Namespaces{}, "tire=front", "")
		if err != nil {
			t.Fatal(err)
		}
		w.Filter = f
	}
	api, _ := podServer(t, 1)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	before, after := committest.PodWatch(front), committest.PodWatch(front)
	l.apply(l.routed(before))
	before.Filter.Judged(true)
	l.apply(l.routed(after, committest.PodWatch(named("other"))))
	for range unseen.Enough {
		after.Filter.Judged(false)
	}
	if n := after.Filter.None(); n != 0 {
		t.Errorf("it is suspected after %d changes", n)
	}
}

// refuseNamespaces is an API server that does not permit to read namespaces.
func refuseNamespaces(w http.ResponseWriter, req *http.Request) bool {
	if req.URL.Path != "/api/v1/namespaces" || strings.Contains(req.URL.RawQuery, "kube-system") {
		return false
	}
	apitest.Fail(w, http.StatusForbidden, "Forbidden")
	return true
}

// TestWatchComesBackAfterParts takes a watch of all namespaces away while another one
// reads two of them, and puts it back: it is given what was recorded meanwhile.
func TestWatchComesBackAfterParts(t *testing.T) {
	api, _ := podServer(t, 1)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods}).withX()
	l.apply(l.routed(committest.PodWatch()))
	l.synced()
	l.apply(l.state(committest.PodWatch(named("other"), only("ns"))))
	api.Put(podPath, "ns", "made-meanwhile", nil)
	eventually(t, "the new pod", func() bool { return l.log().types("made-meanwhile") == "added" })
	l.apply(l.routed(committest.PodWatch(), committest.PodWatch(named("other"))))
	l.caughtUp()
	eventually(t, "the watch is given the new pod", func() bool { return l.queued().types("made-meanwhile") == "sync" })
}

// TestWatchComesBackBesideAnother takes a watch away and puts it back while another one reads the same
// objects: it starts like a new one.
func TestWatchComesBackBesideAnother(t *testing.T) {
	api, names := podServer(t, 2)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods}).withX()
	other := committest.PodWatch(named("other"))
	l.apply(l.routed(committest.PodWatch(), other))
	l.synced()
	l.apply(l.state(other))
	api.Delete(podPath, "ns", names[0])
	api.Put(podPath, "ns", names[1], phase("1"))
	l.caughtUp()
	l.apply(l.routed(committest.PodWatch(), other))
	eventually(t, "the watch is given the other pod", func() bool { return l.queued().types(names[1]) == "sync sync" })
	if got := l.queued().types(names[0]); got != "sync" {
		t.Errorf("of the deleted pod it was given %s", got)
	}
}
