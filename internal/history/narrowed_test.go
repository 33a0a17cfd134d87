package history

import (
	"testing"
	"testing/synctest"
	"time"
)

// An object that the watch selected until its rules became narrower, and whose end no record shows, is not taken for one that was
// never there: not by itself, not by a list and not as the state before a later life.
func TestEndAfterNarrowing(t *testing.T) {
	for name, apply := range map[string]func(w *world){"reloaded": (*world).reload, "restarted": func(w *world) { w.restart(false) }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, time.Hour)
				defer w.end()
				w.restart(false) // the history has begun
				w.rest()
				w.cluster["a"] = w.object("a", "u1")
				w.c.Handler(w.feed).OnAdd(w.cluster["a"], false)
				w.rest()
				w.trim(w.st.LogStats().Last)
				w.c.Handler(w.feed).OnAdd(w.object("d", "u4"), false)
				w.c.Handler(w.feed).OnDelete(w.object("d", "u4"))
				at := w.rest()
				check := func(what string, state, list, before As, complete bool) {
					t.Helper()
					s, err := w.r.At(t.Context(), pod("a"), at)
					w.must(err)
					l, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
					w.must(err)
					if s.As != state || s.As == Exact && !s.Exists || l.As != list || l.As == Exact && len(l.Items) != 2 {
						t.Errorf("%s: got %+v, and the list %+v", what, s, l)
					}
					c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, Name: "a", From: at, To: w.now()}, false)
					w.must(err)
					if len(c.Items) > 0 && c.Items[0].Before != before || c.Complete != complete {
						t.Errorf("%s: got %+v", what, c)
					}
				}
				check("selected", Exact, Exact, Exact, true)
				w.rest()
				w.cluster["b"] = w.object("b", "u3") // of a namespace that stays
				w.c.Handler(w.feed).OnAdd(w.cluster["b"], false)
				w.rest()
				w.selects("few")
				apply(w)
				narrow := w.rest()
				if v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod("b"), Limit: 10}); err != nil || v.Before != Exact {
					t.Errorf("before the addition of an object: %+v %v", v, err)
				}
				if c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, Name: "b", From: at, To: w.now()}, false); err != nil || len(c.Items) != 1 || c.Items[0].Change != "created" {
					t.Errorf("an object that was added before that: %+v %v", c, err)
				}
				check("while it lasts", Exact, UnknownBefore, Exact, true)
				w.c.Handler(w.feed).OnDelete(w.object("a", "u1"))
				delete(w.cluster, "a")
				w.rest()
				if s, err := w.r.At(t.Context(), pod("d"), at); err != nil || s.As != Exact || s.Exists {
					t.Errorf("an object that ended before the time: %+v %v", s, err)
				}
				check("once it ended", UnknownBefore, UnknownBefore, UnknownBefore, true)
				if l, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, narrow, "", 10); err != nil || l.As != Exact {
					t.Errorf("since the rules are in force: %+v %v", l, err)
				}
				w.selects()
				apply(w)
				w.rest()
				w.c.Handler(w.feed).OnAdd(w.object("a", "u2"), false)
				w.rest()
				check("of a later life", UnknownBefore, UnknownBefore, UnknownBefore, false)
			})
		})
	}
}
