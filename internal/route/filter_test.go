package route

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestWatchFilter(t *testing.T) {
	o := newObjects(t)
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
		ns             NamespaceRules
		labels, fields string
		want           []string
	}{
		"nothing":        {want: []string{"bare", "dev", "dev-pod", "foreign", "gone", "node", "prod", "web"}},
		"include":        {ns: NamespaceRules{Include: []string{"pr*", "x"}}, want: []string{"prod", "web"}},
		"exclude":        {ns: NamespaceRules{Exclude: []string{"d?v"}}, want: []string{"bare", "foreign", "gone", "node", "prod", "web"}},
		"both":           {ns: NamespaceRules{Include: []string{"*"}, Exclude: []string{"[d-g]*"}}, want: []string{"prod", "web"}},
		"selector":       {ns: NamespaceRules{Selector: "env=prod"}, want: []string{"prod", "web"}},
		"not in":         {ns: NamespaceRules{Selector: "env notin (prod)"}, want: []string{"dev", "dev-pod"}},
		"all of them":    {ns: NamespaceRules{Include: []string{"prod", "dev"}, Exclude: []string{"prod"}, Selector: "env"}, want: []string{"dev", "dev-pod"}},
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
		"all the rules":  {ns: NamespaceRules{Selector: "env"}, labels: "app", fields: "status.phase=Failed", want: []string{"web"}},
		"empty selector": {ns: NamespaceRules{Selector: " "}, labels: " ", want: []string{"bare", "dev", "dev-pod", "foreign", "gone", "node", "prod", "web"}},
	} {
		f, err := NewWatchFilter(tc.ns, tc.labels, tc.fields)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		asked := false
		var got []string
		for object, raw := range objects {
			if f.Match(o.from(raw), func(ns string) (labels.Set, bool) { asked = true; return nsLabels(ns) }) {
				got = append(got, object)
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
	var none *WatchFilter
	if none.NeedsNamespaces() || !none.Match(o.from(barePod), nil) {
		t.Error("a nil filter filters")
	}
}

func TestWatchFilterErrors(t *testing.T) {
	_, err := NewWatchFilter(NamespaceRules{Include: []string{"ok", "[a"}, Exclude: []string{""}, Selector: "a in"}, "=x", "spec..a=1")
	var got []string
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if s, ok := errors.AsType[*SpecError](e); ok {
				got = append(got, s.Path)
			}
		}
	}
	if want := []string{"namespaces.include[1]", "namespaces.exclude[0]", "namespaces.selector", "labelSelector", "fieldSelector"}; !slices.Equal(got, want) {
		t.Errorf("faults at %q, want %q (%v)", got, want, err)
	}
	if _, err := NewWatchFilter(NamespaceRules{}, "", "spec.containers[*].name=a"); err == nil {
		t.Error("a field selector may name many fields")
	}
}

// Selectors on metadata cost no allocation; they are asked of every event.
func TestWatchFilterAllocates(t *testing.T) {
	pod := newObjects(t).from(failedPod)
	f, err := NewWatchFilter(NamespaceRules{Include: []string{"p*"}, Exclude: []string{"kube-*"}}, "app=web", "metadata.name=web-1,metadata.namespace!=x")
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
