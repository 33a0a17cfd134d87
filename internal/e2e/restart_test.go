package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// TestRestartUnchanged restarts over objects that did not change: no list, no
// event.
func TestRestartUnchanged(t *testing.T) {
	t.Parallel()
	objects := 1000
	if soak() {
		objects = 50_000
	}
	// A cluster of its own: where namespaces of other tests are deleted, the API
	// server's own controller lists everything in them.
	c := testcluster.Start(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	w := newClient(t, c, ns)
	widget := kinds[3]
	var group errgroup.Group
	for i := range 8 {
		group.Go(func() error {
			for n := range objects / 8 {
				if _, err := w.create(t.Context(), widget, fmt.Sprintf("w-%d-%d", i, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, c.Kubeconfig, fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
watches: [{name: all, resources: [widgets.example.com], namespaces: {include: [%s]}}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`, ns))
	d.start()
	w.settleAll(d.path("events"), widget)
	d.stop()
	asked := c.RequestCounts(t, widget.gvr)

	d.log.Reset()
	d.start()
	eventually(t, func() bool { return strings.Contains(d.log.String(), "watch synced") }, func() string { return "never synced" })
	w.settleAll(d.path("events"), widget)
	d.stop()

	if lists := c.RequestCounts(t, widget.gvr).List - asked.List; lists != 0 {
		t.Errorf("%d LIST requests after the restart, want none", lists)
	}
	after := readEvents(t, d.path("events"))
	if len(after) != w.history.count() {
		t.Errorf("%d events of %d objects", len(after), w.history.count())
	}
	checkExact(t, w.history, after)
}

// TestExpiringEvents watches objects that expire by the hundred at one and the same
// resourceVersion, and kills the daemon while they do.
func TestExpiringEvents(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, "--event-ttl=12s")
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
watches: [{name: all, resources: [events], namespaces: {include: [%s]}}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`, ns))
	d.start()
	w := newClient(t, c, ns)
	const n = 400
	for i := range n {
		if _, err := w.create(t.Context(), eventKind, fmt.Sprintf("e-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	deleted := func() int {
		n := 0
		for _, g := range distinct(readEvents(t, d.path("events"))) {
			if g.verb() == "deleted" {
				n++
			}
		}
		return n
	}
	eventually(t, func() bool { return deleted() > 0 }, func() string { return "nothing expired" })
	for range 3 {
		d.kill()
		d.start()
		pause(t, 300_000_000)
	}
	eventually(t, func() bool { return deleted() >= n }, func() string { return fmt.Sprintf("%d of %d deletions arrived", deleted(), n) })
	d.stop()
	for uid, list := range byObject(distinct(readEvents(t, d.path("events")))) {
		if last := list[len(list)-1]; last.verb() != "deleted" || len(list) != 2 {
			t.Errorf("%s: %d events, the last is %s; want an addition and a deletion", uid, len(list), last.verb())
		}
	}
}

// TestQuietResource restarts the daemon when the API server no longer has the history
// since the last change of a resource that has no bookmarks (as Events have none, whose
// storage has no watch cache). Nothing happened to it, so there is neither a gap nor a
// list.
func TestQuietResource(t *testing.T) {
	if !soak() {
		t.Skip("it takes minutes until a resource counts as quiet: make soak waits for it")
	}
	c := testcluster.Start(t)
	ns := c.Namespace(t)
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, fmt.Sprintf(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: %q}
watches: [{name: all, resources: [events], namespaces: {include: [%s]}}]
sinks: [{name: archive, file: {path: "./events/{resource}.jsonl"}}]
`, admin, ns))
	w := newClient(t, c, ns)
	d.start()
	w.settleAll(d.path("events"), eventKind)
	version := func() (v int64) {
		body, _ := httpGet(t, "http://"+admin+"/api/v1/status")
		var st status.Pipeline
		if err := json.Unmarshal([]byte(body), &st); err != nil {
			t.Fatal(err)
		}
		s := st.Watches[0].Sources[0]
		v, err := strconv.ParseInt(cmp.Or(s.Quiet, s.ResourceVersion), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	quiet := version()
	elsewhere := newClient(t, c, c.Namespace(t))
	resume := quiet
	for n, deadline := 0, time.Now().Add(6*time.Minute); resume <= quiet; n, resume = n+1, version() {
		if time.Now().After(deadline) {
			t.Fatalf("the daemon would still resume from %d", quiet)
		}
		if _, err := elsewhere.create(t.Context(), kinds[0], fmt.Sprintf("c-%d", n)); err != nil {
			t.Fatal(err)
		}
		pause(t, time.Second)
	}
	d.stop()
	c.Compact(t, resume-1)
	c.Restart(t)
	d.log.Reset()
	d.start()
	w.settleAll(d.path("events"), eventKind)
	d.stop()
	if log := d.log.String(); strings.Contains(log, "lists it again") || !strings.Contains(log, "resumed=true") {
		t.Errorf("the resource is listed again:\n%s", log)
	}
	events := readEvents(t, d.path("events"))
	checkExact(t, w.history, events)
	for _, g := range events {
		if g.verb() == "gap" {
			t.Errorf("gap although nothing can be missing: %+v", g.Data)
		}
	}
}

// rss is the daemon's resident memory in bytes.
func (d *daemon) rss() int64 {
	d.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		d.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
