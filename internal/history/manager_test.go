package history

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// A change of a second in which several managers wrote is one of each of them.
func TestChangesOfSeveralManagers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		begin := w.rest()
		entry := func(manager string) string {
			return fmt.Sprintf(`{"manager":%q,"operation":"Update","time":"2026-11-22T09:00:00Z"}`, manager)
		}
		for i, fields := range []string{entry("kubectl-edit"), entry("kubectl-edit") + "," + entry("kube-controller-manager"), entry("a,b")} {
			w.version++
			w.shown.Store(int64(w.version))
			w.c.Handler(w.feed).OnAdd(w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"%d","uid":"u%d","resourceVersion":"%d","managedFields":[%s]}}`,
				i, i, w.version, fields)), false)
		}
		w.rest()
		for manager, want := range map[string]int{
			"kubectl-edit": 2, "kube-controller-manager": 1, "kubectl-edit,kube-controller-manager": 1, "a,b": 1, "a": 1, "kubectl": 0, "edit": 0,
		} {
			page, err := w.r.Query(t.Context(), Query{Filter: Filter{Manager: manager}, Limit: 10})
			w.must(err)
			h, err := w.r.Histogram(t.Context(), Filter{Manager: manager}, 1)
			w.must(err)
			if len(page.Items) != want || h.Buckets[0].Counts[event.Added] != want {
				t.Errorf("by %s: %+v, counted %v, want %d", manager, page.Items, h.Buckets, want)
			}
		}
		c, err := w.r.Changes(t.Context(), Filter{From: begin.Add(-1), Manager: "none", Types: []event.Type{event.Deleted}, NoNoise: true}, false)
		w.must(err)
		if len(c.Items) != 3 {
			t.Errorf("net changes are not selected by managers, types and noise: %+v", c)
		}
	})
}

// An object that each of its changes gives another manager, or many references, takes bounded memory in an answer.
func TestChangesOfHostileObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
		from, h, old := w.now(), w.c.Handler(w.feed), (*compact.Object)(nil)
		time.Sleep(time.Minute)
		for i := range 3 * maxManagers {
			w.version++
			w.shown.Store(int64(w.version))
			next := w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"managed","uid":"u","resourceVersion":"%d",`+
				`"managedFields":[{"manager":"m%d","operation":"Update","time":"2026-11-22T09:00:00Z"}]},"spec":{"n":%d}}`, w.version, i, i))
			if old == nil {
				h.OnAdd(next, false)
			} else {
				h.OnUpdate(old, next)
			}
			old = next
		}
		refs := strings.TrimSuffix(strings.Repeat(`{"apiVersion":"v1","kind":"A","name":"o","controller":true},`, maxRefs), ",")
		for i := range maxAllRefs/maxRefs + 20 {
			w.version++
			w.shown.Store(int64(w.version))
			h.OnAdd(w.encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"owned-%d","uid":"u%d","resourceVersion":"%d","ownerReferences":[%s]}}`,
				i, i, w.version, refs)), false)
		}
		w.rest()
		c, err := w.r.Changes(t.Context(), Filter{From: from, Name: "managed"}, false)
		w.must(err)
		if len(c.Items) != 1 || c.Items[0].Count != 3*maxManagers || len(c.Items[0].Managers) != maxManagers {
			t.Errorf("%+v", c.Items)
		}
		var all []*net
		w.must(w.r.rows(t.Context(), 1, w.st.LogStats().Last, false, "", func(*headline.Row) bool { return true }, func(row *headline.Row) error {
			all = append(all, &net{NetChange: NetChange{Resource: row.Resource, Namespace: strings.Clone(row.Namespace), Name: strings.Clone(row.Name), Count: 1}, first: row.Sequence, last: row.Sequence})
			return nil
		}))
		before, err := w.r.until(from)
		w.must(err)
		during, err := w.r.until(w.now())
		w.must(err)
		list, _, err := w.r.ends(t.Context(), all, before, during, true)
		w.must(err)
		kept, owned := 0, 0
		for _, n := range list {
			if kept += len(n.owners); len(n.owners) > 0 {
				owned++
			}
		}
		if owned != maxAllRefs/maxRefs+20 || kept > maxAllRefs+len(list) {
			t.Errorf("%d references of %d objects", kept, owned)
		}
	})
}
