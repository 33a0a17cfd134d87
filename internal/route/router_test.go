package route

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
)

func compile(t testing.TB, specs ...Spec) *Router {
	t.Helper()
	for i := range specs {
		if specs[i].Sinks == nil {
			specs[i].Sinks = []string{specs[i].Name}
		}
	}
	r, err := Compile(specs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sinksOf are the sinks that get a change, in order.
func sinksOf(targets []record.Target) []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Sink)
	}
	return names
}

func TestRoute(t *testing.T) {
	o := newObjects(t)
	pod, other := o.from(failedPod), o.from(strings.Replace(failedPod, `"phase":"Failed"`, `"phase":"Running"`, 1))
	r := compile(t,
		Spec{Name: "all"},
		Spec{Name: "w", Watches: []string{"w"}},
		Spec{Name: "v", Watches: []string{"v"}},
		Spec{Name: "vw", Watches: []string{"v", "w"}},
		Spec{Name: "pods", Resources: []string{"pods"}},
		Spec{Name: "apps", Resources: []string{"*.apps", "services"}},
		Spec{Name: "changes", Events: []event.Type{event.Added, event.Updated}},
		Spec{Name: "deletions", Events: []event.Type{event.Deleted}},
		Spec{Name: "syncs", Events: []event.Type{event.Sync}},
		Spec{Name: "failed", When: `object.status.phase == "Failed"`},
		Spec{Name: "spec", Changed: []string{"spec"}},
		Spec{Name: "spec-syncs", Changed: []string{"spec"}, Events: []event.Type{event.Sync, event.Updated}},
		Spec{Name: "status", Changed: []string{"spec", "status.phase"}},
		Spec{Name: "failed-spec", When: `metadata.namespace == "prod"`, Changed: []string{"spec"}},
	)
	for name, tc := range map[string]struct {
		change *Change
		want   []string
	}{
		"added":   {change(event.Added, nil, pod), []string{"all", "w", "vw", "pods", "changes", "failed", "spec", "status", "failed-spec"}},
		"sync":    {change(event.Sync, nil, other), []string{"all", "w", "vw", "pods", "syncs", "spec-syncs"}},
		"updated": {change(event.Updated, other, pod), []string{"all", "w", "vw", "pods", "changes", "failed", "status"}},
		"deleted": {change(event.Deleted, pod, nil), []string{"all", "w", "vw", "pods", "deletions", "failed", "spec", "status", "failed-spec"}},
	} {
		if got := sinksOf(r.Route(nil, tc.change)); !slices.Equal(got, tc.want) {
			t.Errorf("%s goes to %q, want %q", name, got, tc.want)
		}
	}

	c := change(event.Updated, other, pod)
	c.Watches = []Hit{{Watch: "other"}, {Watch: "v"}}
	c.Resource = deployments()
	if got, want := sinksOf(r.Route(nil, c)), []string{"all", "v", "vw", "apps", "changes", "failed", "status"}; !slices.Equal(got, want) {
		t.Errorf("a deployment of other watches goes to %q, want %q", got, want)
	}
	c.Watches = nil
	if got := r.Route(nil, c); len(got) != 0 {
		t.Errorf("a change of no watch goes to %v", got)
	}
	for _, s := range r.Stats() {
		if s.Missing+s.Errors > 0 {
			t.Errorf("%+v", s)
		}
	}
}

// An object that enters or leaves a selection comes or goes for the receiver.
func TestChangedAndSelection(t *testing.T) {
	o := newObjects(t)
	pod := o.from(failedPod)
	r := compile(t, Spec{Name: "spec", Changed: []string{"spec"}})
	for s, want := range map[event.Selection]int{event.Inside: 0, event.Unknown: 0, event.Entered: 1, event.Left: 1} {
		c := change(event.Updated, pod, pod)
		c.Watches[0].Selection = s
		if got := r.Route(nil, c); len(got) != want {
			t.Errorf("selection %q: %d targets, want %d", s, len(got), want)
		}
	}
	if got := r.Stats()[0]; got.Unchanged != 2 || got.Matched != 2 {
		t.Errorf("stats %+v", got)
	}
}

func TestTargets(t *testing.T) {
	o := newObjects(t)
	c := change(event.Added, nil, o.from(barePod))
	c.Watches = []Hit{{"v", event.Entered}, {"w", event.Inside}}
	r := compile(t,
		Spec{Name: "one", Watches: []string{"v"}, Payload: []string{"oldObject"}, Sinks: []string{"a", "b", "a"}},
		Spec{Name: "two", When: "false", Payload: []string{"object", "oldObject", "patch"}, Sinks: []string{"a", "c"}},
		Spec{Name: "three", Watches: []string{"w"}, Payload: []string{"patch"}, Sinks: []string{"c", "b"}},
		Spec{Name: "four", Sinks: []string{"d"}},
	)
	before := []record.Target{{Sink: "b", Routes: "not ours"}}
	got := r.Route(before, c)
	want := []record.Target{
		before[0],
		{Sink: "a", Flags: record.OldObject.WithSelection(event.Entered), Routes: "one"},
		{Sink: "b", Flags: record.OldObject | record.Patch, Routes: "one,three"},
		{Sink: "c", Flags: record.Patch, Routes: "three"},
		{Sink: "d", Flags: record.Object, Routes: "four"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("targets %+v\nwant    %+v", got, want)
	}
	if again := r.Route(nil, c); !slices.Equal(again, want[1:]) {
		t.Errorf("the second time %+v", again)
	}
}

// A sink gets what its body reads, from each route.
func TestTargetsOfBodies(t *testing.T) {
	o := newObjects(t)
	bodies := []Reads{{Sink: "a", Parts: record.Summary | record.OldObject}}
	one := Spec{Name: "one", Payload: []string{"patch"}, Sinks: []string{"b", "a"}, Bodies: bodies}
	r := compile(t, one, Spec{Name: "two", Sinks: []string{"b", "a"}, Bodies: bodies})
	want := []record.Target{
		{Sink: "b", Flags: record.Patch | record.Object, Routes: "one,two"},
		{Sink: "a", Flags: record.Patch | record.Object | record.Summary | record.OldObject, Routes: "one,two"},
	}
	if got := r.Route(nil, change(event.Added, nil, o.from(barePod))); !slices.Equal(got, want) {
		t.Errorf("targets %+v\nwant    %+v", got, want)
	}
	same := one
	if same.Bodies = nil; same.Matching() != one.Matching() {
		t.Error("a body changes what a route takes")
	}
}

func TestMergeSelections(t *testing.T) {
	const in, en, le, un = event.Inside, event.Entered, event.Left, event.Unknown
	for pair, want := range map[[2]event.Selection]event.Selection{
		{in, in}: in, {en, en}: en, {le, le}: le, {un, un}: un,
		{in, en}: in, {in, le}: in, {in, un}: in, {en, le}: in, {en, un}: un, {le, un}: un,
	} {
		if a, b := mergeSelections(pair[0], pair[1]), mergeSelections(pair[1], pair[0]); a != want || b != want {
			t.Errorf("%q: %q and %q, want %q", pair, a, b, want)
		}
	}
}

func TestSinks(t *testing.T) {
	r := compile(t,
		Spec{Name: "one", Watches: []string{"w"}, When: "false", Events: []event.Type{event.Deleted}, Sinks: []string{"a", "b"}},
		Spec{Name: "two", Resources: []string{"deployments.apps"}, Sinks: []string{"c", "a"}},
		Spec{Name: "three", Watches: []string{"v"}, Sinks: []string{"d"}},
	)
	for _, tc := range []struct {
		watch string
		res   event.Resource
		want  []string
	}{
		{"w", pods(), []string{"a", "b"}},
		{"w", deployments(), []string{"a", "b", "c"}},
		{"v", deployments(), []string{"c", "a", "d"}},
		{"x", pods(), nil},
	} {
		if got := r.Sinks(nil, tc.watch, tc.res); !slices.Equal(got, tc.want) {
			t.Errorf("%s of %s: %q, want %q", tc.res, tc.watch, got, tc.want)
		}
	}
}

func TestCompileReportsAll(t *testing.T) {
	_, err := Compile([]Spec{
		{Name: "a", Resources: []string{"pods", "po*"}, Events: []event.Type{"gap", event.Added, "x"}, Payload: []string{"object", "diff"}, Sinks: []string{"s"}},
		{Name: "b", When: "(", Changed: []string{"spec", "spec..x"}, OnError: "retry"},
	})
	var got []string
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v is not joined", err)
	}
	for _, e := range joined.Unwrap() {
		var s *SpecError
		if !errors.As(e, &s) || s.Msg == "" || !strings.Contains(s.Error(), s.Path) {
			t.Errorf("%v is no SpecError", e)
			continue
		}
		got = append(got, fmt.Sprintf("%d %s %s", s.Index, s.Route, s.Path))
	}
	want := []string{"0 a events[0]", "0 a events[2]", "0 a payload[1]", "0 a resources[1]", "1 b changed[1]", "1 b onError", "1 b sinks", "1 b when"}
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), want) {
		t.Errorf("faults %q\nwant   %q", got, want)
	}
}

func TestNoRoutes(t *testing.T) {
	r := compile(t)
	if got := r.Route(nil, change(event.Added, nil, newObjects(t).from(barePod))); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// Many goroutines get the same answers as one.
func TestRouteConcurrently(t *testing.T) {
	o := newObjects(t)
	r := compile(t,
		Spec{Name: "failed", When: `object.status.phase == "Failed"`, Payload: []string{"patch"}},
		Spec{Name: "changed", Changed: []string{"status.conditions[*].status"}},
		Spec{Name: "type-error", When: `object.kind > 3`, OnError: OnErrorDrop},
		Spec{Name: "labels", When: `metadata.labels.exists(k, k == "app")`},
	)
	var changes []*Change
	var want [][]record.Target
	for i := range 8 {
		c := change(event.Updated, o.from(failedPod), o.from(strings.ReplaceAll(failedPod, "Failed", []string{"Failed", "Running"}[i%2])))
		c.Resource.Resource = fmt.Sprint("pods", i)
		changes = append(changes, c)
		want = append(want, compile(t, Spec{Name: "failed", When: `object.status.phase == "Failed"`, Payload: []string{"patch"}}, Spec{Name: "labels", When: `metadata.labels.exists(k, k == "app")`}).Route(nil, c))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var got []record.Target
			for i := range 400 {
				got = r.Route(got[:0], changes[i%8])
				if !reflect.DeepEqual(got, want[i%8]) {
					t.Errorf("%+v, want %+v", got, want[i%8])
					return
				}
				r.Stats()
			}
		})
	}
	wg.Wait()
	if s := r.Stats()[2]; s.Errors != 1600 || s.Matched != 0 {
		t.Errorf("stats %+v", s)
	}
}
