package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
)

// TestKillLoopPlugin kills the daemon and the plugin in turn in a sustained stream of writes. The plugin's history has every write once,
// in order per object, and its objects are the cluster in the end.
func TestKillLoopPlugin(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	p := testservers.StartPlugin(t, "../..", "")
	d := newDaemon(t, c.Kubeconfig, feedTo(ns, "mine", fmt.Sprintf(`
- name: mine
  plugin: {url: %q, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, "unix://"+p.Socket)))
	w := newClient(t, c, ns)
	read := 0
	history := newTap("plugin", func() ([][]byte, error) {
		events := p.History(read)
		read += len(events)
		return events, nil
	})
	d.start()
	awaitAll(t, []*tap{history}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 17, p.Restart)
	awaitAll(t, []*tap{history}, w.history.finals())
	d.stop()
	got := history.all(t)
	t.Logf("%d kills, %d writes, %d events", kills, w.history.count(), len(got))
	checkExact(t, w.history, got)

	left := w.history.existing()
	for _, object := range p.Objects() {
		var o struct {
			Metadata struct{ Name, UID, ResourceVersion string }
		}
		if err := json.Unmarshal(object, &o); err != nil {
			t.Fatal(err)
		}
		s := state{o.Metadata.UID, o.Metadata.ResourceVersion}
		if !left[s] {
			t.Errorf("%s is at %v, where the cluster is not", o.Metadata.Name, s)
		}
		delete(left, s)
	}
	if len(left) > 0 {
		t.Errorf("%d objects are missing", len(left))
	}
}
