package selector

import (
	"errors"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

const failedPod, barePod = apitest.FailedPod, apitest.BarePod

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func object(t testing.TB, raw string) *compact.Object {
	t.Helper()
	o, err := compact.NewCodec(compact.NewDictionaries(nil)).Encode([]byte(raw), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestFilter(t *testing.T) {
	objects := map[string]string{
		"web":     failedPod,
		"bare":    barePod, // no namespace, no labels
		"node":    `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-1","labels":{"env":"prod"}}}`,
		"prod":    `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"prod","labels":{"env":"prod"}}}`,
		"dev":     `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"dev","labels":{"env":"dev"}}}`,
		"foreign": `{"kind":"Namespace","apiVersion":"example.com/v1","metadata":{"name":"prod","labels":{"env":"prod"}}}`,
		"dev-pod": `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"dev"},"spec":{"nodeName":"node-2"},"status":{"phase":"Running"}}`,
		"gone":    `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"gone"}}`,
	}
	nsLabels := func(ns string) (labels.Set, bool) {
		set, ok := map[string]labels.Set{"prod": {"env": "prod"}, "dev": {"env": "dev"}}[ns]
		return set, ok
	}
	for name, tc := range map[string]struct {
		ns             Namespaces
		labels, fields string
		want           []string
	}{
		"nothing":        {want: []string{"bare", "dev", "dev-pod", "foreign", "gone", "node", "prod", "web"}},
		"include":        {ns: Namespaces{Include: []string{"pr*", "x"}}, want: []string{"prod", "web"}},
		"exclude":        {ns: Namespaces{Exclude: []string{"d?v"}}, want: []string{"bare", "foreign", "gone", "node", "prod", "web"}},
		"both":           {ns: Namespaces{Include: []string{"*"}, Exclude: []string{"[d-g]*"}}, want: []string{"prod", "web"}},
		"selector":       {ns: Namespaces{Selector: "env=prod"}, want: []string{"prod", "web"}},
		"not in":         {ns: Namespaces{Selector: "env notin (prod)"}, want: []string{"dev", "dev-pod"}},
		"all of them":    {ns: Namespaces{Include: []string{"prod", "dev"}, Exclude: []string{"prod"}, Selector: "env"}, want: []string{"dev", "dev-pod"}},
		"labels":         {labels: "tier=front,app in (web, api)", want: []string{"web"}},
		"no label":       {labels: "!app,!env", want: []string{"bare", "dev-pod", "gone"}},
		"name":           {fields: "metadata.name=p", want: []string{"dev-pod", "gone"}},
		"namespace":      {fields: "metadata.namespace!=prod,metadata.name!=p", want: []string{"bare", "dev", "foreign", "node", "prod"}},
		"field":          {fields: "spec.nodeName==node-2", want: []string{"dev-pod"}},
		"no such field":  {fields: "spec.nodeName=", want: []string{"bare", "dev", "foreign", "gone", "node", "prod"}},
		"field not":      {fields: "status.phase!=Running,metadata.namespace=prod", want: []string{"web"}},
		"number":         {fields: "spec.priority=9007199254740993", want: []string{"web"}},
		"bool":           {fields: "spec.host=false", want: []string{"web"}},
		"null":           {fields: "spec.none=,metadata.name=web-1", want: []string{"web"}},
		"item":           {fields: "spec.containers[1].name=b", want: []string{"web"}},
		"escaped":        {fields: "status.text=café ☃ <&>", want: []string{"web"}},
		"quoted key":     {fields: `metadata.annotations["example.com/x"]=y`, want: []string{"web"}},
		"all the rules":  {ns: Namespaces{Selector: "env"}, labels: "app", fields: "status.phase=Failed", want: []string{"web"}},
		"empty selector": {ns: Namespaces{Selector: " "}, labels: " ", want: []string{"bare", "dev", "dev-pod", "foreign", "gone", "node", "prod", "web"}},
	} {
		f, err := NewFilter(tc.ns, tc.labels, tc.fields)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		asked := false
		var got []string
		for name, raw := range objects {
			o := object(t, raw)
			if f.Match(o, func(ns string) (labels.Set, bool) { asked = true; return nsLabels(ns) }) {
				got = append(got, name)
			}
			if may := f.MatchNamespace(o, nsLabels); may && !f.MayMatch(o) || f.MayMatch(o) != may && tc.ns.Selector == "" {
				t.Errorf("%s may match: %t", raw, !may)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		if asked != f.NeedsNamespaces() {
			t.Errorf("%s: needs namespaces %t, asked for them %t", name, f.NeedsNamespaces(), asked)
		}
	}
	var none *Filter
	if none.NeedsNamespaces() || !none.Match(object(t, barePod), nil) || !none.MayMatch(object(t, barePod)) {
		t.Error("a nil filter filters")
	}
}

// TestFilterThatSelectsNone: that none of many changes is selected is reported once, until one is.
func TestFilterThatSelectsNone(t *testing.T) {
	f, err := NewFilter(Namespaces{}, "tire=front", "")
	if err != nil {
		t.Fatal(err)
	}
	var reports []uint64
	f.OnNone(func(changes uint64) { reports = append(reports, changes) })
	web := object(t, failedPod)
	for n := range 2 * unseen.Enough {
		if got, want := f.None() > 0, n >= unseen.Enough; got != want || want && f.None() != uint64(n) {
			t.Fatalf("after %d changes: %d", n, f.None())
		}
		if f.Match(web, nil) {
			t.Fatal("the object is selected")
		}
		f.Judged(false)
	}
	if !slices.Equal(reports, []uint64{unseen.Enough}) {
		t.Errorf("reports: %v", reports)
	}
	f.Judged(f.Match(object(t, `{"metadata":{"name":"a","labels":{"tire":"front"}}}`), nil))
	if f.None() != 0 {
		t.Errorf("after one that is selected: %d", f.None())
	}
	next, err := NewFilter(Namespaces{}, "tire=front", "")
	if err != nil {
		t.Fatal(err)
	}
	next.Continue(f)
	for range unseen.Enough {
		next.Judged(false)
	}
	if next.None() != 0 {
		t.Errorf("of a filter that continues one by which an object was selected: %d", next.None())
	}
	next.Continue(nil)
	(*Filter)(nil).Continue(f)
	(*Filter)(nil).Judged(false)
	if (*Filter)(nil).None() != 0 {
		t.Error("no filter selects none")
	}
}

func TestFilterErrors(t *testing.T) {
	_, err := NewFilter(Namespaces{Include: []string{"ok", "[a"}, Exclude: []string{""}, Selector: "a in"}, "=x", "spec..a=1")
	var got []string
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if s, ok := errors.AsType[*field.Error](e); ok {
				got = append(got, s.Field)
			}
		}
	}
	if want := []string{"namespaces.include[1]", "namespaces.exclude[0]", "namespaces.selector", "labelSelector", "fieldSelector"}; !slices.Equal(got, want) {
		t.Errorf("faults at %q, want %q (%v)", got, want, err)
	}
	if _, err := NewFilter(Namespaces{}, "", "spec.containers[*].name=a"); err == nil {
		t.Error("a field selector may name many fields")
	}
}

// Selectors on metadata cost no allocation; they are asked of every event.
func TestFilterAllocates(t *testing.T) {
	pod := object(t, failedPod)
	f, err := NewFilter(Namespaces{Include: []string{"p*"}, Exclude: []string{"kube-*"}}, "app=web", "metadata.name=web-1,metadata.namespace!=x")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if !f.Match(pod, nil) {
			t.Fatal("no match")
		}
	}); n > 1 {
		t.Errorf("%.0f allocations", n)
	}
}

func BenchmarkFilter(b *testing.B) {
	o := object(b, failedPod)
	f, err := NewFilter(Namespaces{Include: []string{"pr*"}, Exclude: []string{"kube-*"}}, "app", "metadata.name!=x")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Match(o, nil)
	}
}

// No text of a selector or a resource makes parsing or matching panic, and what is
// refused is refused with its place.
func FuzzSelectors(f *testing.F) {
	for _, seed := range [][4]string{
		{"team-*", "env in (prod, stage),!x", "spec.nodeName=node-1,status.phase!=Failed", "deployments.v1.apps"},
		{"[a-z]?", "a=b", `metadata.labels["a/b"]=c`, "*.example.com"},
		{"", "a,,b", "a=", "*"},
		{"**", "a notin (b)", "spec.a[*].b==1", "pods..v1"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	o := object(f, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"team-a","uid":"u","resourceVersion":"1","labels":{"env":"prod","a/b":"c"}},"spec":{"nodeName":"node-1","a":[{"b":"1"}]}}`)
	f.Fuzz(func(t *testing.T, pattern, labelSelector, fieldSelector, resource string) {
		if r, err := ParseResource(resource); err == nil {
			_ = r.Matches(event.Resource{Group: "apps", Version: "v1", Resource: "deployments"})
		}
		filter, err := NewFilter(Namespaces{Include: []string{pattern}, Exclude: []string{pattern + "x"}, Selector: labelSelector}, labelSelector, fieldSelector)
		if (filter == nil) == (err == nil) {
			t.Fatalf("neither compiled nor refused, or both: %v", err)
		}
		if filter == nil {
			return
		}
		filter.Match(o, func(string) (labels.Set, bool) { return labels.Set{"env": "prod"}, true })
	})
}
