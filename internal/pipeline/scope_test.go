package pipeline

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// TestDefinitionComesBackWithoutNamespaces replaces a definition by one whose objects are in no
// namespace: those of before are reported as deleted, also to a watch of one namespace, which
// does not list the new ones.
func TestDefinitionComesBackWithoutNamespaces(t *testing.T) {
	inNone := widgets
	inNone.Namespaced = false
	for _, tc := range []struct {
		namespaces []string
		scope      string // that the API server knows
		deleted    bool
	}{
		{nil, "Cluster", true},
		{[]string{"ns"}, "Cluster", true},
		{[]string{"ns"}, "Namespaced", false}, // discovery is behind
	} {
		t.Run(fmt.Sprint(tc.namespaces, tc.scope), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := apitest.New(t)
				api.ServeCustom(widgetPath, "example.com/v1", "Widget")
				api.Put(widgetPath, "ns", "a", nil)
				api.Put(widgetPath, "ns", "b", nil)
				dir := t.TempDir()
				l := runLive(t, dir, store.Options{}, api, serving(widgets))
				st := l.state(watchOf("w", func(w *plan.Watch) { w.Namespaces = tc.namespaces }, "widgets.example.com"))
				l.apply(st)
				eventually(t, "sync", func() bool { return len(l.log()) == 2 })
				l.defined("widgets.example.com")
				l.stop()
				asked := make(chan struct{}, 100)
				api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com" {
						return false
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{"scope":%q}}`, tc.scope)
					asked <- struct{}{}
					return true
				})
				if tc.deleted {
					api.Unserve(widgetPath)
					api.Advance(1)
					api.ServeCustom(widgetPath, "example.com/v1", "Widget")
				}
				l = runLive(t, dir, store.Options{}, api, serving(inNone))
				l.apply(st)
				if !tc.deleted {
					eventually(t, "the definition is looked at", func() bool { return len(asked) > 0 })
					l.m.committer.Flush()
					if log := l.log(); len(log) != 2 || log.types("a") != "sync" {
						t.Errorf("told %v", log)
					}
					return
				}
				eventually(t, "they are reported as deleted", func() bool {
					log := l.log()
					return log.types("a") == "sync deleted" && log.types("b") == "sync deleted"
				})
			})
		})
	}
}

// TestWatchReadsAnotherPart gives a watch another selector for the API server, and another pinned version, so that it begins in
// another part of the ledger. What is deleted until its first list is not known: a gap says so, once, from where the watch had come to.
func TestWatchReadsAnotherPart(t *testing.T) {
	selects := func(labels string) plan.Watch {
		return committest.PodWatch(func(w *plan.Watch) { w.Fingerprint, w.ServerLabels = labels, labels })
	}
	pinned := committest.PodWatch(func(w *plan.Watch) { w.Fingerprint, w.Resources = "pinned", []string{"pods.v1."} })
	for name, tc := range map[string]struct {
		next    plan.Watch
		reload  bool
		refused bool // a life in between comes to no list
	}{
		"a start":           {next: selects("tier=b")},
		"a reload":          {next: selects("tier=b"), reload: true},
		"an unfinished one": {next: selects("tier=b"), refused: true},
		"a pinned version":  {next: pinned},
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 4)
			var refused atomic.Bool
			api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if refused.Load() && r.URL.Path == podPath {
					apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
					return true
				}
				return false
			})
			dir := t.TempDir()
			var l *live
			takenIn := func(st *plan.State) {
				t.Helper()
				eventually(t, "the list is taken in", func() bool {
					w := st.Watches[0]
					scope := ledger.ScopeOf(plan.PinnedVersion(w.Resources[0], ""), w.ServerLabels, "")
					cp, ok, err := l.m.ledger.Checkpoint(ledger.FeedID("pods"+scope, ""))
					return err == nil && ok && cp.Synced && cp.Listing == nil
				})
			}
			begin := func() { l = runLive(t, dir, store.Options{}, api, served{pods}) }
			begin()
			first, next := l.state(selects("tier=a")), l.state(tc.next)
			l.apply(first)
			takenIn(first)
			if !tc.reload {
				l.stop()
			}
			api.Delete(podPath, "ns", names[0])
			if tc.refused {
				refused.Store(true)
				begin()
				l.apply(next)
				l.stop()
				refused.Store(false)
			}
			if !tc.reload {
				begin()
			}
			l.apply(next)
			takenIn(next)
			l.stop()
			begin() // nothing is unknown any more
			l.apply(next)
			takenIn(next)
			h := l.log()
			if gaps := h[""]; !slices.Equal(gaps, []string{"gap expired"}) {
				t.Errorf("gaps are %q", gaps)
			}
			for i, n := range names {
				want := "sync sync"
				if i == 0 {
					want = "sync"
				}
				if got := h.types(n); got != want && !(tc.reload && i == 0 && got == "sync deleted") {
					t.Errorf("%s: %q, want %q", n, got, want)
				}
			}
		})
	}
}

// TestWatchWidensInAnotherPart gives a watch another selector for the API server, and then all namespaces in place of one: its feed takes
// over from that of the namespace, and the part that the watch has left before is no matter any more.
func TestWatchWidensInAnotherPart(t *testing.T) {
	api, _ := podServer(t, 4)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, served{pods})
	for i, step := range []struct {
		labels     string
		namespaces []string
	}{{"tier=a", nil}, {"tier=b", []string{"ns"}}, {"tier=b", nil}} {
		w := committest.PodWatch(func(w *plan.Watch) {
			w.Fingerprint, w.ServerLabels, w.Namespaces = fmt.Sprint(i), step.labels, step.namespaces
		})
		api.Advance(1)
		l.apply(l.state(w))
		if i == 2 { // the list may not have been taken in before an end
			l.stop()
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(w))
		}
		id := ledger.FeedID("pods"+ledger.ScopeOf("", step.labels, ""), strings.Join(step.namespaces, ""))
		eventually(t, "the list is taken in", func() bool {
			cp, ok, err := l.m.ledger.Checkpoint(id)
			return err == nil && ok && cp.Resumable()
		})
	}
	if gaps := l.log()[""]; !slices.Equal(gaps, []string{"gap expired"}) {
		t.Errorf("gaps are %q", gaps)
	}
}

// TestWatchLeavesWhatAnotherReads has a watch leave a part of the ledger that another watch reads on, and go where nothing or another watch
// is. Whatever is between the two, it gets one gap, from where it had come to.
func TestWatchLeavesWhatAnotherReads(t *testing.T) {
	selects := func(name, labels string, namespaces ...string) plan.Watch {
		return committest.PodWatch(func(w *plan.Watch) {
			w.Name, w.Fingerprint, w.ServerLabels, w.Namespaces = name, labels+fmt.Sprint(namespaces), labels, namespaces
		})
	}
	onA, onB := selects("w", "tier=a"), selects("w", "tier=b")
	alsoA, alsoB := selects("v", "tier=a"), selects("v", "tier=b")
	away := func(w plan.Watch) plan.Watch { w.Resources = []string{"configmaps"}; return w }
	for name, tc := range map[string]struct {
		before, after []plan.Watch
		between       []plan.Watch // none: the change is made at once
		refused       bool         // a life in between comes to no list of w
		restart       bool         // w is changed while nothing runs
		behind        bool         // w has not come as far as the other
	}{
		"to a new part":                    {before: []plan.Watch{onA, alsoA}, after: []plan.Watch{onB, alsoA}},
		"to a new part, in a later life":   {before: []plan.Watch{onA, alsoA}, after: []plan.Watch{onB, alsoA}, refused: true},
		"to a new part, at a start":        {before: []plan.Watch{onA, alsoA}, after: []plan.Watch{onB, alsoA}, restart: true},
		"to nothing first":                 {before: []plan.Watch{onA, alsoA}, between: []plan.Watch{away(onA), alsoA}, after: []plan.Watch{onB, alsoA}},
		"to what another reads":            {before: []plan.Watch{onA, alsoB}, after: []plan.Watch{onB, alsoB}, behind: true},
		"to what another reads, a start":   {before: []plan.Watch{onA, alsoB}, after: []plan.Watch{onB, alsoB}, restart: true, behind: true},
		"from what has become a wider one": {before: []plan.Watch{selects("w", "tier=a", "ns"), selects("v", "tier=a", "ns")}, after: []plan.Watch{onB, alsoA}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 4)
			var refused atomic.Bool
			api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				labels := r.URL.Query().Get("labelSelector")
				switch {
				case refused.Load() && r.URL.Path == podPath && labels == "tier=b":
					apitest.Fail(w, http.StatusTooManyRequests, "TooManyRequests")
				case tc.behind && labels == "tier=a" && r.URL.Query().Get("watch") != "": // it shows nothing
					w.WriteHeader(http.StatusOK)
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				default:
					return false
				}
				return true
			})
			dir := t.TempDir()
			var l *live
			begin := func() { l = runLive(t, dir, store.Options{}, api, served{pods}) }
			apply := func(watches []plan.Watch) {
				t.Helper()
				l.apply(l.state(watches...))
				for _, w := range watches {
					if w.Resources[0] != "pods" || refused.Load() && w.ServerLabels == "tier=b" {
						continue
					}
					id := ledger.FeedID("pods"+ledger.ScopeOf("", w.ServerLabels, ""), strings.Join(w.Namespaces, ""))
					eventually(t, "the list of "+id+" is taken in", func() bool {
						cp, ok, err := l.m.ledger.Checkpoint(id)
						return err == nil && ok && cp.Resumable()
					})
				}
			}
			begin()
			apply(tc.before)
			if tc.restart && !tc.behind {
				l.stop()
			}
			api.Delete(podPath, "ns", names[0])
			if tc.behind {
				eventually(t, "the other is ahead", func() bool {
					cp, _, err := l.m.ledger.Checkpoint(ledger.FeedID("pods"+ledger.ScopeOf("", "tier=b", ""), ""))
					return err == nil && cp.RecordedUpTo() == api.Version()
				})
				if tc.restart {
					l.stop()
				}
			}
			if tc.restart {
				begin()
			}
			if tc.between != nil {
				apply(tc.between)
				l.stop()
				begin()
			}
			if tc.refused {
				refused.Store(true)
				apply(tc.after)
				l.stop()
				refused.Store(false)
				begin()
			}
			apply(tc.after)
			l.stop()
			begin() // nothing is unknown any more
			apply(tc.after)
			var want []string
			if tc.between == nil { // else it had given the resource up
				want = []string{"gap expired"}
			}
			if gaps := l.log()[""]; !slices.Equal(gaps, want) {
				t.Errorf("gaps are %q, want %q", gaps, want)
			}
		})
	}
}
