package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

const timesConfig = `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: ""}
watches:
- {name: all, resources: [configmaps, pods], namespaces: {include: [NS]}}
routes:
- {name: everything, sinks: [archive]}
- {name: calm, resources: [configmaps], throttle: {per: PER}, payload: [object, summary], sinks: [calm]}
- {name: pending, resources: [pods], when: object.status.phase == "Pending", for: 15s, sinks: [pending]}
sinks:
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
- {name: calm, file: {path: ./calm.jsonl}}
- {name: pending, file: {path: ./pending.jsonl}}
`

// TestRoutesOverTime kills a daemon that holds events and matches, and changes the period
// of a throttle: the last state is delivered, and a match that has lasted, once.
func TestRoutesOverTime(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	config := func(per string) string { return strings.NewReplacer("NS", ns, "PER", per).Replace(timesConfig) }
	d := newDaemon(t, c.Kubeconfig, config("1h"))
	d.start()
	w := newClient(t, c, ns)
	ctx := t.Context()
	w.settle(d.path("events"), kinds[0], kinds[1])
	began := time.Now()
	waits, err := w.create(ctx, kinds[1], "waits") // nothing schedules it
	if err != nil {
		t.Fatal(err)
	}
	gone, err := w.create(ctx, kinds[1], "gone")
	if err != nil {
		t.Fatal(err)
	}
	u, err := w.create(ctx, kinds[0], "busy")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if u, err = w.update(ctx, kinds[0], u); err != nil {
			t.Fatal(err)
		}
	}
	w.settle(d.path("events"), kinds[0], kinds[1])
	d.kill()
	if err := w.remove(ctx, kinds[1], gone); err != nil {
		t.Fatal(err)
	}
	d.start()
	for range 3 {
		if u, err = w.update(ctx, kinds[0], u); err != nil {
			t.Fatal(err)
		}
	}
	w.settle(d.path("events"), kinds[0], kinds[1])
	if held := readOnce(t, d, "calm.jsonl"); len(ofBusy(held)) != 1 {
		t.Errorf("the throttle let through %v", ofBusy(held))
	}
	d.configure(config("1s"))  // due at once
	pending := func() []full { // without the pods that the test waits by
		return slices.DeleteFunc(readOnce(t, d, "pending.jsonl"), func(e full) bool { return e.Data.Name != "waits" && e.Data.Name != "gone" })
	}
	eventually(t, func() bool { return len(ofBusy(readOnce(t, d, "calm.jsonl"))) == 2 && len(pending()) > 0 }, func() string {
		return fmt.Sprint(ofBusy(readOnce(t, d, "calm.jsonl")), summary(pending()))
	})
	d.stop()
	last := ofBusy(readOnce(t, d, "calm.jsonl"))[1]
	if want := fmt.Sprintf("updated %s replaces 7", u.GetResourceVersion()); last != want {
		t.Errorf("the throttled sink ends with %q, want %q", last, want)
	}
	lasted := pending()
	if len(lasted) != 1 || lasted[0].Data.UID != string(waits.GetUID()) {
		t.Fatalf("pending are %q", summary(lasted))
	}
	if since := lasted[0].Data.For.Since; since.Before(began.Add(-time.Second)) || lasted[0].Time.Sub(since) < 15*time.Second {
		t.Errorf("pending since %s at %s; the pod was made at %s", since, lasted[0].Time, began)
	}
}

const heldConfig = `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: ""}
watches:
- {name: some, resources: [configmaps], namespaces: {selector: env=prod-NS}}
- {name: all, resources: [configmaps], namespaces: {include: [NS, NS-flips]}}
routes:
- {name: everything, watches: [all], sinks: [archive]}
- {name: lasting, watches: [some], when: metadata.name == "flips", for: 10s, sinks: [lasting]}
ROUTE
sinks:
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
- {name: some, file: {path: ./some.jsonl}}
- {name: lasting, file: {path: ./lasting.jsonl}}
`

// TestHeldOverEdits holds events of a throttle while its route is renamed, taken out and put
// back, and while their objects are deleted and leave with their namespace: each is delivered
// once, in order, and a match begins again with the namespace.
func TestHeldOverEdits(t *testing.T) {
	t.Parallel()
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	config := func(route string) string {
		if route != "" {
			route = fmt.Sprintf("- {name: %s, watches: [some], throttle: {per: 1h}, sinks: [some]}", route)
		}
		return strings.NewReplacer("NS", ns, "ROUTE", route).Replace(heldConfig)
	}
	x := newCast(t, c, config("calm"), ns)
	prod, place := "prod-"+ns, ns+"-flips"
	x.makeNamespace(place, prod)
	x.put(place, "first", "n", "0")
	x.d.start()
	x.expect("sync first") // the selection is known
	x.drop(place, "first")
	x.expect("deleted first")
	reload := func(route string) { t.Helper(); x.d.reload(config(route)) }
	revision := 0
	put := func(name string) {
		t.Helper()
		revision++
		x.put(place, name, "n", fmt.Sprint(revision))
	}

	put("one")
	x.expect("added one")
	put("one")
	put("one")
	x.nothing()
	reload("renamed")
	x.expect("updated one replaces 1")
	put("one")
	x.expect("updated one") // another route, another period
	put("one")
	x.nothing()
	reload("")
	x.expect("updated one")
	put("one")
	reload("renamed")
	x.nothing()
	put("one")
	x.expect("updated one")
	put("one")
	x.nothing()
	x.drop(place, "one")
	x.expect("updated one", "deleted one")

	put("flips")
	x.expect("added flips")
	put("flips")
	put("flips")
	x.nothing()
	x.makeNamespace(place, "dev")
	x.expect("updated flips replaces 1", "updated flips left")
	put("flips")
	x.nothing()
	back := time.Now()
	x.makeNamespace(place, prod)
	x.expect("updated flips entered")
	put("flips")
	x.nothing()
	x.d.kill()
	x.killed = true
	x.makeNamespace(place, "dev")
	x.d.start()
	x.expect("updated flips", "updated flips left")
	x.makeNamespace(place, prod)
	x.expect("updated flips entered")
	x.nothing()

	var since time.Time
	eventually(t, func() bool {
		for _, e := range readOnce(t, x.d, "lasting.jsonl") {
			since = e.Data.For.Since
			if e.Time.After(back) && since.Before(back.Add(-time.Second)) {
				t.Fatalf("a match is reported since %s, but the object was away until %s", since, back)
			}
		}
		return since.After(back)
	}, func() string { return fmt.Sprintf("no match is reported since %s, the last one since %s", back, since) })
	x.d.stop()
	x.expect()
	if log := x.d.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("errors in the log:\n%s", log)
	}
}

// readOnce reads the files of one sink without what a kill made it deliver again.
func readOnce(t testing.TB, d *daemon, pattern string) []full {
	t.Helper()
	seen := map[string]bool{}
	return slices.DeleteFunc(readFull(t, d, pattern), func(e full) bool {
		again := seen[e.ID]
		seen[e.ID] = true
		return again
	})
}

// ofBusy are the events of the object that is updated, as lines.
func ofBusy(events []full) (lines []string) {
	for i := range events {
		if e := &events[i]; e.Data.Name == "busy" {
			line := e.Type[strings.LastIndexByte(e.Type, '.')+1:] + " " + e.Data.ResourceVersion
			if e.Data.Coalesced > 0 {
				line += fmt.Sprintf(" replaces %d", e.Data.Coalesced)
			}
			lines = append(lines, line)
		}
	}
	return lines
}
