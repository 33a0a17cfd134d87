package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// feedConfig watches the workload's kinds in one namespace and writes them, with
// their old states, to one file a resource.
func feedConfig(namespace string) string {
	return fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
watches:
- name: all
  resources: [configmaps, pods, deployments.apps, widgets.example.com]
  namespaces: {include: [%s]}
routes:
- name: all
  payload: [object, oldObject]
  sinks: [archive]
sinks:
- name: archive
  file: {path: "./events/{resource}.jsonl"}
`, namespace)
}

// feedTo is the feed of [feedConfig] to other sinks: their names, and their blocks.
func feedTo(namespace, names, blocks string) string {
	config, _, _ := strings.Cut(feedConfig(namespace), "  sinks: [archive]")
	return config + "  sinks: [" + names + "]\nsinks:" + blocks
}

// TestEveryWriteIsDeliveredOnce is the main job: a known sequence of writes by
// several writers, and a feed that shows exactly those.
func TestEveryWriteIsDeliveredOnce(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	d.start()
	w := newClient(t, c, ns)
	w.settleAll(d.path("events"), kinds...) // from here on nothing is part of the first list

	const writers, writes = 4, 550
	var group errgroup.Group
	for i := range writers {
		group.Go(func() error { return w.churn(t.Context(), fmt.Sprintf("w%d", i), uint64(i), writes) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	w.settleAll(d.path("events"), kinds...)
	d.stop()

	events := readEvents(t, d.path("events"))
	checkExact(t, w.history, events)
	t.Logf("%d writes to %d objects, %d events", w.history.count(), len(w.history.objects), len(events))
}
