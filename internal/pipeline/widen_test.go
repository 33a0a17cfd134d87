package pipeline

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/store"
)

// TestWidenedWatchListsFewObjects widens a watch of two namespaces, one of which is
// ahead of the other, to all. The list of the older version shows one object or none:
// what was made after it is neither deleted nor told again.
func TestWidenedWatchListsFewObjects(t *testing.T) {
	for name, existing := range map[string][]string{"none": nil, "one": {"old"}, "two": {"old", "older"}} {
		t.Run(name, func(t *testing.T) {
			api := apitest.New(t)
			api.Serve(podPath, "v1", "Pod")
			for _, n := range existing {
				api.Put(podPath, "a", n, nil)
			}
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch(only("a", "b"))))
			l.partsSynced()
			api.Put(podPath, "b", "new", nil)
			api.Put(podPath, "b", "new", phase("1"))
			eventually(t, "the new pod", func() bool { return l.log().types("new") == "added updated" })
			l.apply(l.state(committest.PodWatch()))
			l.synced()
			l.caughtUp()
			h := l.log()
			if got := h.types("new"); got != "added updated" {
				t.Errorf("new: %s", got)
			}
			for _, n := range existing {
				if got := h.types(n); got != "sync" {
					t.Errorf("%s: %s", n, got)
				}
			}
			api.Delete(podPath, "b", "new")
			l.caughtUp()
			if got := l.log().types("new"); got != "added updated deleted" {
				t.Errorf("new in the end: %s", got)
			}
		})
	}
}

// TestWidenedWatchLosesItsHistory widens a watch of two namespaces, one of which is ahead
// of the other, to all. The list of the older version is followed by one of now, as the
// watch from there has expired: what the namespace ahead had recorded in between is
// neither told again nor forgotten.
func TestWidenedWatchLosesItsHistory(t *testing.T) {
	api := apitest.New(t)
	api.Serve(podPath, "v1", "Pod")
	for _, n := range []string{"changed", "again", "same", "gone"} {
		api.Put(podPath, "a", n, nil)
	}
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch(only("a", "b"))))
	l.partsSynced()
	api.Put(podPath, "a", "made", nil)
	api.Put(podPath, "a", "kept", nil)
	api.Put(podPath, "a", "changed", phase("1"))
	api.Put(podPath, "a", "same", phase("1"))
	api.Delete(podPath, "a", "again")
	api.Put(podPath, "a", "again", nil)
	api.Delete(podPath, "a", "gone")
	eventually(t, "the deleted pod", func() bool { return l.log().types("gone") == "sync deleted" })
	expired := sync.OnceFunc(func() {
		api.Delete(podPath, "a", "made")
		api.Put(podPath, "a", "changed", phase("2"))
		api.Put(podPath, "a", "again", phase("2"))
		api.Compact()
	})
	api.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == podPath && r.URL.Query().Get("watch") != "" {
			expired()
		}
		return false
	})
	l.apply(l.state(committest.PodWatch()))
	l.synced()
	l.caughtUp()
	api.Put(podPath, "a", "same", phase("2"))
	l.caughtUp()
	for n, want := range map[string]string{
		"made": "added deleted", "kept": "added", "changed": "sync updated updated", "same": "sync updated updated",
		"again": "sync deleted added updated", "gone": "sync deleted",
	} {
		if got := l.log().types(n); got != want {
			t.Errorf("%s: %q, want %q", n, l.log()[n], want)
		}
	}
}

// TestLeftNamespacesKeepTheirPosition takes the watch of all namespaces from some of
// them, and gives it back: what happened there meanwhile is told as it happened, and nothing
// of what was recorded before is told again.
func TestLeftNamespacesKeepTheirPosition(t *testing.T) {
	for name, parts := range map[string][]string{"whole": nil, "parts": {"a", "b"}} {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refused %t", name, refused), func(t *testing.T) {
				api := apitest.New(t)
				api.Serve(podPath, "v1", "Pod")
				for _, n := range []string{"gone", "again", "changed"} {
					api.Put(podPath, "b", n, nil)
				}
				api.Put(podPath, "a", "same", nil)
				l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
				l.apply(l.state(committest.PodWatch(only(parts...))))
				for _, n := range []string{"gone", "again", "changed", "same"} {
					eventually(t, n, func() bool { return l.log().types(n) == "sync" })
				}
				api.Delete(podPath, "b", "gone")
				api.Put(podPath, "b", "changed", phase("1"))
				eventually(t, "the changed pod", func() bool { return l.log().types("changed") == "sync updated" })
				if refused {
					api.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
						apitest.Fail(w, http.StatusForbidden, "Forbidden")
						return true
					})
				}
				l.apply(l.state(committest.PodWatch()))
				l.apply(l.state(committest.PodWatch(only("a"))))
				api.Put(podPath, "b", "changed", phase("2"))
				api.Delete(podPath, "b", "again")
				api.Put(podPath, "b", "again", nil)
				api.Put(podPath, "b", "again", phase("1"))
				api.Put(podPath, "a", "new", nil)
				api.Put(podPath, "a", "new", phase("1"))
				if !refused {
					eventually(t, "the new pod", func() bool { return l.log().types("new") == "added updated" })
				}
				l.apply(l.state(committest.PodWatch()))
				api.Intercept(nil)
				l.synced()
				l.caughtUp()
				for n, want := range map[string]string{
					"gone": "sync deleted", "changed": "sync updated updated", "again": "sync deleted added updated",
					"same": "sync", "new": "added updated",
				} {
					if got := l.log().types(n); got != want {
						t.Errorf("%s: %q, want %q", n, l.log()[n], want)
					}
				}
			})
		}
	}
}

// partsSynced waits until both namespaces are listed.
func (l *live) partsSynced() {
	l.Helper()
	for _, id := range []string{"pods#a", "pods#b"} {
		eventually(l.T, id, func() bool {
			cp, ok, err := l.m.ledger.Checkpoint(id)
			return err == nil && ok && cp.Synced
		})
	}
}
