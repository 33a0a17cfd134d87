package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// lateSinks is the feed of [feedConfig] with sinks that start from the log's
// beginning.
func lateSinks(namespace string, names ...string) string {
	all := strings.Join(append([]string{"archive"}, names...), ", ")
	config := strings.Replace(feedConfig(namespace), "sinks: [archive]", "sinks: ["+all+"]", 1)
	for _, name := range names {
		config += fmt.Sprintf("- {name: %s, startFrom: earliest, file: {path: './%s/all.jsonl'}}\n", name, name)
	}
	return config
}

// TestSinkFromStart adds sinks with `startFrom: earliest` in a sustained stream of writes: one
// to a daemon that runs, one to a daemon that is killed over it and started again.
// They end up with what the sink has that was there from the beginning, in the log's
// order and byte for byte.
func TestSinkFromStart(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	w := newClient(t, c, ns)
	d.start()
	taps := []*tap{tapFiles("archive", d.path("events/*.jsonl"))}
	awaitAll(t, taps, w.mark()) // from here on nothing is part of the first list
	writers := w.sustain(2, 20, 200*time.Millisecond)
	pause(t, time.Second)

	for i, names := range [][]string{{"late"}, {"late", "later"}} {
		d.configure(lateSinks(ns, names...))
		name := names[len(names)-1]
		if i == 1 {
			pause(t, 600*time.Millisecond) // about when the file is looked at
			d.kill()
			d.start()
		}
		taps = append(taps, tapFiles(name, d.path(name+"/all.jsonl")))
		awaitAll(t, taps, w.mark())
		if seen := taps[1].seen; i == 0 && len(distinct(seen)) != len(seen) {
			t.Errorf("%s was given events twice", name)
		}
	}
	if err := writers(); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, taps, w.history.finals())
	d.stop()

	checkAlike(t, taps, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
	for _, late := range taps[1:] {
		sorted := slices.IsSortedFunc(distinct(late.seen), func(a, b got) int { return strings.Compare(a.Sequence, b.Sequence) })
		if !sorted {
			t.Errorf("%s has the events in another order than the log", late.name)
		}
	}
}
