package history

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
)

// An object that left the selection of a watch with the labels of its namespace is not taken for one that was never there, also if
// it ended since, which no record shows.
func TestEndAfterItsNamespaceLeft(t *testing.T) {
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
		namespaces.Synced(map[string]struct{}{"ns": {}})
		w.watch.Selection.Namespaces = selector.Namespaces{Selector: "env=prod"}
		var err error
		w.watch.Filter, err = w.watch.Selection.Filter()
		w.must(err)
		w.reload()
		w.rest()
		h := w.c.Handler(w.feed)
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
		namespaces.OnUpdate(prod, namespace("test"))
		w.rest()
		check("left")
		h.OnDelete(w.object("a", "u1"))
		w.rest()
		check("ended")
		namespaces.OnUpdate(prod, namespace("prod"))
		w.rest()
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
