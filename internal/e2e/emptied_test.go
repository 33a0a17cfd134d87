package e2e

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestEmptiedResource loses the history of a resource that has no objects any more.
// The list that makes up for it shows that nothing is missing, so that there is no gap,
// and a restart resumes from it although there is nothing in it.
func TestEmptiedResource(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
watches: [{name: all, resources: [widgets.example.com]}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`)
	d.start()
	eventually(t, func() bool { return strings.Contains(d.log.String(), "watch synced") }, func() string { return "never synced" })
	w, widget := newClient(t, c, ns), kinds[3]
	u, err := w.create(t.Context(), widget, "only")
	if err == nil {
		err = w.remove(t.Context(), widget, u)
	}
	if err != nil {
		t.Fatal(err)
	}
	last := func() string {
		events := readEvents(t, d.path("events"))
		if len(events) == 0 {
			return ""
		}
		return events[len(events)-1].verb()
	}
	eventually(t, func() bool { return last() == "deleted" }, func() string { return "the deletion didn't arrive" })

	// An API server that starts knows nothing older than that.
	if err := newClient(t, c, ns).flood(40); err != nil {
		t.Fatal(err)
	}
	c.Restart(t)
	eventually(t, func() bool { return strings.Contains(d.log.String(), "relists found no missed change") }, func() string { return "the list is not logged" })
	d.stop()

	asked := c.RequestCounts(t, widget.gvr)
	d.log.Reset()
	d.start()
	eventually(t, func() bool { return strings.Contains(d.log.String(), "watch synced") }, func() string { return "never synced" })
	if _, err := w.create(t.Context(), widget, "next"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return last() == "added" }, func() string { return "the addition didn't arrive" })
	d.stop()
	if lists := c.RequestCounts(t, widget.gvr).List - asked.List; lists != 0 {
		t.Errorf("%d LIST requests after the restart, want none", lists)
	}
	events := readEvents(t, d.path("events"))
	for _, g := range events {
		if g.verb() == "gap" {
			t.Errorf("a gap in which nothing happened: %+v", g.Data)
		}
	}
	checkFinal(t, w.history, events)
}
