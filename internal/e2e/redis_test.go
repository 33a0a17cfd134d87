package e2e

import (
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestKillLoopRedis kills the daemon and the server in turn in a sustained stream of writes. The stream has every
// write, repeats are only what was written again after its time, and the hash is the cluster in the end.
func TestKillLoopRedis(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	server := testservers.StartRedis(t, testservers.RedisSpec{})
	d := newDaemon(t, c.Kubeconfig, feedTo(ns, "redis", fmt.Sprintf(`
- name: redis
  redis: {url: "redis://%s", state: true, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, server.Addr)))
	w := newClient(t, c, ns)
	seen := 0
	stream := newTap("redis", func() (bodies [][]byte, err error) {
		entries := server.Entries("watcherd")
		for _, e := range entries[min(seen, len(entries)):] {
			bodies = append(bodies, []byte(e["event"]))
		}
		seen += len(bodies)
		return bodies, nil
	})
	d.start()
	awaitAll(t, []*tap{stream}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 9, server.Restart)
	awaitAll(t, []*tap{stream}, w.history.finals())
	checkExact(t, w.history, stream.all(t))

	want := w.history.existing()
	d.stop()
	objects, err := server.Do("HGETALL", "{watcherd}:objects").AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range objects {
		e, err := event.Parse([]byte(value))
		if err != nil {
			t.Fatal(err)
		}
		s := state{e.UID, e.ResourceVersion}
		if !want[s] {
			t.Errorf("%s is at %v, where the cluster is not", key, s)
		}
		delete(want, s)
	}
	if len(want) > 0 {
		t.Errorf("%d objects are missing", len(want))
	}
	ids := map[string]bool{}
	entries := server.Entries("watcherd")
	for _, e := range entries {
		ids[e["id"]] = true
	}
	t.Logf("%d kills, %d writes, %d entries", kills, w.history.count(), len(entries))
	if len(ids) != len(entries) {
		t.Errorf("%d entries have %d ids", len(entries), len(ids))
	}
}
