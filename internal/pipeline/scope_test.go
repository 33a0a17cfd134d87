package pipeline

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
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
