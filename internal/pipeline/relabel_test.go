package pipeline

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

const namespacePath = "/api/v1/namespaces"

// TestRelabelledNamespaceWithoutItsSource gives the namespace of many pods another label
// while the source of the pods does not run. The pods enter once it does.
func TestRelabelledNamespaceWithoutItsSource(t *testing.T) {
	label := func(env string) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": "ns", "uid": "uid-ns", "labels": map[string]any{"env": env}}}
	}
	prod := committest.PodWatch(committest.ProdPods, func(w *plan.Watch) { w.Snapshot = false })
	for name, relabel := range map[string]func(l *live, again func(Resolver) *live) *live{
		"a reload": func(l *live, _ func(Resolver) *live) *live {
			l.api.Put(namespacePath, "", "ns", label("prod"))
			eventually(l.T, "the first pods", func() bool { return len(l.queued()) > 0 })
			edited := prod
			edited.Edits.Drop = append(slices.Clip(edited.Edits.Drop), "spec.a")
			edited.Fingerprint = "edited"
			l.apply(l.routed(edited))
			return l
		},
		"a stop": func(l *live, again func(Resolver) *live) *live {
			l.api.Put(namespacePath, "", "ns", label("prod"))
			eventually(l.T, "the first pods", func() bool { return len(l.queued()) > 0 })
			l.stop()
			l = again(served{pods})
			l.apply(l.routed(prod))
			return l
		},
		"a start that discovers nothing at first": func(l *live, again func(Resolver) *live) *live {
			l.stop()
			l.api.Put(namespacePath, "", "ns", label("prod"))
			later := unfound()
			l = again(later)
			l.apply(l.routed(prod))
			eventually(l.T, "the label", func() bool {
				n, _ := l.m.committer.NamespaceLabels("ns")
				return n["env"] == "prod"
			})
			l.m.committer.Flush()
			l.m.committer.Flush()
			later.set(pods)
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, pod := podServer(t, 3000)
			api.Put(namespacePath, "", "ns", label("dev"))
			fs := vfs.NewCrashableMem()
			again := func(r Resolver) *live { return runLive(t, "store", store.Options{FS: fs}, api, r) }
			l := again(served{pods})
			if _, err := l.store.EnsureSink("x", store.FromNow); err != nil {
				t.Fatal(err)
			}
			l.apply(l.routed(prod))
			l.synced()
			l = relabel(l, again)
			eventually(t, "all pods", func() bool { return len(l.queued()) == len(pod) })
			h := l.queued()
			for _, n := range pod {
				if h.types(n) != "updated" {
					t.Fatalf("%s: %q", n, h[n])
				}
			}
		})
	}
}

// TestRelabelledNamespaceBesideAWatch gives a namespace another label while a watch that selects by it does
// not mean a resource, or the part of one that its API server selects, which it meant before: it is told
// nothing of that. When the watch means it again, it is given what it covers by then.
func TestRelabelledNamespaceBesideAWatch(t *testing.T) {
	label := func(env string) map[string]any {
		return map[string]any{"metadata": map[string]any{"name": "ns", "uid": "uid-ns", "labels": map[string]any{"env": env}}}
	}
	of := func(fingerprint string, edit func(*plan.Watch)) plan.Watch {
		return committest.PodWatch(committest.ProdPods, func(w *plan.Watch) { w.Fingerprint = fingerprint }, edit)
	}
	widgetsToo := of("both", func(w *plan.Watch) { w.Resources = append(w.Resources, "widgets.example.com") })
	selected := of("selected", func(w *plan.Watch) { w.ServerLabels = "tier=web" })
	for name, tc := range map[string]struct {
		first, then string // labels
		before      plan.Watch
		feeds       []string // of that
		given       string   // the events of the pod before the labels change
		object      string
		beside      string // the events of the object, before the watch means it again
		again       string // and after that
	}{
		"a resource enters":          {"dev", "prod", widgetsToo, []string{"pods#", "widgets.example.com#"}, "", "widget", "", "sync"},
		"a resource leaves":          {"prod", "dev", widgetsToo, []string{"pods#", "widgets.example.com#"}, "sync", "widget", "sync", "sync"},
		"a selected part of another": {"prod", "dev", selected, []string{"pods|l=tier=web;f=#"}, "sync sync", "pod-00000", "sync sync updated", "sync sync updated"},
	} {
		t.Run(name, func(t *testing.T) {
			api, _ := podServer(t, 1)
			api.Serve(widgetPath, "example.com/v1", "Widget")
			api.Put(widgetPath, "ns", "widget", nil)
			api.Put(namespacePath, "", "ns", label(tc.first))
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods, widgets}).withX()
			over := func(notes string) {
				t.Helper()
				eventually(t, "what "+notes+" notes is over", func() bool {
					none := true
					err := l.store.ScanMeta(notes, func(string, []byte) error { none = false; return nil })
					return none && err == nil
				})
			}
			l.apply(l.routed(tc.before))
			for _, id := range tc.feeds {
				l.checkpointed(id, "v1")
			}
			l.apply(l.routed(of("pods", func(*plan.Watch) {})))
			l.checkpointed("pods#", "v1")
			pod := func() string { return l.queued().types("pod-00000") }
			eventually(t, "the pod is given", func() bool { return pod() == tc.given })
			api.Put(namespacePath, "", "ns", label(tc.then))
			eventually(t, "the pod enters or leaves", func() bool { return len(pod()) > len(tc.given) })
			over("relabel/")
			if got := l.queued().types(tc.object); got != tc.beside {
				t.Errorf("beside the watch, the events of %s are %q, want %q", tc.object, got, tc.beside)
			}
			l.apply(l.routed(tc.before))
			over("snapshot/")
			l.m.committer.Flush()
			if got := l.queued().types(tc.object); got != tc.again {
				t.Errorf("the events of %s are %q, want %q", tc.object, got, tc.again)
			}
		})
	}
}
