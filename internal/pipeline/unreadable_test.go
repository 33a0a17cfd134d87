package pipeline

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// TestFirstListWithAnUnreadableObject starts with a list in which a recorded object
// cannot be read. It keeps its recorded state, in the form of now, and what happens to it
// later is told.
func TestFirstListWithAnUnreadableObject(t *testing.T) {
	for _, tc := range []struct {
		name   string
		away   func(t *testing.T, dir string)
		edited bool
	}{
		{"edits changed", func(*testing.T, string) {}, true},
		{"the checkpoint is lost", func(t *testing.T, dir string) { forgetCheckpoint(t, dir, "pods#") }, false},
	} {
		for _, last := range []string{"deleted", "updated"} {
			t.Run(tc.name+", "+last, func(t *testing.T) {
				api, names := podServer(t, 3)
				bad := names[1]
				dir := t.TempDir()
				l := runLive(t, dir, store.Options{}, api, served{pods})
				api.Put(podPath, "ns", bad, spec("secret", "b"))
				l.apply(l.state(committest.PodWatch()))
				l.synced()
				l.stop()
				tc.away(t, dir)
				api.Spoil(bad)
				l = runLive(t, dir, store.Options{}, api, served{pods})
				watch := committest.PodWatch(func(w *plan.Watch) {
					if tc.edited {
						w.Edits.Drop = append(w.Edits.Drop, "spec.a")
					}
				})
				l.apply(l.state(watch))
				l.synced()
				l.caughtUp()
				if got := l.log().types(bad); got != "sync gap" {
					t.Errorf("told %q of the object that cannot be read", got)
				}
				state := l.states("pods")[bad]
				if state == "" || tc.edited && strings.Contains(state, "secret") {
					t.Errorf("it is recorded as %q", state)
				}
				api.Spoil("")
				if last == "deleted" {
					api.Delete(podPath, "ns", bad)
				} else {
					api.Put(podPath, "ns", bad, phase("1"))
				}
				l.caughtUp()
				if got := l.log().types(bad); got != "sync gap "+last {
					t.Errorf("told %q in the end", got)
				}
			})
		}
	}
}
