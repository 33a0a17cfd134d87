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
