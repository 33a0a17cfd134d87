package route

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
	edits, err := DefaultEdits().Func(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, testKey())
	if err != nil {
		b.Fatal(err)
	}
	if raw, err = edits(nil, raw); err != nil {
		b.Fatal(err)
	}
	return raw, []byte(strings.Replace(string(raw), `"phase":"Running"`, `"phase":"Failed"`, 1))
}

func benchChange(b *testing.B) *Change {
	before, after := benchPods(b)
	o := newObjects(b)
	return change(event.Updated, o.from(string(before)), o.from(string(after)))
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
				targets := make([]Target, 0, n)
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

func BenchmarkPatch(b *testing.B) {
	before, after := benchPods(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Patch(before, after); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEdits(b *testing.B) {
	before, _ := benchPods(b)
	for name, bc := range map[string]struct {
		gvr schema.GroupVersionResource
		raw []byte
	}{
		"pod":    {schema.GroupVersionResource{Version: "v1", Resource: "pods"}, before},
		"secret": {secrets(), []byte(secretWith("value"))},
	} {
		b.Run(name, func(b *testing.B) {
			f, err := DefaultEdits().Func(bc.gvr, testKey())
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, 2*len(bc.raw))
			b.ReportAllocs()
			b.SetBytes(int64(len(bc.raw)))
			for b.Loop() {
				if dst, err = f(dst[:0], bc.raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWatchFilter(b *testing.B) {
	c := benchChange(b)
	f, err := NewWatchFilter(NamespaceRules{Include: []string{"team-*"}, Exclude: []string{"kube-*"}}, "app.kubernetes.io/name", "metadata.name!=x")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Match(c.New, nil)
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
