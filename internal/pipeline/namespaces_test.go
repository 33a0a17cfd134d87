package pipeline

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestNamespaceDoesNotExist names a namespace that does not exist: the watch has a warning, and the log
// one line, until it exists. What the API server refuses or fails to answer is not known, and no warning.
func TestNamespaceDoesNotExist(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const namespacePath = "/api/v1/namespaces"
		api, _ := podServer(t, 1)
		api.Serve(namespacePath, "v1", "Namespace")
		api.Put(namespacePath, "", "team-a", nil)
		refuses := func(code int, reason string) {
			api.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != namespacePath || !strings.Contains(r.URL.RawQuery, "team-b") {
					return false
				}
				apitest.Fail(w, code, reason)
				return true
			})
		}
		var log testkit.Log
		l := runLogged(t, "store", store.Options{FS: vfs.NewCrashableMem()}, api, served{pods}, testKey, slog.NewTextHandler(&log, nil))
		warnings := func() []string { return l.m.reader.Status().Watches[0].Warnings }
		until := func(what string, f func() bool) {
			t.Helper()
			for range 600 {
				if f() {
					return
				}
				time.Sleep(time.Second)
			}
			t.Fatalf("never: %s; warnings are %q", what, warnings())
		}
		refuses(http.StatusForbidden, "Forbidden")
		l.apply(l.state(watchOf("w", func(w *plan.Watch) { w.Namespaces = []string{"team-a", "team-b"} }, "pods")))
		asked := func() int { return len(api.Requests("namespaces", false)) }
		until("a look that is refused", func() bool { return asked() >= 2 })
		synctest.Wait()
		if got := warnings(); len(got) != 0 {
			t.Errorf("warnings of what is not known: %q", got)
		}
		api.Intercept(nil)
		const warning = "namespace team-b does not exist: nothing is read from it until it does"
		until("a warning", func() bool { return slices.Equal(warnings(), []string{warning}) })
		present := func() (n int) {
			for _, r := range api.Requests("namespaces", false) {
				if strings.Contains(r.Query["fieldSelector"], "team-a") {
					n++
				}
			}
			return n
		}
		began, often := asked(), present()
		until("further looks", func() bool { return asked() >= began+6 })
		if n := present() - often; n > 1 {
			t.Errorf("a namespace that exists was looked for %d times meanwhile", n)
		}
		refuses(http.StatusServiceUnavailable, "ServiceUnavailable")
		until("a look without an answer", func() bool { return asked() >= began+8 })
		if got := warnings(); !slices.Equal(got, []string{warning}) {
			t.Errorf("a server that fails to answer changes the warnings to %q", got)
		}
		api.Intercept(nil)
		api.Put(namespacePath, "", "team-b", nil)
		until("no warning", func() bool { return len(warnings()) == 0 })
		if missing, exists := log.Like("a namespace does not exist"), log.Like("the namespace exists"); len(missing) != 1 || len(exists) != 1 ||
			!strings.Contains(missing[0], "level=WARN") || !strings.Contains(missing[0], "namespace=team-b watches=w") {
			t.Errorf("log:\n%s", strings.Join(append(missing, exists...), "\n"))
		}
		l.apply(l.state(watchOf("w", func(w *plan.Watch) { w.Namespaces = []string{"team-c"} }, "pods")))
		until("a warning of the new watch", func() bool { return len(warnings()) == 1 && strings.Contains(warnings()[0], "team-c") })
	})
}
