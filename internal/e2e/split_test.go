package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// TestFeeds has two feeds share the resources that one process watches, too, and kills each of them in a
// stream of random writes: what the two deliver together is what the one delivers, event by event.
func TestFeeds(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	w := newClient(t, c, ns)
	const all = "[configmaps, pods, deployments.apps, widgets.example.com]"
	whole := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	halves := map[string][]kind{"core": kinds[:2], "groups": kinds[2:]}
	feeds := map[string]*daemon{}
	for name, resources := range map[string]string{"core": "[configmaps, pods]", "groups": "[deployments.apps, widgets.example.com]"} {
		config := strings.Replace(feedConfig(ns), all, resources, 1)
		feeds[name] = newDaemon(t, c.Kubeconfig, config+"feed: {name: "+name+"}\n")
	}
	// What exists is listed by all three: nothing is written until each has it.
	for _, k := range kinds {
		if _, err := w.create(t.Context(), k, "first"); err != nil {
			t.Fatal(err)
		}
	}
	listed := func(d *daemon, objects int) {
		d.start()
		count := func() int { return len(readEvents(t, d.path("events"))) }
		eventually(t, func() bool { return count() == objects }, func() string { return fmt.Sprintf("%d of %d objects listed", count(), objects) })
	}
	listed(whole, len(kinds))
	for name, d := range feeds {
		listed(d, len(halves[name]))
	}

	writers := w.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(11, 11))
	for range 3 {
		for _, d := range feeds {
			// A life counts once it has delivered something; then it ends at any moment.
			before := len(readEvents(t, d.path("events")))
			eventually(t, func() bool { return len(readEvents(t, d.path("events"))) > before }, func() string { return "no event is delivered" })
			pause(t, time.Duration(rng.Int64N(int64(time.Second))))
			d.kill()
			pause(t, time.Duration(rng.Int64N(int64(300*time.Millisecond))))
			d.start()
		}
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	var union []got
	w.settleAll(whole.path("events"), kinds...)
	for name, d := range feeds {
		w.settleAll(d.path("events"), halves[name]...)
		d.stop()
		events := distinct(readEvents(t, d.path("events")))
		for _, g := range events {
			if want := "/clusters/e2e/feeds/" + name; g.Source != want {
				t.Fatalf("source %s of the feed %s, want %s", g.Source, name, want)
			}
		}
		union = append(union, events...)
	}
	eventually(t, func() bool { return len(readEvents(t, whole.path("events"))) >= len(union) },
		func() string { return fmt.Sprintf("the feeds have %d events, the one process less", len(union)) })
	whole.stop()
	one := distinct(readEvents(t, whole.path("events")))
	report(t, differences(one, union))
	checkExact(t, w.history, one)
	t.Logf("%d writes, %d events of one process, %d of two feeds", w.history.count(), len(one), len(union))
}

// TestFeedsWithStandby has two feeds with two replicas each, whose journals are on the same NATS servers, and kills their leaders in a
// stream of random writes: nothing is missing in what the two deliver together, and nothing of one is in the other's.
func TestFeedsWithStandby(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	w := newClient(t, c, ns)
	nodes := natstest.StartCluster(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("the key of the journals"), 0o600); err != nil {
		t.Fatal(err)
	}
	type feed struct {
		*pair
		kinds  []kind
		leader *daemon
	}
	var feeds []*feed
	for name, kinds := range map[string][]kind{"core": kinds[:2], "groups": kinds[2:]} {
		resources := map[string]string{"core": "[configmaps, pods]", "groups": "[deployments.apps, widgets.example.com]"}[name]
		f := &feed{pair: &pair{t: t, nodes: nodes, events: filepath.Join(t.TempDir(), "events"), client: w}, kinds: kinds}
		config := strings.Replace(feedConfig(ns), "[configmaps, pods, deployments.apps, widgets.example.com]", resources, 1)
		config = strings.Replace(config, "./events/", f.events+"/", 1)
		config = journaled(config, nodes, "FEED-"+name, key) + "feed: {name: " + name + "}\n"
		for i := range f.daemons {
			f.daemons[i] = newDaemon(t, c.Kubeconfig, config)
		}
		f.daemons[0].start()
		f.leader, _ = f.lead([2]int{})
		f.daemons[1].start()
		w.settleAll(f.events, kinds...)
		feeds = append(feeds, f)
	}
	writers := w.sustain(2, 60, 0)
	rng := rand.New(rand.NewPCG(12, 12))
	const ends = 2
	for range ends {
		for _, f := range feeds {
			pause(t, time.Duration(rng.Int64N(int64(time.Second))))
			before := f.terms()
			f.leader.kill()
			next, old := f.lead(before)
			old.start()
			f.leader = next
		}
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	var union []got
	for _, f := range feeds {
		w.settleAll(f.events, f.kinds...)
		events := readEvents(t, f.events)
		once := distinct(events)
		for _, g := range once {
			if !slices.ContainsFunc(f.kinds, func(k kind) bool { return g.Data.Object == nil || g.Data.Object.Kind == k.kind }) {
				t.Fatalf("%s is in the feed of %v", g.Subject, f.kinds)
			}
		}
		union = append(union, once...)
		t.Logf("%d events, %d of them again", len(once), len(events)-len(once))
	}
	checkExact(t, w.history, union)
}

// differences compares two feeds, object path by object path: the ids and types in their order.
func differences(one, other []got) (problems []string) {
	bySubject := func(events []got) map[string]string {
		m := map[string]string{}
		for _, g := range events {
			m[g.Subject] += g.Type + " " + g.ID + " " + g.Data.ResourceVersion + "\n"
		}
		return m
	}
	want, have := bySubject(one), bySubject(other)
	for subject, events := range want {
		if have[subject] != events {
			problems = append(problems, fmt.Sprintf("%s: one feed has\n%sthe other\n%s", subject, events, have[subject]))
		}
		delete(have, subject)
	}
	for subject, events := range have {
		problems = append(problems, fmt.Sprintf("%s: only the other feed has\n%s", subject, events))
	}
	return problems
}
