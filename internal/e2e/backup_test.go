package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestRestoredBackup backs up the store of a running daemon, and restores it after further
// changes: the feed then has every change, those after the backup a second time at most, with
// the same ids and later sequences.
func TestRestoredBackup(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns, admin := c.Namespace(t), testkit.Address(t)
	config := strings.Replace(feedConfig(ns), `listen: ""`, fmt.Sprintf("listen: %q", admin), 1)
	d := newDaemon(t, c.Kubeconfig, config)
	w := newClient(t, c, ns)
	archive := []*tap{tapFiles("file", d.path("events/*.jsonl"))}
	d.start()
	awaitAll(t, archive, w.mark())
	if err := w.flood(200); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, archive, w.history.finals())

	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	backup := func(dir string) (string, error) {
		out, err := exec.CommandContext(t.Context(), bin, "store", "backup", dir, "--admin", "http://"+admin).CombinedOutput()
		return string(out), err
	}
	copied := d.path("copy")
	if out, err := backup(copied); err != nil || !strings.Contains(out, "checked") {
		t.Fatal(out, err)
	}
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the copy has mode %v, error %v", info.Mode(), err)
	}
	for dir, want := range map[string]string{copied: "exist", d.path("data/copy"): "in the folder of the store"} {
		if out, err := backup(dir); err == nil || !strings.Contains(out, want) {
			t.Errorf("backup to %s: %s %v", dir, out, err)
		}
	}
	if err := w.flood(100); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, archive, w.history.finals())
	d.stop()

	if err := os.Rename(d.path("data"), d.path("lost")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(copied, d.path("data")); err != nil {
		t.Fatal(err)
	}
	d.configure(strings.ReplaceAll(config, "./events/", "./again/")) // what comes again has another sequence
	again := []*tap{tapFiles("file", d.path("again/*.jsonl"))}
	d.start()
	awaitAll(t, again, w.mark())
	d.stop()
	all := append(archive[0].all(t), again[0].all(t)...)
	checkExact(t, w.history, distinct(all))
	sequences := map[string]string{}
	for _, g := range all {
		if id, ok := sequences[g.Sequence]; ok && id != g.ID {
			t.Errorf("sequence %s is of the events %s and %s", g.Sequence, id, g.ID)
		}
		sequences[g.Sequence] = g.ID
	}
}
