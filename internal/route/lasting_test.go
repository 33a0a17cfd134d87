package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestFor has a route with a for judge states, and take no change.
func TestFor(t *testing.T) {
	o := newObjects(t)
	pod, other := o.from(failedPod), o.from(strings.Replace(failedPod, `"phase":"Failed"`, `"phase":"Running"`, 1))
	r := compile(t,
		Spec{Name: "all"},
		Spec{Name: "lasts", When: `object.status.phase == "Failed"`, For: time.Minute},
		Spec{Name: "elsewhere", Watches: []string{"v"}, When: "true", For: time.Minute},
	)
	for name, tc := range map[string]struct {
		change *Change
		want   bool
	}{
		"matches":         {change(event.Updated, other, pod), true},
		"matches no more": {change(event.Updated, pod, other), false},
		"is deleted":      {change(event.Deleted, pod, nil), false},
	} {
		targets := r.Route(nil, tc.change)
		if got := sinksOf(targets); !slices.Equal(got, []string{"all"}) {
			t.Errorf("%s: it goes to %q", name, got)
		}
		if want := []MatchState{{"lasts", tc.want}}; !slices.Equal(tc.change.Matches, want) {
			t.Errorf("%s: verdicts %v, want %v", name, tc.change.Matches, want)
		}
	}
	left := change(event.Updated, pod, pod)
	left.Watches[0].Selection = event.Left
	r.Judge(left)
	if want := []MatchState{{"lasts", false}}; !slices.Equal(left.Matches, want) {
		t.Errorf("an object that left: verdicts %v, want %v", left.Matches, want)
	}
}

// TestForEvent has the event of a match taken by its own routes, and by no other.
func TestForEvent(t *testing.T) {
	pod := newObjects(t).from(failedPod)
	r := compile(t,
		Spec{Name: "all"},
		Spec{Name: "lasts", When: `object.status.phase == "Failed"`, For: time.Minute},
		Spec{Name: "another", When: "true", For: time.Minute},
		Spec{Name: "changed", When: `object.status.phase == "Running"`, For: time.Minute},
	)
	c := change(event.Updated, nil, pod)
	c.Lasted = []string{"lasts", "changed"}
	if got := sinksOf(r.Route(nil, c)); !slices.Equal(got, []string{"lasts"}) || c.Matches != nil {
		t.Errorf("it goes to %q, verdicts %v", got, c.Matches)
	}
	want := []Verdict{OtherEvents, Taken, Lasting, Filtered}
	for i, d := range r.Decisions(c) {
		if d.Verdict != want[i] {
			t.Errorf("%s: %s, want %s", d.Route, d.Verdict, want[i])
		}
	}
}

func TestTimers(t *testing.T) {
	specs := []Spec{
		{Name: "all"},
		{Name: "slow", Throttle: time.Minute, Payload: []string{"patch"}, Sinks: []string{"a", "b"}},
		{Name: "lasts", For: time.Hour, When: "true"},
	}
	timers := compile(t, specs...).Timers()
	if len(timers) != 2 || timers[0].Throttle != time.Minute || timers[1].For != time.Hour {
		t.Fatalf("timers %+v", timers)
	}
	want := []record.Target{{Sink: "a", Flags: record.Patch, Routes: "slow"}, {Sink: "b", Flags: record.Patch, Routes: "slow"}}
	if !slices.Equal(timers[0].Targets, want) {
		t.Errorf("targets %+v, want %+v", timers[0].Targets, want)
	}
	longer := specs[2]
	if longer.For = 2 * time.Hour; longer.Matching() != specs[2].Matching() {
		t.Error("another time is another match")
	}
	if longer.When = "false"; longer.Matching() == specs[2].Matching() {
		t.Error("another condition is the same match")
	}
}

func TestForIsAboutStates(t *testing.T) {
	for want, s := range map[string]Spec{
		"events":  {When: "true", Events: []event.Type{event.Added}},
		"changed": {When: "true", Changed: []string{"spec"}},
		"for":     {},
		"when":    {When: "oldObject == null"},
		"When":    {When: `event.type == "added" || metadata.name == "a"`},
	} {
		s.Name, s.For, s.Sinks = "r", time.Minute, []string{"s"}
		_, err := Compile([]Spec{s})
		var fault *SpecError
		if !errors.As(err, &fault) || fault.Path != strings.ToLower(want) {
			t.Errorf("%s: %s", want, fmt.Sprint(err))
		}
	}
}
