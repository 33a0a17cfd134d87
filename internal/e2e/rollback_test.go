package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestRollback restores an older state of etcd. A watch of the newer version would
// be silent for ever; the feed notices, says so, and follows the cluster back.
func TestRollback(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		stopped bool
	}{{"running", false}, {"stopped", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.Start(t)
			c.Apply(t, widgetCRD)
			ns := c.Namespace(t)
			w := newClient(t, c, ns)
			objects, err := w.populate(t.Context(), 40)
			if err != nil {
				t.Fatal(err)
			}
			before := c.SaveEtcd(t)
			d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
			d.start()
			w.settleAll(d.path("events"), kinds...)
			if err := w.undone(t.Context(), objects); err != nil {
				t.Fatal(err)
			}
			w.settleAll(d.path("events"), kinds...)

			if tc.stopped {
				d.stop()
			}
			c.RestoreEtcd(t, before)
			if tc.stopped {
				d.start()
			}
			eventually(t, func() bool { return len(gapsOf(readEvents(t, d.path("events")))) == len(kinds) },
				func() string { return "not every kind has its gap" })
			w.settleAll(d.path("events"), kinds...)
			d.stop()

			events := readEvents(t, d.path("events"))
			report(t, checkIDs(events))
			checkGaps(t, events, "rollback")
			checkConverged(t, w, events)
		})
	}
}

// undone is what the restore will undo: 20 creations, 10 updates, 10 deletions. Many
// more updates bring the version far above what the restored server will soon
// reach again by writes of its own.
func (c *client) undone(ctx context.Context, objects []placed) error {
	for i := range 20 {
		if _, err := c.create(ctx, kinds[i%len(kinds)], fmt.Sprintf("undone-%d", i)); err != nil {
			return err
		}
	}
	for _, o := range objects[:10] {
		if _, err := c.update(ctx, o.k, o.u); err != nil {
			return err
		}
	}
	last := objects[20]
	for range 600 {
		u, err := c.update(ctx, last.k, last.u)
		if err != nil {
			return err
		}
		last.u = u
	}
	for _, o := range objects[10:20] {
		if err := c.remove(ctx, o.k, o.u); err != nil {
			return err
		}
	}
	return nil
}

func gapsOf(events []got) map[string]bool {
	told := map[string]bool{}
	for _, g := range events {
		if g.verb() == "gap" {
			told[g.Subject] = true
		}
	}
	return told
}

// checkConverged compares where the feed leaves each object with the cluster.
func checkConverged(t testing.TB, c *client, events []got) {
	t.Helper()
	feed := map[string]string{}
	for uid, list := range byObject(events) {
		if last := list[len(list)-1]; last.verb() != "deleted" {
			feed[uid] = last.Data.ResourceVersion
		}
	}
	var problems []string
	for _, k := range kinds {
		list, err := c.dyn.Resource(k.gvr).Namespace(c.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range list.Items {
			uid := string(u.GetUID())
			if feed[uid] != u.GetResourceVersion() {
				problems = append(problems, fmt.Sprintf("%s %s is at version %s, the feed ends at %q", k.kind, u.GetName(), u.GetResourceVersion(), feed[uid]))
			}
			delete(feed, uid)
		}
	}
	for uid, version := range feed {
		problems = append(problems, fmt.Sprintf("%s does not exist, the feed ends at %s", uid, version))
	}
	report(t, problems)
}
