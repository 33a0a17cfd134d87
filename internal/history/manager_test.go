package history

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/watcherd/watcherd/pkg/event"
)

// A change of a second in which several managers wrote is one of each of them.
func TestChangesOfSeveralManagers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		defer w.end()
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
	})
}
