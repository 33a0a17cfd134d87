package history

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
)

// relabelling plays with a world whose watch selects pods by a label of their namespace, which is "prod" first, and which relabel changes.
func relabelling(t *testing.T, play func(t *testing.T, w *world, h cache.ResourceEventHandler, relabel func(env string))) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		stopped := make(chan struct{})
		defer close(stopped)
		namespaces := w.c.NamespaceHandler(stopped)
		namespace := func(env string) *compact.Object {
			w.version++
			return w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns","uid":"n","resourceVersion":"%d","labels":{"env":%q}}}`, w.version, env))
		}
		prod := namespace("prod")
		namespaces.OnAdd(prod, true)
		namespaces.Synced()
		w.watch.Selection.Namespaces = selector.Namespaces{Selector: "env=prod"}
		var err error
		w.watch.Filter, err = w.watch.Selection.Filter()
		w.must(err)
		w.reload()
		w.rest()
		play(t, w, w.c.Handler(w.feed), func(env string) {
			namespaces.OnUpdate(prod, namespace(env))
			w.rest()
		})
	})
}

// An object that left the selection of a watch with the labels of its namespace is not taken for one that was never there, also if
// it ended since, which no record shows.
func TestEndAfterItsNamespaceLeft(t *testing.T) {
	relabelling(t, func(t *testing.T, w *world, h cache.ResourceEventHandler, relabel func(env string)) {
		h.OnAdd(w.object("a", "u1"), false)
		w.rest()
		w.trim(w.st.LogStats().Last)
		at := w.rest()
		w.rest()
		check := func(what string) {
			t.Helper()
			s, err := w.r.At(t.Context(), pod("a"), at)
			w.must(err)
			list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
			w.must(err)
			listed := false
			for _, item := range list.Items {
				listed = listed || item.Name == "a"
			}
			if s.As == Exact && !s.Exists || !listed {
				t.Errorf("%s: got %+v, in the list: %t", what, s, listed)
			}
		}
		check("selected")
		relabel("test")
		check("left")
		h.OnDelete(w.object("a", "u1"))
		w.rest()
		check("ended")
		relabel("prod")
		h.OnAdd(w.object("a", "u2"), false)
		w.rest()
		check("in a later life")
		c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, Name: "a", From: at, To: w.now()}, false)
		w.must(err)
		if len(c.Items) != 1 || c.Items[0].Before == Exact {
			t.Errorf("got %+v", c)
		}
	})
}

// What changed after an object left the selection of a watch with the labels of its namespace, which no record shows, leaves what was
// recorded before known.
func TestChangeAfterItsNamespaceLeft(t *testing.T) {
	relabelling(t, func(t *testing.T, w *world, h cache.ResourceEventHandler, relabel func(env string)) {
		first, second := w.object("a", "u1"), w.owned("a", "u1", "")
		h.OnAdd(first, false)
		added := w.rest()
		w.rest()
		h.OnUpdate(first, second)
		selected := w.rest()
		w.rest()
		relabel("test")
		left := w.rest()
		w.rest()
		check := func(when string, at time.Time, as As, version string) {
			t.Helper()
			s, err := w.r.At(t.Context(), pod("a"), at)
			w.must(err)
			list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
			w.must(err)
			for _, s := range append(list.Items, s) {
				if s.As != as || as == Exact && !strings.Contains(string(s.Object), `"resourceVersion":"`+version+`"`) {
					t.Errorf("%s it is %s %s, want %s in version %s", when, s.As, s.Object, as, version)
				}
			}
			if len(list.Items) != 1 {
				t.Errorf("%s %d are listed", when, len(list.Items))
			}
		}
		between := func(from, to time.Time) []NetChange {
			t.Helper()
			c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, From: from, To: to}, false)
			w.must(err)
			return c.Items
		}
		all := func(after As) {
			t.Helper()
			check("added", added, Exact, first.GetResourceVersion())
			check("selected", selected, Exact, second.GetResourceVersion())
			check("left", left, after, second.GetResourceVersion())
			if c := between(added, selected); len(c) != 1 || c[0].Change != "changed" || c[0].Before != Exact || c[0].After != Exact {
				t.Errorf("while it is selected: %+v", c)
			}
		}
		all(Exact)
		third := w.object("a", "u1")
		h.OnUpdate(second, third)
		changed := w.rest()
		w.rest()
		all(UnknownBefore)
		check("changed", changed, UnknownBefore, "")
		relabel("prod")
		all(UnknownBefore)
		check("changed", changed, UnknownBefore, "")
		h.OnUpdate(third, w.object("a", "u1"))
		w.rest()
		all(UnknownBefore)
		check("changed", changed, UnknownBefore, "")
		if c := between(selected, w.now()); len(c) != 1 || c[0].Before != Exact || c[0].After != Exact {
			t.Errorf("since it was selected: %+v", c)
		}
	})
}

// An object whose state is unknown, as it changed while its namespace was not selected, may be owned.
func TestOwnedAfterItsNamespaceLeft(t *testing.T) {
	relabelling(t, func(t *testing.T, w *world, h cache.ResourceEventHandler, relabel func(env string)) {
		h.OnAdd(w.object("a", "u1"), false)
		first, second := w.owned("d", "d1", "u1"), w.owned("d", "d1", "u1")
		h.OnAdd(first, false)
		at := w.rest()
		w.rest()
		relabel("test")
		w.rest()
		h.OnUpdate(first, second)
		changed := w.rest()
		w.rest()
		relabel("prod")
		h.OnUpdate(second, w.owned("d", "d1", "u1"))
		w.rest()
		for at, want := range map[time.Time]Owned{at: {As: Exact, Items: make([]OwnedObject, 1)}, changed: {As: UnknownBefore}} {
			if got, err := w.r.Owned(t.Context(), pod("a"), at, 10); err != nil || got.As != want.As || len(got.Items) != len(want.Items) {
				t.Errorf("got %+v %v, want %+v", got, err, want)
			}
		}
	})
}

// An object that enters the selection of a watch with the labels of its namespace is known from then on, and not before.
func TestStateSinceItsNamespaceEntered(t *testing.T) {
	for name, gap := range map[string]bool{"": false, "with a gap": true} {
		t.Run(name, func(t *testing.T) {
			relabelling(t, func(t *testing.T, w *world, h cache.ResourceEventHandler, relabel func(env string)) {
				relabel("test")
				w.cluster["a"] = w.object("a", "u1")
				h.OnAdd(w.cluster["a"], false)
				before := w.rest()
				w.rest()
				relabel("prod")
				entered := w.rest()
				w.rest()
				check := func(when string, at time.Time, want As) {
					t.Helper()
					s, err := w.r.At(t.Context(), pod("a"), at)
					w.must(err)
					list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
					w.must(err)
					if s.As != want || want == Exact && !s.Exists || len(list.Items) != 1 || list.Items[0].As != want {
						t.Errorf("%s: got %+v, in the list %+v, want %s", when, s, list.Items, want)
					}
				}
				both := func(when string) {
					t.Helper()
					check(when+", before", before, UnknownBefore)
					check(when+", since", entered, Exact)
				}
				both("entered")
				var amid time.Time
				want := Exact
				if gap {
					want = Gap
					amid = w.now().Add(time.Minute)
					w.lost(func(string) {})
				} else {
					amid = w.rest()
					w.rest()
					h.OnUpdate(w.cluster["a"], w.owned("a", "u1", ""))
				}
				w.rest()
				both("changed")
				check("changed, until then", amid, want)
				last, err := w.r.Diff(t.Context(), pod("a"), time.Time{}, w.now())
				w.must(err)
				c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, From: entered, To: w.now()}, false)
				w.must(err)
				if last.From.As != want || len(c.Items)+c.Churned != 1 || len(c.Items) == 1 && c.Items[0].Before != Exact {
					t.Errorf("the change: %+v, of the period: %+v", last, c)
				}
				relabel("test")
				both("left")
			})
		})
	}
}
