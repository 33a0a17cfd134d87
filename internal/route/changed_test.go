package route

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestDiffers(t *testing.T) {
	for _, tc := range []struct {
		path, a, b string
		want       bool
	}{
		{`spec`, `{"spec":{"a":1,"b":2}}`, `{"spec":{"b":2,"a":1},"status":{}}`, false},
		{`spec`, `{"spec":{"a":1}}`, `{"spec":{"a":2}}`, true},
		{`spec`, `{"spec":{"a":1}}`, `{}`, true},
		{`spec`, `{}`, `{"spec":null}`, true},
		{`spec`, `{}`, `{"status":1}`, false},
		{`spec.a`, `{"spec":{"a":1,"b":1}}`, `{"spec":{"a":1,"b":2}}`, false},
		{`spec.a`, `{"spec":{}}`, `{}`, false},
		{`spec.a`, `{"spec":1}`, `{"spec":[]}`, false},
		{`spec.a`, `{"spec":{"a":"x"}}`, `{"spec":{"a":"\u0078"}}`, false},
		{`spec.a`, `{"spec":{"a":9007199254740993}}`, `{"spec":{"a":9007199254740992}}`, true},
		{`spec.a`, `{"spec":{"a":-1}}`, `{"spec":{"a":1}}`, true},
		{`metadata.annotations["a.b/c"]`, `{"metadata":{"annotations":{"a.b/c":"1","d":"1"}}}`, `{"metadata":{"annotations":{"a.b/c":"1","d":"2"}}}`, false},
		{`metadata.annotations["a.b/c"]`, `{"metadata":{"annotations":{"a.b/c":"1"}}}`, `{"metadata":{"annotations":{"a.b/c":"2"}}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a","x":1},{"image":"b"}]}}`, false},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a"},{"image":"c"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{}]}}`, `{"spec":{"c":[{},{"image":"a"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"}]}}`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{}]}}`, `{"spec":{"c":[{"image":"a"}]}}`, false},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"}]}}`, `{"spec":{}}`, true},
		{`spec.c[1].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"x"},{"image":"b"}]}}`, false},
		{`data[*]`, `{"data":{"a":"1","b":"1"}}`, `{"data":{"b":"1","a":"1"}}`, false},
		{`data[*]`, `{"data":{"a":"1"}}`, `{"data":{"b":"1"}}`, true},
		{`data.*`, `{"data":{"a":"1"}}`, `{"data":["1"]}`, true},
		{`data.*.x[*]`, `{"data":{"a":{"x":[1,2]},"b":{"y":1}}}`, `{"data":{"b":{"y":2},"a":{"x":[1,2]}}}`, false},
		{`data.*.x[*]`, `{"data":{"a":{"x":[1,2]}}}`, `{"data":{"a":{"x":[2,1]}}}`, true},
		{`*`, `{"a":1}`, `{"a":1,"b":2}`, true},
	} {
		p, err := rawjson.ParsePath(tc.path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseChanged(tc.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			a, b := []byte(pair[0]), []byte(pair[1])
			if got := differs(a, b, p); got != tc.want {
				t.Errorf("%s of %s and %s differs: %t", tc.path, a, b, got)
			}
			if got := c.differs(celjson.NewObject(a), celjson.NewObject(b)); got != tc.want {
				t.Errorf("%s of %s and %s differs on the way down: %t", tc.path, a, b, got)
			}
		}
	}
}

func TestMeaningful(t *testing.T) {
	o := newObjects(t)
	r := compile(t, Spec{Name: "r", Changed: []string{Meaningful}})
	for _, tc := range []struct {
		resource, a, b string
		want           bool
	}{
		{"leases.coordination.k8s.io", `"spec":{"holderIdentity":"a","renewTime":"1"}`, `"spec":{"holderIdentity":"a","renewTime":"2"}`, false},
		{"leases.coordination.k8s.io", `"spec":{"holderIdentity":"a","renewTime":"1"}`, `"spec":{"holderIdentity":"b","renewTime":"2"}`, true},
		{"leases.example.com", `"spec":{"renewTime":"1"}`, `"spec":{"renewTime":"2"}`, true},
		{"nodes", `"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"1"}]}`, `"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2"}],"images":[{}]}`, false},
		{"nodes", `"status":{"conditions":[{"type":"Ready","status":"True"}]}`, `"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}`, true},
		{"nodes", `"status":{"conditions":[{"type":"Ready"}]}`, `"status":{"conditions":[{"type":"Ready"},{"lastHeartbeatTime":"2"}]}`, true},
		{"nodes", `"status":{"conditions":[]}`, `"status":{}`, false},
		{"nodes", `"status":{"conditions":1}`, `"status":{"conditions":2}`, true},
		{"deployments.apps", `"spec":{"replicas":1},"status":{"replicas":0}`, `"spec":{"replicas":1},"status":{"replicas":1,"conditions":[{"type":"Available"}]}`, false},
		{"deployments.apps", `"spec":{"replicas":1}`, `"spec":{"replicas":2}`, true},
		{"deployments.apps", `"spec":{}`, `"status":{},"spec":{}`, false},
		{"pods", `"status":{"phase":"Pending"}`, `"status":{"phase":"Running"}`, true},
		{"pods", `"status":{"phase":"Pending","observedGeneration":1}`, `"status":{"phase":"Pending"}`, false},
		{"configmaps", `"data":{"a":"1"}`, `"data":{"a":"1"}`, false},
		{"configmaps", `"data":{"a":"1"}`, `"data":{"a":"1","b":"1"}`, true},
		{"widgets.example.com", `"status":[1]`, `"status":[2]`, true},
		{"widgets.example.com", `"status":{"phase":1}`, `"status":[]`, true},
	} {
		const head = `{"apiVersion":"v1","kind":"X","metadata":{"name":"x","uid":"u",`
		before, after := o.from(head+`"resourceVersion":"1"},`+tc.a+`}`), o.from(head+`"generation":2,"resourceVersion":"2"},`+tc.b+`}`)
		for _, pair := range [][2]*compact.Object{{before, after}, {after, before}} {
			c := change(event.Updated, pair[0], pair[1])
			c.Resource.Resource, c.Resource.Group, _ = strings.Cut(tc.resource, ".")
			if got := len(r.Route(nil, c)) > 0; got != tc.want {
				t.Errorf("%s from %s to %s is meaningful: %t", tc.resource, tc.a, tc.b, got)
			}
		}
	}
	const leader = `{"metadata":{"name":"x","resourceVersion":"1"X}}`
	c := change(event.Updated, o.from(strings.Replace(leader, "X", "", 1)), o.from(strings.Replace(leader, "X", `,"annotations":{"control-plane.alpha.kubernetes.io/leader":"a"}`, 1)))
	c.Resource.Resource = "endpoints"
	if got := r.Route(nil, c); len(got) > 0 {
		t.Error("the first leader's annotation is meaningful")
	}
}

// A state with other values at the paths of the table differs in nothing but churn, and
// one with another value anywhere else in more.
func TestChurnModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		entry := Churns()[random.IntN(len(Churns()))]
		resource := event.Resource{Resource: "widgets"}
		if len(entry.Resources) > 0 {
			resource.Resource, resource.Group, _ = strings.Cut(entry.Resources[random.IntN(len(entry.Resources))], ".")
		}
		path, err := rawjson.ParsePath(entry.Paths[random.IntN(len(entry.Paths))])
		if err != nil {
			t.Fatal(err)
		}
		with := func(value string) string {
			text, closing := "", ""
			for rest := path; ; {
				first, after, ok := rest.Cut()
				if !ok {
					break
				}
				if key, plain := first.Key(); plain {
					text, closing = text+`{"other":1,"`+key+`":`, "}"+closing
				} else {
					text, closing = text+`[`, "]"+closing
				}
				rest = after
			}
			return text + value + closing
		}
		a, b := celjson.NewObject([]byte(with("1"))), celjson.NewObject([]byte(with(`{"x":[2]}`)))
		if !onlyChurn(resource, a, b) {
			t.Fatalf("%v: %s is no churn", resource, path)
		}
		deep := with(`1`)
		others := strings.Count(deep, `"other":1`)
		n, i := random.IntN(others), 0
		other := strings.Builder{}
		for part := range strings.SplitAfterSeq(deep, `"other":`) {
			if i == n+1 {
				part = "2" + part[1:]
			}
			i++
			other.WriteString(part)
		}
		if onlyChurn(resource, a, celjson.NewObject([]byte(other.String()))) {
			t.Fatalf("%v: %s is churn", resource, other.String())
		}
	}
}

// TestUnseenIsCheap looks for a field that no change has had in few of them.
func TestUnseenIsCheap(t *testing.T) {
	o := newObjects(t)
	r := compile(t, Spec{Name: "r", Changed: []string{"spec", "metadata.labels.rare"}})
	c := change(event.Updated, o.from(`{"metadata":{"name":"a"},"spec":{},"status":{"n":1}}`), o.from(`{"metadata":{"name":"a"},"spec":{},"status":{"n":2}}`))
	targets := r.Route(nil, c)
	allocations := func() float64 {
		return testing.AllocsPerRun(unseen.Enough, func() { targets = r.Route(targets[:0], c) })
	}
	first := allocations()
	for range unseen.Enough {
		r.Route(nil, c)
	}
	if later := allocations(); first == 0 || later > first/2 {
		t.Errorf("%v allocations a change in the end, %v in the beginning", later, first)
	}
}

// TestUnseen: what a route reads and none of many changes has had is reported once, and
// until a change has it.
func TestUnseen(t *testing.T) {
	o := newObjects(t)
	r := compile(t, Spec{
		Name: "r", When: "object.spec.replcas > 0",
		Changed: []string{"spec.replicas", "spec.containers.image", "spec.containers[*].image", "metadata.labels[*]", "spec.rare"},
	}, Spec{Name: "fine", When: "object.spec.replicas > 0", Changed: []string{"spec.containers[*].image"}})
	r.rules[0].onError = OnErrorPass // the paths are compared too
	var reported []Unseen
	r.OnUnseen(func(u Unseen) { reported = append(reported, u) })
	update := func(fields string) {
		before := `{"metadata":{"name":"a"},"spec":{"replicas":1,"containers":[{"image":"a"}]` + fields + `}}`
		r.Route(nil, change(event.Updated, o.from(before), o.from(strings.Replace(before, `"replicas":1`, `"replicas":2`, 1))))
	}
	for range unseen.Enough - 1 {
		update("")
	}
	if len(reported) > 0 || r.Stats()[0].Unseen != nil {
		t.Fatalf("after few changes: %v", reported)
	}
	for range unseen.Enough {
		update("")
	}
	want := func(n uint64) []Unseen {
		return []Unseen{
			{"r", "changed", "spec.containers.image", n},
			{"r", "changed", "metadata.labels[*]", n},
			{"r", "changed", "spec.rare", n},
			{"r", "when", "no such key: replcas", n},
		}
	}
	slices.SortStableFunc(reported, func(a, b Unseen) int { return strings.Compare(a.Key, b.Key) })
	if diff := cmp.Diff(want(unseen.Enough), reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want(2*unseen.Enough-1), r.Stats()[0].Unseen); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	if u := r.Stats()[1].Unseen; u != nil {
		t.Errorf("a route whose fields are there: %v", u)
	}
	for range unseen.Enough {
		update(`,"rare":null`)
	}
	if got := r.Stats()[0].Unseen; len(got) != 3 || slices.ContainsFunc(got, func(u Unseen) bool { return u.Field == "spec.rare" }) {
		t.Errorf("after changes with spec.rare: %v", got)
	}
}
