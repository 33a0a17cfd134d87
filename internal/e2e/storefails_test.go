package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestStoreFails takes the store's folder away from under the daemon, as a volume that
// is detached does. The daemon ends with the exit code for that, and once the folder is
// back the feed continues where the last commit was.
func TestStoreFails(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	w := newClient(t, c, ns)
	d.start()
	w.settleAll(d.path("events"), kinds...)
	if err := os.Rename(d.path("data"), d.path("away")); err != nil {
		t.Fatal(err)
	}
	if err := w.flood(100); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(); code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	if log := d.log.String(); !strings.Contains(log, "watcherd: the store failed: ") || !strings.Contains(log, "no such file or directory") {
		t.Errorf("the log doesn't say why it ended:\n%s", log)
	}

	if err := os.Rename(d.path("away"), d.path("data")); err != nil {
		t.Fatal(err)
	}
	d.start()
	w.settleAll(d.path("events"), kinds...)
	d.stop()
	checkExact(t, w.history, distinct(readEvents(t, d.path("events"))))
}
