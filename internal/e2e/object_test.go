package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
)

// tapObjects shows the lines of the objects of a bucket, each object once, in the order of their names.
func tapObjects(o *testservers.Object) *tap {
	seen := map[string]bool{}
	return newTap("object", func() (bodies [][]byte, err error) {
		keys, lines := o.Lines(".")
		for _, key := range keys {
			if !seen[key] {
				seen[key] = true
				bodies = append(bodies, lines[key]...)
			}
		}
		return bodies, nil
	})
}

// TestKillLoopObject kills the daemon and the server in turn in a sustained stream of writes. The bucket has every write
// once.
func TestKillLoopObject(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	const secret = "open sesame"
	server := testservers.StartObject(t, testservers.ObjectSpec{Bucket: "lake", Access: "watcherd", Secret: secret})
	file := t.TempDir() + "/secret"
	testkit.Write(t, file, []byte(secret))
	d := newDaemon(t, c.Kubeconfig, feedTo(ns, "lake", fmt.Sprintf(`
- name: lake
  object:
    s3: {bucket: lake, endpoint: "http://%s", accessKey: watcherd, secretKey: {file: %q}}
    timeout: 2s
  batch: {maxWait: 100ms}
  retry: {initial: 20ms, max: 500ms}
`, server.Addr, file)))
	w := newClient(t, c, ns)
	lake := tapObjects(server)
	d.start()
	awaitAll(t, []*tap{lake}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 11, server.Restart)
	awaitAll(t, []*tap{lake}, w.history.finals())
	d.stop()
	events := tapObjects(server).all(t)
	t.Logf("%d kills, %d writes, %d events", kills, w.history.count(), len(events))
	// Events that are tried again make objects that overlap others: the order among objects is that of sequence.
	slices.SortStableFunc(events, func(a, b got) int { return strings.Compare(a.Sequence, b.Sequence) })
	checkExact(t, w.history, events)
}
