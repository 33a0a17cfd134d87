package e2e

import (
	"fmt"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers"
)

// toPostgres is the feed of [feedConfig] into tables.
func toPostgres(namespace, url string) string {
	return feedTo(namespace, "db", fmt.Sprintf(`
- name: db
  postgres: {url: {file: %q}, create: true, timeout: 2s}
  retry: {initial: 20ms, max: 500ms}
`, url))
}

// tapHistory shows the rows of table history.
func tapHistory(p *testservers.Postgres) *tap {
	seen := map[string]bool{}
	return newTap("postgres", func() (bodies [][]byte, err error) {
		if p.Exec("select to_regclass('watcherd.history') is null")[0][0] == "t" {
			return nil, nil
		}
		for _, row := range p.Exec("select id, event from watcherd.history order by sequence") {
			if !seen[row[0]] {
				seen[row[0]] = true
				bodies = append(bodies, []byte(row[1]))
			}
		}
		return bodies, nil
	})
}

// TestKillLoopPostgres kills the daemon and the server in turn in a sustained stream of writes. History has every
// write once, and the objects are the cluster in the end.
func TestKillLoopPostgres(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	server := testservers.StartPostgres(t, testservers.PostgresSpec{Settings: map[string]string{"fsync": "on"}})
	d := newDaemon(t, c.Kubeconfig, toPostgres(ns, testservers.URLFile(t, server)))
	w := newClient(t, c, ns)
	history := tapHistory(server)
	d.start()
	awaitAll(t, []*tap{history}, w.mark()) // from here on nothing is part of the first list

	kills := killInTurn(d, w, 9, server.Restart)
	awaitAll(t, []*tap{history}, w.history.finals())
	checkExact(t, w.history, history.all(t))

	want := w.history.existing()
	d.stop()
	for _, row := range server.Exec("select uid, resource_version, name from watcherd.objects where deleted_at is null") {
		s := state{row[0], row[1]}
		if !want[s] {
			t.Errorf("%s is at %v, where the cluster is not", row[2], s)
		}
		delete(want, s)
	}
	if len(want) > 0 {
		t.Errorf("%d objects are missing", len(want))
	}
	again := server.Exec("select count(*), count(distinct sequence) from watcherd.history")[0]
	t.Logf("%d kills, %d writes, %s events", kills, w.history.count(), again[0])
	if again[0] != again[1] {
		t.Errorf("%s rows of history have %s sequences", again[0], again[1])
	}
}
