package history

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/plan"
)

// farewell lets the definition of pods go.
func (w *world) farewell() {
	w.Helper()
	over := make(chan struct{}, 1)
	_, err := w.c.BeginFarewell("pods", []plan.Watch{w.watch}, func(*plan.Watch) bool { return true }, over)
	w.must(err)
	<-over
	w.c.Flush()
}

// What happened to objects before their definition was found gone is not known, unless the watch showed their
// deletions: the history is complete then, and goes on without them.
func TestDefinitionGone(t *testing.T) {
	for name, seen := range map[string]bool{"seen": true, "missed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 0)
				defer w.end()
				h := w.c.Handler(w.feed)
				w.rest()
				h.OnAdd(w.object("a", "u1"), false)
				before := w.rest()
				w.rest()
				if seen {
					h.OnDelete(w.object("a", "u1"))
				}
				w.version++ // a bookmark: the feed has come as far
				w.shown.Store(int64(w.version))
				from := w.rest()
				w.feed.Stop()
				amid := w.rest()
				time.Sleep(time.Hour)
				w.farewell()
				after := w.rest()
				time.Sleep(time.Hour)
				for _, tc := range []struct {
					at     time.Time
					as     As
					exists bool
				}{{before, Exact, true}, {amid, map[bool]As{true: Exact, false: Gap}[seen], !seen}, {after, Exact, false}, {w.now(), Exact, false}} {
					s, err := w.r.At(t.Context(), pod("a"), tc.at)
					w.must(err)
					if s.As != tc.as || s.Exists != tc.exists {
						t.Errorf("at %v: %+v, want %s, exists %t", tc.at, s, tc.as, tc.exists)
					}
				}
				for _, tc := range []struct {
					from, to time.Time
					complete bool
				}{{before, from.Add(-2 * time.Minute), true}, {before, after, seen}, {after, w.now(), true}} {
					c, err := w.r.Changes(t.Context(), Filter{From: tc.from, To: tc.to}, false)
					w.must(err)
					if c.Complete != tc.complete {
						t.Errorf("from %v to %v: %+v, want complete %t", tc.from, tc.to, c, tc.complete)
					}
				}
			})
		})
	}
}
