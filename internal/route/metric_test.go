package route

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
)

// seriesOf are the counts of a router's only metric by the values of its labels.
func seriesOf(t *testing.T, r *Router) map[string]uint64 {
	t.Helper()
	all := r.Metrics()
	if len(all) != 1 {
		t.Fatalf("%d metrics", len(all))
	}
	counts := map[string]uint64{}
	for _, s := range all[0].Series {
		counts[strings.Join(s.Values, ",")] += s.Count
	}
	return counts
}

func TestMetric(t *testing.T) {
	o := newObjects(t)
	failed, bare := o.from(failedPod), o.from(barePod)
	spec := Spec{Name: "r", Events: []event.Type{event.Added, event.Updated}, Metric: &Metric{Name: "m", MaxSeries: 10, Labels: map[string]string{
		"ns": "metadata.namespace", "generation": "metadata.generation", "first": "oldObject == null", "phase": "object.status.phase",
	}}}
	r := compile(t, spec)
	for _, c := range []*Change{
		change(event.Added, nil, failed), change(event.Updated, failed, failed), change(event.Added, nil, failed),
		change(event.Added, nil, bare), change(event.Deleted, failed, nil),
	} {
		r.Route(nil, c)
	}
	snapshot := change(event.Added, nil, failed)
	snapshot.Uncounted = true
	r.Route(nil, snapshot)
	// The labels in order: first, generation, ns, phase.
	want := map[string]uint64{"true,3,prod,Failed": 2, "false,3,prod,Failed": 1, "true,0,,": 1}
	if got := seriesOf(t, r); !maps.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}

	// Those of a route that stays as it is, and of its metric, continue in another router.
	unchanged := compile(t, spec)
	unchanged.Continue(r)
	if got, want := unchanged.Stats()[0].Matched, r.Stats()[0].Matched; got != want || want == 0 {
		t.Errorf("%d matched, %d before", got, want)
	}

	// The counts continue in another router, unless the labels are others.
	next := spec
	next.When, next.Name = "true", "renamed"
	other := compile(t, next)
	other.Continue(r)
	other.Route(nil, change(event.Added, nil, bare))
	if want["true,0,,"]++; !maps.Equal(seriesOf(t, other), want) {
		t.Errorf("counts %v, want %v", seriesOf(t, other), want)
	}
	next.Metric = &Metric{Name: "m", MaxSeries: 10}
	unlabelled := compile(t, next)
	unlabelled.Continue(other)
	unlabelled.Route(nil, change(event.Added, nil, bare))
	if got := seriesOf(t, unlabelled); !maps.Equal(got, map[string]uint64{"": 1}) {
		t.Errorf("counts %v", got)
	}
}

// Every change is counted once, also those that the limit of series leaves no room for.
func TestMetricLimit(t *testing.T) {
	o := newObjects(t)
	random := rand.New(rand.NewPCG(3, 4))
	for limit := range 4 {
		limit++
		r := compile(t, Spec{Name: "r", Metric: &Metric{Name: "m", MaxSeries: limit, Labels: map[string]string{"name": "metadata.name", "length": "metadata.name.size()"}}})
		var reported []error
		r.OnError(func(_ string, err error) { reported = append(reported, err) })
		want := map[string]uint64{}
		for range 200 {
			name := fmt.Sprint("n", random.IntN(6))
			if key := "2," + name; want[key] > 0 || len(want) < limit {
				want[key]++
			} else {
				want[Overflow+","+Overflow]++
			}
			r.Route(nil, change(event.Added, nil, o.from(`{"metadata":{"name":"`+name+`"}}`)))
		}
		if got := seriesOf(t, r); !maps.Equal(got, want) {
			t.Errorf("limit %d: counts %v, want %v", limit, got, want)
		}
		if len(reported) != 1 || !errors.Is(reported[0], ErrSeries) {
			t.Errorf("limit %d: reported %v", limit, reported)
		}
	}
}

// Labels that no change has a value for are reported, once a change is counted.
func TestMetricEmptyLabels(t *testing.T) {
	o := newObjects(t)
	r := compile(t, Spec{Name: "r", Metric: &Metric{Name: "m", MaxSeries: 9, Labels: map[string]string{
		"name": "metadata.name", "team": "metadata.labels.team", "rare": "object.rare",
	}}})
	for i, want := range [][]string{nil, {"rare", "team"}, {"team"}, {"team"}} {
		if got := r.Stats()[0].EmptyLabels; !slices.Equal(got, want) {
			t.Errorf("after %d changes %q are empty, want %q", i, got, want)
		}
		text := `{"metadata":{"name":"a"}}`
		if i == 1 {
			text = `{"metadata":{"name":"a"},"rare":true}`
		}
		r.Route(nil, change(event.Added, nil, o.from(text)))
	}
}

func TestMetricFaults(t *testing.T) {
	_, err := Compile([]Spec{{Name: "r", Sinks: []string{"s"}, Metric: &Metric{Name: "m", MaxSeries: 1, Labels: map[string]string{
		"a": "metadata.nmae", "b": "metadata.labels", "c": "[1]", "d": `"a".replace("a", "b")`, "fine": "object.x",
	}}}})
	joined, _ := err.(interface{ Unwrap() []error })
	if joined == nil {
		t.Fatalf("error %v", err)
	}
	var got []string
	for _, e := range joined.Unwrap() {
		s, _ := errors.AsType[*SpecError](e)
		got = append(got, fmt.Sprintf("%s:%d:%d", s.Path, s.Line, s.Column))
	}
	if want := []string{"metric.labels.a:1:9", "metric.labels.b:1:1", "metric.labels.c:1:1", "metric.labels.d:1:12"}; !slices.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}

	o := newObjects(t)
	r := compile(t, Spec{Name: "r", Metric: &Metric{Name: "m", MaxSeries: 1, Labels: map[string]string{"a": "object.metadata", "b": "object.metadata.name"}}})
	r.Route(nil, change(event.Added, nil, o.from(`{"metadata":{"name":"`+strings.Repeat("ü", 200)+`"}}`)))
	if got := seriesOf(t, r); !maps.Equal(got, map[string]uint64{"," + strings.Repeat("ü", 128): 1}) || r.Stats()[0].Errors != 1 {
		t.Errorf("counts %v, stats %+v", got, r.Stats()[0])
	}
}

// A sample is of about the share asked for, the same for every route and each time, and
// a larger one contains it.
func TestSample(t *testing.T) {
	o := newObjects(t)
	pod := o.from(barePod)
	r := compile(t, Spec{Name: "tenth", Sample: 0.1}, Spec{Name: "half", Sample: 0.5}, Spec{Name: "tenth-too", Sample: 0.1, When: "true"}, Spec{Name: "all", Sample: 1})
	taken := map[string]int{}
	for i := range 5000 {
		c := change(event.Added, nil, pod)
		c.ID = event.ID("c", event.Added, pods(), "", "u", fmt.Sprint(i))
		got := sinksOf(r.Route(nil, c))
		if again := sinksOf(r.Route(nil, c)); !slices.Equal(got, again) {
			t.Fatalf("%s goes to %q, then to %q", c.ID, got, again)
		}
		if slices.Contains(got, "tenth") != slices.Contains(got, "tenth-too") || slices.Contains(got, "tenth") && !slices.Contains(got, "half") {
			t.Fatalf("%s goes to %q", c.ID, got)
		}
		for _, sink := range got {
			taken[sink]++
		}
	}
	if n := taken["tenth"]; n < 400 || n > 600 {
		t.Errorf("a tenth of 5000 is %d", n)
	}
	if n := taken["half"]; n < 2300 || n > 2700 || taken["all"] != 5000 {
		t.Errorf("a half of 5000 is %d, all %d", n, taken["all"])
	}
	if s := r.Stats()[0]; s.Unsampled+s.Matched != 10_000 || s.Filtered != 0 {
		t.Errorf("stats %+v", s)
	}
}
