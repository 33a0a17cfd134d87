package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestServerAwayAtStart starts a daemon with a backlog while its API server is stopped: it
// delivers the backlog, is alive and not ready, and resumes exactly when the server is back.
func TestServerAwayAtStart(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	e, admin := newEndpoint(t), testkit.Address(t)
	config := strings.Replace(feedConfig(ns), `listen: ""`, fmt.Sprintf("listen: %q", admin), 1)
	config, _, _ = strings.Cut(strings.Replace(config, "sinks: [archive]", "sinks: [hook]", 1), "- name: archive")
	config += fmt.Sprintf("- name: hook\n  webhook: {url: %q, timeout: 2s}\n  batch: {maxEvents: 10}\n  retry: {initial: 20ms, max: 500ms}\n", e.url())
	e.become(failing)
	d := newDaemon(t, c.Kubeconfig, config)
	w := newClient(t, c, ns)
	w.mark()
	d.start()
	eventually(t, func() bool {
		return scrape(t, admin)[`watcherd_sink_queue_length{sink="hook"}`] >= float64(len(kinds))
	}, func() string { return d.log.String() })
	d.stop()

	c.Stop(t)
	e.become(healthy)
	d.start()
	taps := []*tap{e.tap()}
	drainAll(t, taps, w.history.finals()) // of what was written before
	if body, ok := httpGet(t, "http://"+admin+"/livez"); !ok {
		t.Errorf("/livez: %s", body)
	}
	if body, ok := httpGet(t, "http://"+admin+"/readyz?verbose"); ok || !strings.Contains(body, "[-]discovery failed") {
		t.Errorf("/readyz: %s", body)
	}
	if !d.running() {
		t.Fatal("the daemon has ended")
	}

	c.Restart(t)
	awaitAll(t, taps, w.mark())
	d.stop()
	checkExact(t, w.history, distinct(taps[0].all(t)))
}
