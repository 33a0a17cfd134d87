package pipeline

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
)

// TestRouteSets numbers sets of routes over restarts, and over the loss of one to damage.
func TestRouteSets(t *testing.T) {
	r := newRig(t, t.TempDir())
	load := func() *routeSets {
		t.Helper()
		s, err := loadRouteSets(r.Store)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	numbers := map[string]uint32{}
	number := func(s *routeSets, routes string) uint32 {
		t.Helper()
		n, err := s.Number(routes)
		if err != nil || n == 0 || n > record.MaxRouteSet {
			t.Fatalf("%s: %d, %v", routes, n, err)
		}
		return n
	}
	first := load()
	for _, routes := range []string{"a", "a,b", "b"} {
		numbers[routes] = number(first, routes)
	}
	b := r.Store.NewBatch()
	defer b.Discard()
	b.DeleteMeta(routeSetKey(numbers["b"]))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	second := load()
	flags := record.Patch.WithRouteSet(numbers["b"])
	payload, err := record.Append(nil, &record.Record{})
	if err != nil {
		t.Fatal(err)
	}
	in := &record.Inflater{RouteSets: second}
	if _, err := in.Event(1, flags, payload, "sink"); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("an event by routes that are not known: %v", err)
	}
	for routes, n := range numbers {
		if got := number(second, routes); got != n {
			t.Errorf("%s was %d and is %d", routes, n, got)
		}
		if got, ok := second.Routes(n); got != routes || !ok {
			t.Errorf("%d is %q, %t; want %q", n, got, ok, routes)
		}
	}
	if flags.RouteSet() != numbers["b"] || flags.WithRouteSet(0) != record.Patch {
		t.Errorf("flags %b of the set %b", flags, numbers["b"])
	}
	if _, err := in.Event(1, flags, payload, "sink"); err != nil {
		t.Error(err)
	}
}

// TestFilledThenHidden has a route hide more after the sink that it newly leads to was given the log:
// what waits for the sink is hidden, too.
func TestFilledThenHidden(t *testing.T) {
	l := lifeOn(t, t.TempDir(), store.Options{}, allServed)
	all, second := leadTo("all", "", "b"), leadTo("second", "", "a")
	l.apply([]route.Spec{all})
	l.put("v", "1", "blue")
	l.apply([]route.Spec{all, second}, func(s *plan.Sink) { s.StartFrom = plan.StartEarliest })
	shown := func() string { return string(l.given("a")[0].Object) }
	if !strings.Contains(shown(), "blue") {
		t.Errorf("nothing to hide: %s", shown())
	}
	second.Drop = []string{"metadata.labels"}
	l.apply([]route.Spec{all, second}, func(s *plan.Sink) { s.StartFrom = plan.StartEarliest })
	if strings.Contains(shown(), "blue") {
		t.Errorf("it is not hidden: %s", shown())
	}
}
