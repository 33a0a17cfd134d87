package e2e

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestStoreFails fills the disk of a store that is told to leave no room on it. The
// daemon ends with the exit code for that, and with room again it goes on where the
// last commit was.
func TestStoreFails(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, strings.Replace(feedConfig(ns), "{path: ./data}", "{path: ./data/store, minFree: 1}", 1))
	disk := mountSmall(t, d.path("data"), "256m")
	if disk == nil {
		t.Skip("needs a small file system")
	}
	disk.fillBut(8 << 20)
	w := newClient(t, c, ns)
	d.start()
	w.settleAll(d.path("events"), kinds...)
	for range 100 {
		if !d.running() {
			break
		}
		if err := w.flood(100); err != nil {
			t.Fatal(err)
		}
	}
	if code := d.wait(); code != 3 {
		t.Fatalf("exit code %d, want 3", code)
	}
	if log := d.log.String(); !strings.Contains(log, "watcherd: the store failed: write ") || !strings.Contains(log, "no space left on device") {
		t.Error("the log doesn't say why it ended")
	}

	disk.clear()
	d.start()
	w.settleAll(d.path("events"), kinds...)
	d.stop()
	checkExact(t, w.history, distinct(readEvents(t, d.path("events"))))
}
