package pipeline

import (
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
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
			l.apply(l.state(podWatch(only("a", "b"))))
			for _, id := range []string{"pods#a", "pods#b"} {
				eventually(t, id, func() bool {
					cp, ok, err := l.m.ledger.Checkpoint(id)
					return err == nil && ok && cp.Synced
				})
			}
			api.Put(podPath, "b", "new", nil)
			api.Put(podPath, "b", "new", phase("1"))
			eventually(t, "the new pod", func() bool { return l.log().types("new") == "added updated" })
			l.apply(l.state(podWatch()))
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
