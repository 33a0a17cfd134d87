package e2e

import (
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
)

// TestKillLoopOTLP kills the daemon and the Collector's receiver in turn in a sustained stream of writes. The
// receiver has accepted every write, in order per object, some of them again.
func TestKillLoopOTLP(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	receiver := testservers.StartCollector(t, testservers.CollectorSpec{})
	d := newDaemon(t, c.Kubeconfig, feedTo(ns, "logs", fmt.Sprintf(`
- name: logs
  otlp: {endpoint: %q, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, "http://"+receiver.Addr)))
	w := newClient(t, c, ns)
	read := 0
	records := newTap("otlp", func() (bodies [][]byte, err error) {
		all := receiver.Accepted()
		for _, r := range all[read:] {
			bodies = append(bodies, []byte(r.Body.(string)))
		}
		read = len(all)
		return bodies, nil
	})
	d.start()
	awaitAll(t, []*tap{records}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 11, receiver.Restart)
	awaitAll(t, []*tap{records}, w.history.finals())
	once := distinct(records.all(t))
	t.Logf("%d kills, %d writes, %d events, %d of them again", kills, w.history.count(), len(once), len(records.seen)-len(once))
	checkExact(t, w.history, once)
}
