package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// turmoil is a configuration that is changed in ways that must not show in its feed.
type turmoil struct {
	namespace, url string

	names    int  // of the watches
	split    bool // into two watches
	noise    bool // is dropped
	selector bool // selects the namespace by label instead of by name
	route    bool // another route to the same sinks, which takes nothing
	later    bool // it has been changed: watches of new names give no snapshot
}

func (c *turmoil) change(r *rand.Rand) {
	c.later = true
	switch r.IntN(5) {
	case 0:
		c.names++
	case 1:
		c.split = !c.split
	case 2:
		c.noise = !c.noise
	case 3:
		c.selector = !c.selector
	default:
		c.route = !c.route
	}
}

func (c *turmoil) text() string {
	var b strings.Builder
	b.WriteString(`
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
watches:
`)
	namespaces := fmt.Sprintf("{include: [%s]}", c.namespace)
	if c.selector {
		namespaces = fmt.Sprintf("{selector: kubernetes.io/metadata.name=%s}", c.namespace)
	}
	snapshot := "initial"
	if c.later {
		snapshot = "never"
	}
	drop := ""
	if c.noise {
		drop = `, drop: ['metadata.annotations["example.com/noise"]', metadata.generation]`
	}
	lists := []string{"configmaps, pods, deployments.apps, widgets.example.com"}
	if c.split {
		lists = []string{"configmaps, deployments.apps", "pods, widgets.example.com"}
	}
	var names []string
	for i, list := range lists {
		name := fmt.Sprintf("w%d-%d", c.names, i)
		names = append(names, name)
		fmt.Fprintf(&b, "- {name: %s, resources: [%s], namespaces: %s, snapshot: %s, history: false%s}\n", name, list, namespaces, snapshot, drop) // settleAll finds holes in the sequences, which a re-record leaves
	}
	fmt.Fprintf(&b, "routes:\n- {name: all, watches: [%s], payload: [object, oldObject], sinks: [archive, hook]}\n", strings.Join(names, ", "))
	if c.route {
		fmt.Fprintf(&b, "- {name: none, watches: [%s], when: metadata.name == \"nobody\", sinks: [archive]}\n", names[0])
	}
	fmt.Fprintf(&b, `sinks:
- name: archive
  file: {path: "./events/{resource}.jsonl"}
- name: hook
  webhook: {url: %q}
  batch: {maxEvents: %d}
  retry: {initial: 20ms, max: 1s}
`, c.url, hookBatch)
	return b.String()
}

// failingAtTimes has a receiver refuse requests now and then, and all while down is set.
func failingAtTimes(r *receiver) (down *atomic.Bool) {
	down = &atomic.Bool{}
	next := r.Config.Handler
	r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if down.Load() || rand.IntN(50) == 0 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, req)
	})
	return down
}

// TestTurmoil kills the daemon and changes its configuration, again and again, in a
// sustained stream of writes, with a receiver that fails. The feed shows each write
// once and in order, and lives of one name one after the other.
func TestTurmoil(t *testing.T) {
	kills, reloads, writes := 4, 6, 2_000
	if soak() {
		kills, reloads, writes = 20, 20, 50_000
	}
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	r := newReceiver(t)
	down := failingAtTimes(r)
	config := &turmoil{namespace: ns, url: r.URL}
	d := newDaemon(t, c.Kubeconfig, config.text())
	w := newClient(t, c, ns)
	start := func() { d.start("--reload-interval", "100ms") }

	start()
	w.settleAll(d.path("events"), kinds...) // from here on nothing is part of the first list

	writers := w.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(8, 8))
	for step := 0; kills > 0 || reloads > 0 || w.history.count() < writes; step++ {
		pause(t, time.Duration(rng.Int64N(int64(1500*time.Millisecond))))
		down.Store(rng.IntN(4) == 0)
		switch {
		case step%2 == 0 && reloads > 0:
			config.change(rng)
			d.configure(config.text())
			reloads--
		case kills > 0:
			d.kill()
			if rng.IntN(3) == 0 { // the file changes while the daemon is away
				config.change(rng)
				d.configure(config.text())
			}
			start()
			kills--
		}
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	down.Store(false)
	w.settleAll(d.path("events"), kinds...)
	eventually(t, func() bool { return len(distinct(r.all())) >= len(distinct(readEvents(t, d.path("events")))) },
		func() string { return fmt.Sprintf("the receiver has %d events", len(r.all())) })
	d.stop()
	for name, events := range map[string][]got{"file": readEvents(t, d.path("events")), "webhook": r.all()} {
		once := distinct(events)
		checkExact(t, w.history, once)
		checkPaths(t, once)
		t.Logf("%s: %d writes, %d events, %d of them again", name, w.history.count(), len(once), len(events)-len(once))
	}
}

// checkPaths reports events of one object path, of all its lives, that arrive behind
// later ones.
func checkPaths(t testing.TB, events []got) {
	t.Helper()
	var problems []string
	last := map[string]int{}
	for _, g := range events {
		version, err := strconv.Atoi(g.Data.ResourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		if version < last[g.Subject] {
			problems = append(problems, fmt.Sprintf("%s %s of version %d arrives after version %d", g.verb(), g.Subject, version, last[g.Subject]))
		}
		last[g.Subject] = version
	}
	report(t, problems)
}
