package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
)

// full is an event with all that a route may ask for, as it was written.
type full struct {
	ID   string
	Type string
	Time time.Time
	Data struct {
		Namespace, Name          string
		UID, ResourceVersion     string
		Coalesced                int
		For                      struct{ Since time.Time }
		Selection                string
		Object, OldObject, Patch json.RawMessage
		Summary                  string
		ChangedBy                event.ChangedBy
	}
}

func (f *full) String() string {
	s := f.Type[strings.LastIndexByte(f.Type, '.')+1:] + " " + f.Data.Name
	if f.Data.Selection != "" {
		s += " " + f.Data.Selection
	}
	if f.Data.Coalesced > 0 {
		s += fmt.Sprintf(" replaces %d", f.Data.Coalesced)
	}
	return s
}

// readFull reads the files of one sink.
func readFull(t testing.TB, d *daemon, pattern string) []full {
	t.Helper()
	files, err := filepath.Glob(d.path(pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all []full
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(content) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // it is being written
			}
			var e full
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return all
}

func summary(events []full) []string {
	var lines []string
	for i := range events {
		lines = append(lines, events[i].String())
	}
	return lines
}

const routesConfig = `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
cluster: {name: e2e}
store: {path: ./data}
admin: {listen: "ADMIN"}
watches:
- {name: all, resources: [configmaps, pods, widgets.example.com], namespaces: {include: [NS]}}
routes:
- {name: everything, sinks: [archive]}
- {name: failed, resources: [pods], when: object.status.phase == "Failed", sinks: [failed]}
- {name: became-failed, resources: [pods], when: 'oldObject != null && oldObject.status.phase != object.status.phase', payload: [object, oldObject], sinks: [became]}
- {name: big, resources: [widgets.example.com], events: [added], when: quantity(object.spec.size).isGreaterThan(quantity("1Gi")), sinks: [big]}
- {name: specs, resources: [widgets.example.com], events: [updated], changed: [spec], payload: [object, oldObject, patch, summary], sinks: [specs]}
- {name: gone, events: [deleted], when: 'metadata.name.startsWith("gone-") && event.type == "deleted"', sinks: [gone]}
- {name: labelled, resources: [configmaps], when: '"tier" in metadata.labels && metadata.labels.tier == "web"', sinks: [labelled]}
sinks:
- {name: archive, file: {path: "./events/{resource}.jsonl"}}
- {name: failed, file: {path: ./failed.jsonl}}
- {name: became, file: {path: ./became.jsonl}}
- {name: big, file: {path: ./big.jsonl}}
- {name: specs, file: {path: ./specs.jsonl}}
- {name: gone, file: {path: ./gone.jsonl}}
- {name: labelled, file: {path: ./labelled.jsonl}}
`

// TestRoutes sends changes through conditions of every sort, next to a route that
// takes everything.
func TestRoutes(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, strings.NewReplacer("NS", ns, "ADMIN", admin).Replace(routesConfig))
	d.start()
	w := newClient(t, c, ns)
	w.settle(d.path("events"), kinds[0], kinds[1], kinds[3])
	ctx := t.Context()

	for i, phase := range []string{"Failed", "Running", "Failed"} {
		u, err := w.create(ctx, kinds[1], fmt.Sprintf("pod-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(u.Object, phase, "status", "phase"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.dyn.Resource(kinds[1].gvr).Namespace(ns).UpdateStatus(ctx, u, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, size := range map[string]string{"small": "900Mi", "large": "1500Mi", "larger": "2Gi", "none": ""} {
		u := kinds[3].object(ns, name)
		if size != "" {
			u.Object["spec"] = map[string]any{"size": size}
		}
		if _, err := w.dyn.Resource(kinds[3].gvr).Namespace(ns).Create(ctx, u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"gone-1", "stays"} {
		u, err := w.create(ctx, kinds[0], name)
		if err != nil {
			t.Fatal(err)
		}
		u.SetLabels(map[string]string{"tier": map[string]string{"gone-1": "web", "stays": "db"}[name]})
		if u, err = w.dyn.Resource(kinds[0].gvr).Namespace(ns).Update(ctx, u, metav1.UpdateOptions{}); err == nil {
			err = w.remove(ctx, kinds[0], u)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	updates := mutateWidget(t, w)
	w.settle(d.path("events"), kinds[0], kinds[1], kinds[3])
	drained(t, admin)
	d.stop()

	for file, want := range map[string][]string{
		"failed.jsonl":   {"updated pod-0", "updated pod-2"},
		"became.jsonl":   {"updated pod-0", "updated pod-1", "updated pod-2"},
		"big.jsonl":      {"added large", "added larger"},
		"gone.jsonl":     {"deleted gone-1"},
		"labelled.jsonl": {"deleted gone-1", "updated gone-1"},
	} {
		got := summary(readFull(t, d, file))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
	checkPatches(t, readFull(t, d, "specs.jsonl"), updates)
}

// mutateWidget changes a widget's spec at random, and now and then something else
// alone. It returns how often the spec changed.
func mutateWidget(t testing.TB, w *client) int {
	t.Helper()
	widgets := w.dyn.Resource(kinds[3].gvr).Namespace(w.namespace)
	u := kinds[3].object(w.namespace, "mutant")
	u.Object["spec"] = map[string]any{"list": []any{}}
	u, err := widgets.Create(t.Context(), u, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 5))
	changes := 0
	for range 80 {
		before := u.Object["spec"]
		if rng.IntN(4) == 0 {
			u.SetAnnotations(map[string]string{"n": fmt.Sprint(rng.Int())})
		} else {
			u.Object["spec"] = mutate(rng, before, 4)
		}
		changed := !reflect.DeepEqual(before, u.Object["spec"])
		if u, err = widgets.Update(t.Context(), u, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if changed {
			changes++
		}
	}
	return changes
}

// mutate returns a value that differs from v in some place, most of the time.
func mutate(rng *rand.Rand, v any, depth int) any {
	keys := []string{"a", "b/c", "d~e", "list", "ü"}
	switch v := v.(type) {
	case map[string]any:
		out := maps.Clone(v)
		k := keys[rng.IntN(len(keys))]
		if _, ok := out[k]; ok && rng.IntN(4) == 0 {
			delete(out, k)
		} else {
			out[k] = mutate(rng, out[k], depth-1)
		}
		return out
	case []any:
		out := slices.Clone(v)
		switch at := rng.IntN(len(out) + 1); {
		case at == len(out) || len(out) < 3:
			return slices.Insert(out, at, mutate(rng, nil, depth-1))
		case rng.IntN(2) == 0:
			return slices.Delete(out, at, at+1)
		default:
			out[at] = mutate(rng, out[at], depth-1)
		}
		return out
	}
	switch n := rng.IntN(5); {
	case n == 0 && depth > 0:
		return map[string]any{"a": "x"}
	case n == 1 && depth > 0:
		return []any{int64(1), "two"}
	case n == 2:
		return rng.IntN(2) == 0
	case n == 3:
		return fmt.Sprint(rng.IntN(100))
	}
	return int64(rng.IntN(100))
}

// checkPatches applies each event's patch to its old object. The version is not part of it.
func checkPatches(t testing.TB, events []full, want int) {
	t.Helper()
	if len(events) != want {
		t.Errorf("%d events, want one for each of %d changes of the spec", len(events), want)
	}
	for i := range events {
		e := &events[i]
		patch, err := jsonpatch.DecodePatch(e.Data.Patch)
		if err != nil {
			t.Fatalf("%v: %s", err, e.Data.Patch)
		}
		made, err := patch.Apply(e.Data.OldObject)
		if err != nil {
			t.Errorf("%v: %s", err, e.Data.Patch)
			continue
		}
		if bytes.Contains(e.Data.Patch, []byte("/metadata/resourceVersion")) || !jsonpatch.Equal(versionless(t, made), versionless(t, e.Data.Object)) {
			t.Errorf("patch %s makes %s of %s, want %s", e.Data.Patch, made, e.Data.OldObject, e.Data.Object)
		}
		if e.Data.Summary == "" || e.Data.Summary == "no visible change" {
			t.Errorf("the summary of %s is %q", e.Data.Patch, e.Data.Summary)
		}
	}
}

// versionless returns an object without its resourceVersion.
func versionless(t testing.TB, raw []byte) []byte {
	t.Helper()
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	u.SetResourceVersion("")
	out, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
