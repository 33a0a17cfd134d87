package pipeline

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// TestDefinitionGoneInAnotherCluster has the address of the API server lead to another cluster,
// which does not have the definition of a recorded resource: nothing is reported as deleted.
// Once it leads to the cluster again, and the definition is gone there, the objects are.
func TestDefinitionGoneInAnotherCluster(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	api.Put(widgetPath, "ns", "a", nil)
	resolver := serving(widgets)
	l := runLive(t, t.TempDir(), store.Options{}, api, resolver)
	l.apply(l.state(watchOf("w", nil, "widgets.example.com")))
	l.defined("widgets.example.com")
	l.becomes(history{"a": {"sync 101"}})
	look := func() (again bool) {
		t.Helper()
		if err := l.m.call(t.Context(), func(ctx context.Context) (err error) {
			again, err = l.m.reportGone(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return again
	}

	api.SetUID("cluster-2")
	api.Unserve(widgetPath)
	resolver.set()
	eventually(t, "nothing is watched", func() bool { return len(l.m.informerList()) == 0 })
	if !look() {
		t.Error("the definition is not looked for again")
	}
	l.m.committer.Flush()
	l.becomes(history{"a": {"sync 101"}})

	api.SetUID("cluster-1")
	look()
	l.becomes(history{"": {"gap definition"}, "a": {"sync 101", "deleted 101 unknown"}}) // the watch did not show the deletion
}

// TestStartAtAnotherClusterWithoutTheDefinition starts with another cluster, of which nothing that
// is configured can be watched: Run ends as it does where there is a watch, and reports nothing.
func TestStartAtAnotherClusterWithoutTheDefinition(t *testing.T) {
	api := apitest.New(t)
	api.ServeCustom(widgetPath, "example.com/v1", "Widget")
	api.Put(widgetPath, "ns", "a", nil)
	dir := t.TempDir()
	l := runLive(t, dir, store.Options{}, api, serving(widgets))
	st := l.state(watchOf("w", nil, "widgets.example.com"))
	l.apply(st)
	l.defined("widgets.example.com")
	l.becomes(history{"a": {"sync 101"}})
	l.stop()

	other := apitest.New(t)
	other.SetUID("cluster-2")
	opened, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Cluster: "test", REST: other.Config(), Store: opened, Resolver: serving(),
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), RedactionKey: testKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	if err := m.Apply(ctx, st); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("Run: %v", err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	l = runLive(t, dir, store.Options{}, api, serving(widgets))
	l.apply(st)
	api.Put(widgetPath, "ns", "b", nil)
	l.becomes(history{"a": {"sync 101"}, "b": {"added 102"}})
}

// TestStartAtAClusterWithoutKubeSystem starts while the API server has a new storage, in which it has not
// made kube-system yet, or makes it amid the start: nothing is listed, as everything would look deleted.
func TestStartAtAClusterWithoutKubeSystem(t *testing.T) {
	const none = `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":[]}`
	for name, second := range map[string]func(w http.ResponseWriter, r *http.Request) bool{ // a look behind the first answer
		"it has none": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(none))
			return true
		},
		"it fails": func(w http.ResponseWriter, _ *http.Request) bool {
			apitest.Fail(w, http.StatusInternalServerError, "InternalError")
			return true
		},
		"it has another": func(http.ResponseWriter, *http.Request) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, 3)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.stop()
			anew := apitest.New(t)
			anew.SetUID("cluster-2")
			anew.Serve(podPath, "v1", "Pod")
			anew.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.URL.Path != "/api/v1/namespaces":
					return false
				case !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"): // no probe
					return second(w, r)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(none))
				return true
			})
			l = runLive(t, dir, store.Options{}, anew, served{pods})
			l.apply(l.state(committest.PodWatch()))
			ends := name == "it has another"
			eventually(t, "the watch refuses, the pipeline ends, or it lists", func() bool {
				feeds := l.m.informerList()
				if name == "it has another" || len(l.ended) > 0 || len(feeds) == 0 { // that one ends
					return len(l.ended) > 0
				}
				st := feeds[0].sub.Load().Status()
				return st.State == dynamicfactory.StateForeign && !ends || st.State == dynamicfactory.StateWatching && st.Objects == 0
			})
			l.m.committer.Flush()
			for _, n := range names {
				if got := l.log().types(n); got != "sync" {
					t.Errorf("%s: %s", n, got)
				}
			}
			select {
			case err := <-l.ended:
				if err == nil || !strings.Contains(err.Error(), "another cluster") {
					t.Errorf("the pipeline ends with %v", err)
				}
				l.ended <- nil
			default:
			}
		})
	}
}
