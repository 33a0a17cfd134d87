package history

import (
	"bytes"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// selects has the watch select the objects of namespaces, of all without any.
func (w *world) selects(namespaces ...string) {
	w.Helper()
	w.watch.Selection.Namespaces = selector.Namespaces{Include: namespaces}
	var err error
	w.watch.Filter, err = w.watch.Selection.Filter()
	w.must(err)
}

// reload puts the watch in place of the one that runs.
func (w *world) reload() {
	w.Helper()
	watch := w.watch
	x, err := w.c.PrepareChange(&plan.State{Watches: []plan.Watch{watch}}, func(*plan.Watch, string) (resource, part bool) { return true, true }, nil, map[*commit.Feed][]commit.WatchRef{w.feed: {commit.NewWatchRef(&watch)}}, nil)
	w.must(err)
	w.must(w.c.AtBarrier(func(b commit.Barrier) { err = b.Change(x) }))
	w.must(err)
}

// selectsLabels has the running watch select the objects with labels.
func (w *world) selectsLabels(labels string) {
	w.Helper()
	w.watch.Selection.Labels = labels
	var err error
	w.watch.Filter, err = w.watch.Selection.Filter()
	w.must(err)
	w.reload()
}

// labelled makes the next version of an object with a label.
func (w *world) labelled(name, label string) *compact.Object {
	w.Helper()
	w.version++
	w.shown.Store(int64(w.version))
	return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":%q,"uid":"u-%s","resourceVersion":"%d","labels":{"app":%q}}}`, name, name, w.version, label))
}

func (w *world) checkList(what string, at time.Time, as As, want map[string]As) {
	w.Helper()
	list, err := w.r.ListAt(w.Context(), Objects{Resource: pods}, at, "", 10)
	w.must(err)
	got := map[string]As{}
	for _, s := range list.Items {
		got[s.Name] = s.As
	}
	if list.As != as || !maps.Equal(got, want) {
		w.Errorf("%s: the list is %s with %v, want %s with %v", what, list.As, got, as, want)
	}
}

// What a watch did not select is not known of the time before it did: an object that came and went meanwhile is
// not taken for one that was never there, and no answer about that time is complete.
func TestSelectionWidened(t *testing.T) {
	for name, apply := range map[string]func(w *world){"reloaded": (*world).reload, "restarted": func(w *world) { w.restart(false) }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 0)
				defer w.end()
				lives := func(name string) {
					w.c.Handler(w.feed).OnAdd(w.object(name, "u-"+name), false)
					w.rest()
					w.c.Handler(w.feed).OnDelete(w.object(name, "u-"+name))
					w.rest()
				}
				check := func(what string, f Filter, complete bool) {
					t.Helper()
					c, err := w.r.Changes(t.Context(), f, false)
					w.must(err)
					if c.Complete != complete {
						t.Errorf("%s: complete is %t, since %v", what, c.Complete, c.Since)
					}
				}
				begin := w.rest()
				w.selects("few")
				apply(w)
				from := w.rest()
				check("narrowed", Filter{From: begin, To: from}, true)
				w.c.Handler(w.feed).OnAdd(w.object("a", "u1"), false) // of another namespace
				at := w.rest()
				w.c.Handler(w.feed).OnDelete(w.object("a", "u1"))
				lives("b")
				w.selects()
				apply(w)
				since := w.rest()
				lives("b")
				s, err := w.r.At(t.Context(), pod("a"), at)
				w.must(err)
				if s.As != UnknownBefore {
					t.Errorf("an object that was not selected: %+v", s)
				}
				list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
				w.must(err)
				if list.As != UnknownBefore {
					t.Errorf("the list: %+v", list)
				}
				check("of the time before", Filter{From: from, To: w.now()}, false)
				check("since then", Filter{From: since, To: w.now()}, true)
				w.restart(false)
				w.rest()
				check("after a restart", Filter{From: since, To: w.now()}, true)
			})
		})
	}
}

// A list of a time is of what the watches selected then. Others are unknown if the rules have changed since.
func TestListOfASelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		selects := func(labels string) {
			w.selectsLabels(labels)
			w.rest()
		}
		object, check := w.labelled, w.checkList
		h := w.c.Handler(w.feed)
		h.OnAdd(object("old", "no"), false)
		w.rest()
		selects("app=web")
		web, other := object("web", "web"), object("other", "no")
		h.OnAdd(web, false)
		h.OnAdd(other, false)
		selected := w.rest()
		left := object("web", "no")
		h.OnUpdate(web, left)
		gone := w.rest()
		check("left", gone, Exact, map[string]As{})
		again := object("web", "no")
		h.OnUpdate(left, again)
		changed := w.rest()
		check("left, and changed since", gone, Exact, map[string]As{})
		h.OnDelete(object("web", "no"))
		deleted := w.rest()
		check("selected", selected.Add(-1), Exact, map[string]As{"web": Exact})
		check("left, and changed", changed, Exact, map[string]As{})
		check("left, and deleted", deleted, Exact, map[string]As{})
		if s, err := w.r.At(t.Context(), pod("web"), changed); err != nil || s.As != UnknownBefore {
			t.Errorf("an object that left: %+v %v", s, err)
		}
		w.selectsLabels("")
		check("at once", w.now(), Exact, map[string]As{"old": Exact, "web": UnknownBefore, "other": UnknownBefore})
		w.rest()
		all := w.rest()
		check("of the time before", changed, UnknownBefore, map[string]As{"old": Exact, "web": UnknownBefore, "other": UnknownBefore})
		check("selected by other rules", all, Exact, map[string]As{"old": Exact, "other": UnknownBefore})
		selects("app=web")
		narrow := w.rest()
		check("selected until then", all, UnknownBefore, map[string]As{"old": Exact, "web": UnknownBefore, "other": UnknownBefore})
		check("not selected", narrow, Exact, map[string]As{})
		c, _, err := w.r.ledger.Checkpoint(w.feed.ID)
		w.must(err)
		c.Kept[0].Rules.Labels = "app web"
		w.must(ledger.PutMeta(w.st, ledger.CheckpointMeta(w.feed.ID), ledger.Encode(&c)))
		check("by rules that another release reads", narrow, Exact, map[string]As{"old": Exact, "web": UnknownBefore, "other": UnknownBefore})
	})
}

// Damage to the recorded state of an object that the watch selected hides that it left. A list leaves it out from when that is certain.
func TestListOfADamagedSelection(t *testing.T) {
	for name, tc := range map[string]struct {
		damaged func(before []byte) []byte
		as      As // of the list of the time when it was selected
		x       map[string]As
		left    map[string]As // once it had left
	}{
		"unreadable":     {func([]byte) []byte { return []byte("damaged") }, Gap, map[string]As{"x": Gap}, map[string]As{}},
		"an earlier one": {bytes.Clone, Exact, map[string]As{"x": UnknownBefore}, map[string]As{"x": UnknownBefore}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 0)
				defer w.end()
				w.selectsLabels("app=web")
				h := w.c.Handler(w.feed)
				outside := w.labelled("x", "no")
				h.OnAdd(outside, false)
				w.rest()
				before, _, err := w.st.State("pods", ledger.Key("ns", "x"), nil)
				w.must(err)
				h.OnUpdate(outside, w.labelled("x", "web"))
				then := w.rest()
				w.rest()
				b := w.st.NewBatch()
				b.PutState("pods", ledger.Key("ns", "x"), tc.damaged(before))
				w.must(w.st.Commit(b))
				h.OnAdd(w.labelled("x", "no"), false)
				left := w.rest()
				w.checkList("selected", then, tc.as, tc.x)
				w.checkList("left", left, Exact, tc.left)
			})
		})
	}
}

// passesBy lets something happen once a list has read what is recorded of its objects.
type passesBy struct {
	passing
	scans int // of the ledger
	now   func()
}

func (s *passesBy) Partitions() []string {
	if s.scans++; s.scans == 2 { // the first object is looked at
		s.now()
	}
	return s.passing.Partitions()
}

// A list leaves out no object that leaves the selection of a watch while the list is read.
func TestListBesideChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		left func(w *world, selected, outside *compact.Object)
		as   As // of the list
	}{
		"by its labels": {func(w *world, selected, outside *compact.Object) {
			w.c.Handler(w.feed).OnUpdate(selected, outside)
			w.c.Handler(w.feed).OnUpdate(outside, w.labelled("x", "no"))
		}, Exact},
		"by other rules": {func(w *world, selected, outside *compact.Object) {
			w.selectsLabels("app=none")
			w.c.Handler(w.feed).OnUpdate(selected, outside)
		}, UnknownBefore},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 0)
				defer w.end()
				w.selectsLabels("app=db")
				x := w.labelled("x", "web")
				w.c.Handler(w.feed).OnAdd(x, false)
				w.rest()
				w.selectsLabels("app=web") // and no record shows that x is selected
				at := w.rest()
				w.r.store = &passesBy{passing: passing{w.st}, now: func() {
					w.rest()
					tc.left(w, x, w.labelled("x", "no"))
					w.rest()
				}}
				w.checkList("beside", at, tc.as, map[string]As{"x": UnknownBefore})
			})
		})
	}
}

// Of a namespace that no watch selects, nothing is known: no answer about it is complete.
func TestUnselectedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		check := func(what, namespace string, resource event.Resource, from time.Time, complete bool) {
			t.Helper()
			c, err := w.r.Changes(t.Context(), Filter{Resource: &resource, Namespace: namespace, From: from, To: w.now()}, false)
			w.must(err)
			all, err := w.r.Histogram(t.Context(), Filter{Namespace: namespace, From: from, To: w.now()}, 1)
			w.must(err)
			if c.Complete != complete || all.Complete != complete || complete != (len(c.Unread) == 0) {
				t.Errorf("%s: complete is %t, of all resources %t, with %v", what, c.Complete, all.Complete, c.Unread)
			}
		}
		w.selects("f*")
		w.reload()
		from := w.rest()
		w.c.Handler(w.feed).OnAdd(w.object("a", "u1"), false) // of another namespace
		w.rest()
		check("a namespace that is left out", "ns", pods, from, false)
		check("one that is selected", "few", pods, from, true)
		check("all", "", pods, from, true)
		w.selects()
		w.reload()
		from = w.rest()
		check("since all are", "ns", pods, from, true)
	})
}

// The blame of an object that left the selection of a watch, and changed since, does not have it as deleted, and shows that more may
// have changed.
func TestBlameOfWhatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		w.selectsLabels("app=web")
		h := w.c.Handler(w.feed)
		selected, left := w.labelled("x", "web"), w.labelled("x", "no")
		h.OnAdd(selected, false)
		w.rest()
		check := func(what string, deleted bool, as As) {
			t.Helper()
			b, err := w.r.Blame(t.Context(), Object{pods, "ns", "x"})
			w.must(err)
			if b.Deleted != deleted || len(b.Fields) == 0 {
				t.Errorf("%s: deleted %t, with %d fields", what, b.Deleted, len(b.Fields))
			}
			for _, f := range b.Fields {
				if f.As != as {
					t.Errorf("%s: %+v, want %s", what, f, as)
				}
			}
		}
		check("selected", false, Exact)
		h.OnUpdate(selected, left)
		w.rest()
		check("left", false, Exact)
		h.OnUpdate(left, w.labelled("x", "no"))
		w.rest()
		check("changed since", false, Gap)
	})
}
