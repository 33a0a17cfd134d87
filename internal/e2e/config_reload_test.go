package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// reloads drives one daemon through changes of its configuration.
type reloads struct {
	*daemon
	admin     string
	namespace string
	round     int
	before    samples // metrics before the step

	extraSink, extraWatch bool
	when                  int // which expression the extra sink's route has
	wait                  int // the archive's maxWait in ms; another one replaces the sink
}

// text is the configuration as it is to be.
func (r *reloads) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: %q}
watches:
- name: all
  resources: [configmaps, pods, deployments.apps, widgets.example.com]
  namespaces: {include: [%s]}
`, r.admin, r.namespace)
	if r.extraWatch {
		fmt.Fprintf(&b, "- {name: extra, resources: [secrets], namespaces: {include: [%s]}}\n", r.namespace)
	}
	b.WriteString("routes:\n- {name: all, watches: [all], payload: [object, oldObject], sinks: [archive]}\n")
	if r.extraSink {
		fmt.Fprintf(&b, "- {name: some, watches: [all], when: 'metadata.name != \"%d\"', payload: [patch], sinks: [extra]}\n", r.when)
	}
	fmt.Fprintf(&b, "sinks:\n- {name: archive, file: {path: './events/{resource}.jsonl'}, batch: {maxWait: %dms}}\n", r.wait)
	if r.extraSink {
		b.WriteString("- {name: extra, file: {path: './extra/{resource}.jsonl'}}\n")
	}
	return b.String()
}

// outcomes counts reloads of one result since the step began.
func (r *reloads) outcomes(now samples, result string) float64 {
	series := fmt.Sprintf("watcherd_config_reloads_total{result=%q}", result)
	return now[series] - r.before[series]
}

// expect waits for a reload with that result, after which the file is what runs,
// or is not.
func (r *reloads) expect(result string, inForce float64) samples {
	r.t.Helper()
	var now samples
	eventually(r.t, func() bool {
		now = scrape(r.t, r.admin)
		return r.outcomes(now, result) > 0 && now["watcherd_config_last_reload_successful"] == inForce
	}, func() string { return fmt.Sprintf("no reload with result %s:\n%s", result, r.text()) })
	return now
}

func (r *reloads) applied() {
	r.t.Helper()
	now := r.expect("success", 1)
	if now.label("watcherd_config_hash") == "" {
		r.t.Error("the metrics don't tell the configuration's hash")
	}
}

// refused expects that nothing of what runs has changed.
func (r *reloads) refused(result string) {
	r.t.Helper()
	now := r.expect(result, 0)
	if a, b := r.before.label("watcherd_config_hash"), now.label("watcherd_config_hash"); a != b {
		r.t.Errorf("configuration %s runs after a refusal, it was %s", b, a)
	}
	if n := r.outcomes(now, "success"); n != 0 {
		r.t.Errorf("%v reloads succeeded", n)
	}
}

// mended puts the file back as it was, which is no reload.
func (r *reloads) mended() {
	r.t.Helper()
	r.configure(r.text())
	eventually(r.t, func() bool { return scrape(r.t, r.admin)["watcherd_config_last_reload_successful"] == 1 },
		func() string { return "the file is mended and nobody noticed" })
}

// swap replaces the file as Kubernetes does a mounted ConfigMap's: it is a link
// into a folder that is a link itself, which is renamed over.
func (r *reloads) swap() {
	r.t.Helper()
	folder := fmt.Sprintf("..%d", r.round)
	r.must(os.Mkdir(r.path(folder), 0o700))
	r.must(os.WriteFile(r.path(folder+"/watcherd.yaml"), []byte(r.text()), 0o600))
	r.must(os.Symlink(folder, r.path("..data_tmp")))
	r.must(os.Rename(r.path("..data_tmp"), r.path("..data")))
	if target, err := os.Readlink(r.path("watcherd.yaml")); err != nil || target != "..data/watcherd.yaml" {
		r.must(os.Symlink("..data/watcherd.yaml", r.path("watcherd.yaml.link")))
		r.must(os.Rename(r.path("watcherd.yaml.link"), r.path("watcherd.yaml")))
	}
}

// writeHalves writes the file in place, in two halves.
func (r *reloads) writeHalves() {
	r.t.Helper()
	text := r.text()
	f, err := os.OpenFile(r.path("watcherd.yaml"), os.O_WRONLY|os.O_TRUNC, 0o600)
	r.must(err)
	defer f.Close()
	_, err = f.WriteString(text[:len(text)/2])
	r.must(err)
	pause(r.t, time.Duration(r.round%3)*300*time.Millisecond) // shorter and longer than it waits
	_, err = f.WriteString(text[len(text)/2:])
	r.must(err)
}

func (r *reloads) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// steps are one cycle, which ends with the configuration that it began with but
// for the sink that it replaces.
func (r *reloads) steps() []func() {
	return []func(){
		func() { r.extraSink = true; r.configure(r.text()); r.applied() },
		func() {
			r.configure(r.text() + fmt.Sprintf("unknown%d: true\n", r.round))
			r.refused("invalid")
			r.mended()
		},
		func() { r.when++; r.configure(r.text()); r.applied() },
		func() { r.when++; r.writeHalves(); r.applied() },
		func() { r.when++; r.swap(); r.applied() },
		func() { r.extraWatch = true; r.swap(); r.applied() }, // the file's own link stays
		func() {
			r.must(os.Remove(r.path("watcherd.yaml")))
			r.refused("unreadable")
			r.mended()
		},
		func() { r.wait++; r.configure(r.text()); r.applied() },
		func() { r.extraSink = false; r.configure(r.text()); r.applied() },
		func() {
			r.configure(strings.Replace(r.text(), "[archive]", fmt.Sprintf("[archive%d]", r.round), 1))
			r.refused("invalid")
			r.mended()
		},
		func() { r.extraWatch = false; r.configure(r.text()); r.applied() },
		func() { r.signal(syscall.SIGHUP); r.applied() },
	}
}

// TestReloads changes the configuration again and again in a stream of writes, in
// every way in which files change, for good and for bad. No event is lost or
// doubled, what did not change keeps its connections, a bad file changes nothing,
// and nothing is left behind.
func TestReloads(t *testing.T) {
	cycles := 2 // 24 reloads
	if soak() {
		cycles = 17 // 204
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	r := &reloads{admin: testkit.Address(t), namespace: ns, wait: 20}
	r.daemon = newDaemon(t, c.Kubeconfig, r.text())
	r.start("--reload-interval", "100ms")
	w := newClient(t, c, ns)
	w.settle(r.path("events"), kinds...) // from here on nothing is part of the first list
	began := time.Now()
	requests := map[string]testcluster.Requests{}
	for _, k := range kinds[1:] { // the API server reads configmaps itself
		requests[k.kind] = c.RequestCounts(t, k.gvr)
	}

	var stop atomic.Bool
	var group errgroup.Group
	for i := range 2 {
		group.Go(func() error {
			for round := 0; !stop.Load(); round++ {
				if err := w.churn(t.Context(), fmt.Sprintf("w%d-%d", i, round), uint64(i*100000+round), 20); err != nil {
					return err
				}
				pause(t, 100*time.Millisecond)
			}
			return nil
		})
	}
	var base samples
	for cycle := range cycles {
		for _, step := range r.steps() {
			r.round++
			r.before = scrape(t, r.admin)
			step()
		}
		if cycle == 0 {
			base = scrape(t, r.admin)
		}
	}
	stop.Store(true)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	w.settle(r.path("events"), kinds...)
	drained(t, r.admin)
	r.returns(base)
	timeouts := int(time.Since(began) / (5 * time.Minute)) // a watch is ended by the server after 5 to 10 minutes
	for _, k := range kinds[1:] {
		before, after := requests[k.kind], c.RequestCounts(t, k.gvr)
		// Lists are not compared: the server's own controller makes some in the
		// namespaces of other tests, which it empties.
		others := before.OpenWatch - 1 // of the server itself; each may be as old as it is, and be asked for again
		if after.Watch > before.Watch+timeouts+others || after.OpenWatch != before.OpenWatch {
			t.Errorf("%s: the server was asked %+v before and %+v after", k.kind, before, after)
		}
	}
	r.stop()

	events := readEvents(t, r.path("events"))
	checkExact(t, w.history, events)
	extra := readEvents(t, r.path("extra"))
	report(t, checkIDs(extra))
	if len(extra) == 0 {
		t.Error("the sink that came and went got nothing")
	}
	t.Logf("%d reloads, %d writes, %d events, %d to the sink that came and went", r.round, w.history.count(), len(events), len(extra))
}

// returns expects goroutines, files and memory to be about what they were.
func (r *reloads) returns(base samples) {
	r.t.Helper()
	var now samples
	within := func(series string, factor, slack float64) bool { return now[series] <= base[series]*factor+slack }
	eventually(r.t, func() bool {
		now = scrape(r.t, r.admin)
		return within("go_goroutines", 1, 5) && within("process_open_fds", 1, 5) && within("go_memory_classes_heap_objects_bytes", 1.5, 32<<20)
	}, func() string {
		return fmt.Sprintf("goroutines %v → %v, files %v → %v, heap %v → %v",
			base["go_goroutines"], now["go_goroutines"], base["process_open_fds"], now["process_open_fds"],
			base["go_memory_classes_heap_objects_bytes"], now["go_memory_classes_heap_objects_bytes"])
	})
	r.t.Logf("goroutines %v → %v, files %v → %v, heap %.1f → %.1f MB", base["go_goroutines"], now["go_goroutines"],
		base["process_open_fds"], now["process_open_fds"], base["go_memory_classes_heap_objects_bytes"]/1e6, now["go_memory_classes_heap_objects_bytes"]/1e6)
}
