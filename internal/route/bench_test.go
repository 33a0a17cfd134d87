package route

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// benchPods are a pod of 5.5 KB as API servers send it, less its managedFields, and
// the same with another phase.
func benchPods(b *testing.B) (before, after []byte) {
	b.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "pod.json"))
	if err != nil {
		b.Fatal(err)
	}
	drop, err := rawjson.NewEditor(rawjson.Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	if raw, err = drop.Append(nil, raw); err != nil {
		b.Fatal(err)
	}
	return raw, []byte(strings.Replace(string(raw), `"phase":"Running"`, `"phase":"Failed"`, 1))
}

func benchChange(b *testing.B) *Change {
	before, after := benchPods(b)
	o := newObjects(b)
	c := change(event.Updated, o.from(string(before)), o.from(string(after)))
	c.ID = event.ID("c", event.Updated, pods(), "", "u", "1")
	return c
}

// BenchmarkRoute is the cost of routing one event. In all but "elsewhere" every
// route is about the event's watch and resource.
func BenchmarkRoute(b *testing.B) {
	for _, bc := range []struct {
		name string
		spec func(i int) Spec
	}{
		{"nofilter", func(int) Spec { return Spec{} }},
		{"elsewhere", func(i int) Spec { return Spec{Watches: []string{fmt.Sprint("w", i)}, When: `object.x == 1`} }},
		{"metadata", func(i int) Spec { return Spec{When: fmt.Sprintf(`metadata.namespace == "team-%d"`, i)} }},
		{"labels", func(i int) Spec {
			return Spec{When: fmt.Sprintf(`metadata.labels["app.kubernetes.io/name"] == "app-%d"`, i)}
		}},
		{"object", func(i int) Spec { return Spec{When: fmt.Sprintf(`object.status.phase == "Phase%d"`, i)} }},
		{"list", func(i int) Spec {
			return Spec{When: fmt.Sprintf(`object.status.conditions.exists(c, c.type == "Ready%d")`, i)}
		}},
		{"meaningful", func(int) Spec { return Spec{Changed: []string{Meaningful}} }},
		{"sample", func(int) Spec { return Spec{Sample: 0.01} }},
		{"metric", func(i int) Spec {
			return Spec{Metric: &Metric{Name: fmt.Sprint("m", i), MaxSeries: 1000, Labels: map[string]string{"ns": "metadata.namespace", "app": `metadata.labels["app.kubernetes.io/name"]`}}}
		}},
		{"changed", func(i int) Spec { return Spec{Changed: []string{"spec", fmt.Sprint("metadata.labels.l", i)}} }},
	} {
		for _, n := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%s/%d", bc.name, n), func(b *testing.B) {
				var specs []Spec
				for i := range n {
					s := bc.spec(i)
					s.Name, s.Sinks = fmt.Sprint("r", i), []string{fmt.Sprint("s", i)}
					specs = append(specs, s)
				}
				r := compile(b, specs...)
				c := benchChange(b)
				targets := make([]record.Target, 0, n)
				b.ReportAllocs()
				for b.Loop() {
					targets = r.Route(targets[:0], c)
				}
				for _, s := range r.Stats() {
					if s.Errors > 0 {
						b.Fatalf("%+v", s)
					}
				}
			})
		}
	}
}

// BenchmarkLimits is the time until the limits end an expression over an object of 1 MB.
func BenchmarkLimits(b *testing.B) {
	x, err := newExpressions(defaultLimits())
	if err != nil {
		b.Fatal(err)
	}
	o := newObjects(b)
	huge := o.from(hugeObject(800_000, 8_000))
	c := change(event.Updated, huge, huge)
	for _, when := range costly() {
		compiled, faults := x.compile(when, isCondition)
		if faults != nil {
			continue
		}
		b.Run(when[:min(len(when), 60)], func(b *testing.B) {
			b.ReportAllocs()
			e := newEvaluation(x.views)
			for b.Loop() {
				e.reset(c, 0)
				_, _, _ = compiled.eval(e) // with an error, but for what the limits permit
			}
		})
	}
}

func BenchmarkDiffers(b *testing.B) {
	before, after := benchPods(b)
	p, err := rawjson.ParsePath("spec.containers[*].image")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		differs(before, after, p)
	}
}
