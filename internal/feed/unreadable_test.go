package feed

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
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
				l := runLive(t, dir, outbox.Options{}, api, served{pods})
				api.Put(podPath, "ns", bad, spec("secret", "b"))
				l.apply(l.state(podWatch()))
				l.synced()
				l.stop()
				tc.away(t, dir)
				api.Spoil(bad)
				l = runLive(t, dir, outbox.Options{}, api, served{pods})
				watch := podWatch(func(w *plan.Watch) {
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

// TestUnreadableObjectLeavesAnOpenGap reports an object that cannot be read while a gap
// of the whole resource waits for a difference. Both are told.
func TestUnreadableObjectLeavesAnOpenGap(t *testing.T) {
	r := newRig(t, t.TempDir(), podWatch())
	s := r.source(pods)
	now := r.m.cfg.Now()
	r.commit(addedTo(s, r.object("a", "u1", "1").WithPosition(1)))
	r.expect("added a u1 1")
	r.commit(
		&gapFound{src: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now, ToTime: now, Position: 3}},
		addedTo(s, r.object("b", "u2", "1").WithPosition(2)),
	)
	r.expect("added b u2 1")
	s.open, s.pending = s.pending[0], nil // its list is being taken in
	r.commit(&gapFound{src: s, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, Namespace: "ns", Name: "x", To: "8", FromTime: now, ToTime: now}})
	r.expect("gap x  ")
	r.commit(updatedIn(s, r.object("a", "u1", "5").WithPosition(3), nil))
	r.expect("gap   ", "updated a u1 5")
}
