package pipeline

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
)

func named(name string) func(*plan.Watch) {
	return func(w *plan.Watch) { w.Name, w.Fingerprint = name, name }
}

func only(namespaces ...string) func(*plan.Watch) {
	return func(w *plan.Watch) { w.Namespaces = namespaces; w.Fingerprint += fmt.Sprint(namespaces) }
}

func toX(l *live, watches ...plan.Watch) *plan.State {
	l.Helper()
	st := l.state(watches...)
	spec := route.Spec{Name: "r", Sinks: []string{"x"}}
	for _, w := range watches {
		spec.Watches = append(spec.Watches, w.Name)
	}
	st.Routes = []route.Spec{spec}
	var err error
	if st.Router, err = route.Compile(st.Routes); err != nil {
		l.Fatal(err)
	}
	return st
}

// TestReloadUnderChurn changes and deletes pods while reloads change which watch they
// are of: the sink gets each change and each deletion once.
func TestReloadUnderChurn(t *testing.T) {
	nsFilter := func(include ...string) func(*plan.Watch) {
		return func(w *plan.Watch) {
			var err error
			if w.Filter, err = selector.NewFilter(selector.Namespaces{Include: include}, "", ""); err != nil {
				t.Fatal(err)
			}
			w.Fingerprint += fmt.Sprint(include)
		}
	}
	a, b := committest.PodWatch(named("a")), committest.PodWatch(named("b"))
	for _, tc := range []struct {
		name   string
		states [][]plan.Watch
	}{
		{"a watch is renamed", [][]plan.Watch{{a}, {b}}},
		{"a watch is split", [][]plan.Watch{{a}, {committest.PodWatch(named("b"), nsFilter("ns")), committest.PodWatch(named("c"), nsFilter("other"))}}},
		{"a resource moves between watches", [][]plan.Watch{
			{a, {Name: "b", Resources: []string{"nodes"}, Edits: a.Edits}},
			{{Name: "a", Resources: []string{"nodes"}, Edits: a.Edits}, b},
		}},
		{"the scope changes", [][]plan.Watch{{a}, {committest.PodWatch(named("b"), only("ns"))}, {committest.PodWatch(named("c"), only("ns", "other"))}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api, names := podServer(t, 1000)
			api.Serve("/api/v1/nodes", "v1", "Node")
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods, nodes})
			q, err := l.store.EnsureSink("x", store.FromNow)
			if err != nil {
				t.Fatal(err)
			}
			l.apply(toX(l, tc.states[0]...))
			eventually(t, "sync", func() bool { return q.Stats().Length == int64(len(names)) })
			churned := make(chan struct{})
			go func() {
				defer close(churned)
				for i, n := range names {
					api.Put(podPath, "ns", n, phase("Succeeded"))
					api.Delete(podPath, "ns", n)
					if i%8 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			}()
			reloads := 0
			for done := false; !done || reloads < len(tc.states); reloads++ {
				select {
				case <-churned:
					done = true
				default:
				}
				l.apply(toX(l, tc.states[(reloads+1)%len(tc.states)]...))
			}
			l.caughtUp()
			h := l.queued()
			wrong := 0
			for _, n := range names {
				lines := slices.DeleteFunc(slices.Clone(h[n]), func(line string) bool { return line[:4] == "sync" })
				if len(lines) != 2 || lines[0][:7] != "updated" || lines[1][:7] != "deleted" {
					if wrong++; wrong < 4 {
						t.Logf("%s: %q", n, h[n])
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d pods have a wrong history after %d reloads", wrong, len(names), reloads)
			}
		})
	}
}

// TestReloadIsOneStep has pods deleted and committed between any two steps that a reload
// takes in the committer: each is judged by the old routes and watches, or by the new ones.
func TestReloadIsOneStep(t *testing.T) {
	api, names := podServer(t, 2000)
	api.Serve("/api/v1/nodes", "v1", "Node")
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods, nodes}).withX()
	ofNodes := func(name string) plan.Watch {
		return committest.PodWatch(named(name), func(w *plan.Watch) { w.Resources = []string{"nodes"} })
	}
	a, b := committest.PodWatch(named("a")), committest.PodWatch(named("b"))
	l.apply(l.routed(a))
	eventually(t, "sync", func() bool { return len(l.queued()) == len(names) })
	left := make(chan string, len(names))
	for _, n := range names {
		left <- n
	}
	for _, watches := range [][]plan.Watch{
		{b},               // another name
		{a, ofNodes("b")}, // names change places, and a watch starts
		{b, ofNodes("a")},
		{a}, // a watch stops
	} {
		stop := make(chan struct{})
		var deleting sync.WaitGroup
		for range 2 { // one of them is always next in line after the reload
			deleting.Go(func() {
				for {
					select {
					case <-stop:
						return
					case n := <-left:
						_ = l.m.committer.AtBarrier(func(b commit.Barrier) {
							api.Delete(podPath, "ns", n)
							_ = b.Take(1)
						})
					}
				}
			})
		}
		l.apply(l.routed(watches...))
		close(stop)
		deleting.Wait()
	}
	l.caughtUp()
	h := l.queued()
	for _, n := range names[:len(names)-len(left)] {
		if lines := slices.DeleteFunc(h[n], func(line string) bool { return strings.HasPrefix(line, "sync") }); len(lines) != 1 || !strings.HasPrefix(lines[0], "deleted") {
			t.Errorf("%s: %q", n, lines)
		}
	}
}

// TestNamespaceSelectorIsAdded has a reload give a watch a selector of namespaces. It
// keeps the selection that it had until the labels are known, or for good if it may not
// know them.
func TestNamespaceSelectorIsAdded(t *testing.T) {
	for _, forbidden := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbidden=%t", forbidden), func(t *testing.T) {
			api, names := podServer(t, 20)
			api.Put("/api/v1/namespaces", "", "ns", map[string]any{})
			listed := make(chan struct{})
			answer := sync.OnceFunc(func() { close(listed) })
			defer answer()
			api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/api/v1/namespaces" || r.URL.Query().Get("fieldSelector") != "" {
					return false
				}
				if forbidden {
					w.WriteHeader(http.StatusForbidden)
					return true
				}
				<-listed
				return false
			})
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			q, err := l.store.EnsureSink("x", store.FromNow)
			if err != nil {
				t.Fatal(err)
			}
			other := committest.PodWatch(named("other"))
			w := committest.PodWatch(named("w"))
			l.apply(l.routed(w, other))
			eventually(t, "sync", func() bool { return q.Stats().Length == int64(len(names)) })
			w.Fingerprint = "selecting"
			if w.Filter, err = selector.NewFilter(selector.Namespaces{Selector: "!excluded"}, "", ""); err != nil {
				t.Fatal(err)
			}
			l.apply(l.routed(w, other))
			api.Delete(podPath, "ns", names[:10]...)
			eventually(t, "deletions by the old selection", func() bool { return q.Stats().Length == int64(len(names))+10 })
			if missing := l.m.reader.Status().Watches[0].Missing; len(missing) != 1 {
				t.Errorf("the status has %v missing, want the namespaces", missing)
			}
			answer()
			if !forbidden {
				eventually(t, "the new selection", func() bool { return len(l.m.reader.Status().Watches[0].Missing) == 0 })
			}
			api.Delete(podPath, "ns", names[10:]...)
			l.caughtUp()
			h := l.queued()
			for _, n := range names {
				if h.types(n) != "sync deleted" {
					t.Errorf("%s: %q", n, h[n])
				}
			}
		})
	}
}

// TestNamespaceSelectorOverAnUnknownNamespace has a reload give a watch a selector of
// namespaces while pods are recorded of a namespace that was not seen: it was deleted before
// the namespaces were listed, or the watch of namespaces is behind that of the pods. There the
// former selection stays until the labels are known. A stop changes nothing.
func TestNamespaceSelectorOverAnUnknownNamespace(t *testing.T) {
	for name, tc := range map[string]struct {
		label string // of the namespace, when it is seen; "": it is not
		then  func(api *apitest.Server, pod string)
		want  string
	}{
		"deleted": {
			then: func(api *apitest.Server, pod string) { api.Delete(podPath, "ns", pod) },
			want: "sync deleted",
		},
		"updated and deleted": {
			then: func(api *apitest.Server, pod string) {
				api.Put(podPath, "ns", pod, phase("1"))
				api.Delete(podPath, "ns", pod)
			},
			want: "sync updated deleted",
		},
		"deleted and made again": {
			then: func(api *apitest.Server, pod string) {
				api.Delete(podPath, "ns", pod)
				api.Put(podPath, "ns", pod, nil)
				api.Delete(podPath, "ns", pod)
			},
			want: "sync deleted added deleted",
		},
		"selected": {
			label: "env",
			then:  func(api *apitest.Server, pod string) { api.Put(podPath, "ns", pod, phase("1")) },
			want:  "sync updated",
		},
		"selected, and deleted": {
			label: "env",
			then:  func(api *apitest.Server, pod string) { api.Delete(podPath, "ns", pod) },
			want:  "sync deleted",
		},
		"not selected": {
			label: "excluded",
			then:  func(api *apitest.Server, pod string) { api.Delete(podPath, "ns", pod) },
			want:  "sync",
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,restart=%t", name, restart), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					api, pod := podServer(t, 1)
					api.Put(namespacePath, "", "another", nil)
					opts := store.Options{FS: vfs.NewMem()}
					l := runLive(t, "store", opts, api, served{pods}).withX()
					other := committest.PodWatch(named("other"))
					w := committest.PodWatch(named("w"))
					l.apply(l.routed(w, other))
					l.synced()
					w.Fingerprint, w.Selection.Namespaces.Selector = "selecting", "!excluded"
					var err error
					if w.Filter, err = w.Selection.Filter(); err != nil {
						t.Fatal(err)
					}
					l.apply(l.routed(w, other))
					eventually(t, "the new selection", func() bool {
						h, _ := l.m.informerList()[0].WatchNamed("w")
						return h.Watch.Fingerprint == "selecting"
					})
					if restart {
						l.caughtUp()
						l.stop()
						l = runLive(t, "store", opts, api, served{pods})
						l.apply(l.routed(w, other))
					}
					if tc.label != "" {
						api.Put(namespacePath, "", "ns", map[string]any{"metadata": map[string]any{"name": "ns", "labels": map[string]any{tc.label: ""}}})
						eventually(t, "the labels", func() bool { _, known := l.m.committer.NamespaceLabels("ns"); return known })
					}
					tc.then(api, pod[0])
					l.caughtUp()
					if h := l.queued(); h.types(pod[0]) != tc.want {
						t.Errorf("%s: %q, want %s", pod[0], h[pod[0]], tc.want)
					}
				})
			})
		}
	}
}
