package redact

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/event"
)

var pods = schema.GroupResource{Resource: "pods"}

func of(namespace string, redact ...string) Resource {
	return Resource{Resource: "pods", Namespace: namespace, Edits: Edits{Redact: redact}}
}

// What earlier configurations hid stays hidden until a later one says otherwise of the
// same resource, or a watch waits for it.
func TestAcceptedKeepsWhatIsNotNamed(t *testing.T) {
	before := Accepted{Resources: []Resource{of("", "a"), of("x", "b")}, Routes: []Route{{Name: "gone", Drop: []string{"spec"}}, {Name: "stays", Drop: []string{"spec"}}}}
	none := func(schema.GroupResource, string) (Edits, bool) { return Edits{}, false }
	for _, tc := range []struct {
		name   string
		now    Accepted
		awaits func(schema.GroupResource, string) (Edits, bool)
		want   []Resource
	}{
		{"nothing is named", Accepted{}, none, []Resource{of("", "a"), of("x", "b")}},
		{"one namespace", Accepted{Resources: []Resource{of("x", "c")}}, none, []Resource{of("", "a"), of("x", "c")}},
		{"all namespaces", Accepted{Resources: []Resource{of("", "c")}}, none, []Resource{of("", "c")}},
		{"a watch waits", Accepted{}, func(schema.GroupResource, string) (Edits, bool) {
			return Edits{Redact: []string{"d"}}, true
		}, []Resource{of("", "d"), of("x", "d")}},
		{"a watch of a namespace waits", Accepted{}, func(_ schema.GroupResource, namespace string) (Edits, bool) {
			return Edits{Redact: []string{"d"}}, namespace == "x"
		}, []Resource{of("", "a"), of("x", "d")}},
	} {
		tc.now.Routes = []Route{{Name: "stays"}}
		tc.now.Keep(before, tc.awaits)
		if !reflect.DeepEqual(tc.now.Resources, tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.name, tc.now.Resources, tc.want)
		}
		if want := []Route{{Name: "stays"}, before.Routes[0]}; !reflect.DeepEqual(tc.now.Routes, want) {
			t.Errorf("%s: routes %+v, want %+v", tc.name, tc.now.Routes, want)
		}
		again, err := Parse(tc.now.Marshal())
		if err != nil || !reflect.DeepEqual(again.Resources, tc.now.Resources) {
			t.Errorf("%s: read again: %+v, %v", tc.name, again, err)
		}
	}
}

func TestTightened(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after []Resource
		want          bool
	}{
		{"new", nil, []Resource{of("", "a")}, false},
		{"the same", []Resource{of("", "a")}, []Resource{of("", "a")}, false},
		{"more", []Resource{of("", "a")}, []Resource{of("", "a", "b")}, true},
		{"less", []Resource{of("", "a", "b")}, []Resource{of("", "a")}, false},
		{"more in a namespace", []Resource{of("", "a")}, []Resource{of("", "a"), of("x", "b")}, true},
		{"the same in a namespace and beside it", []Resource{of("", "a", "b"), of("x", "a")}, []Resource{of("", "a", "b"), of("x", "a")}, false},
		{"more in all namespaces", []Resource{of("x", "a")}, []Resource{of("", "a", "b")}, true},
		{"another namespace", []Resource{of("y", "a")}, []Resource{of("x", "b")}, false},
	} {
		after := Accepted{Resources: tc.after}
		if got := after.Tightened(&Accepted{Resources: tc.before}); slices.Contains(got, pods) != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// The edits of all routes to one sink apply together.
func TestManyRoutesToOneSink(t *testing.T) {
	var routes []Route
	var names []string
	for i := range 20 {
		steps := slices.Repeat([]string{"*"}, 20)
		steps[0], steps[i] = "spec", string(rune('a'+i))
		routes = append(routes, Route{Name: steps[i], Drop: []string{strings.Join(steps, "."), "spec.own" + steps[i]}})
		names = append(names, steps[i])
	}
	routes[0].Drop = []string{"spec.owna"}
	table, err := Compile(Accepted{Routes: routes}, map[string][]string{"s": names}, testKey())
	if err != nil {
		t.Fatal(err)
	}
	r := &record.Record{Event: event.Event{Resource: event.Resource{Resource: "pods"}}, Targets: []record.Target{{Sink: "s", Routes: strings.Join(names, ",")}}}
	edit := table.Edit(r, "s")
	out, err := edit.Object(nil, []byte(`{"spec":{"owna":1,"ownt":2,"other":3}}`))
	if err != nil || string(out) != `{"spec":{"other":3}}` {
		t.Errorf("%s, %v", out, err)
	}
	patch, ok := edit.Patch([]byte(`[{"op":"add","path":"/spec/owna","value":1},{"op":"add","path":"/spec/other","value":1}]`), nil, nil)
	if !ok || string(patch) != `[{"op":"add","path":"/spec/other","value":1}]` {
		t.Errorf("%s, %t", patch, ok)
	}
	if table.Edit(r, "") != nil || table.Edit(r, "another") != nil {
		t.Error("an onlooker or another sink is concerned")
	}
}

// The paths of a route are counted over all combinations that it is in.
func TestRouteUsage(t *testing.T) {
	table, err := Compile(Accepted{Routes: []Route{
		{Name: "a", Drop: []string{"spec.x"}, Redact: []string{"spec.typo"}},
		{Name: "b", Drop: []string{"spec.y"}},
	}}, nil, testKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, routes := range []string{"a", "a,b", "b", "other"} {
		r := &record.Record{Event: event.Event{Resource: event.Resource{Resource: "pods"}}, Targets: []record.Target{{Sink: "s", Routes: routes}}}
		if edit := table.Edit(r, "s"); edit != nil {
			if _, err := edit.Object(nil, []byte(`{"spec":{"x":1,"y":2}}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for route, want := range map[string][]Usage{
		"a": {{"drop", "spec.x", 2}, {"redact", "spec.typo", 0}}, "b": {{"drop", "spec.y", 2}}, "other": nil,
	} {
		usage, events := table.RouteUsage(route)
		if !slices.Equal(usage, want) || route != "other" && events != 2 {
			t.Errorf("%s: %v of %d events, want %v of 2", route, usage, events, want)
		}
	}
	if usage, _ := (*Table)(nil).RouteUsage("a"); usage != nil {
		t.Error("no table has usage")
	}
}

// A path of a route that no value of many events had is reported, and one that had a value is not.
func TestUnseenPathOfARoute(t *testing.T) {
	table, err := Compile(Accepted{Routes: []Route{{Name: "a", Drop: []string{"spec.x"}, Redact: []string{"spec.typo"}}}}, nil, testKey())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	table.OnUnseen(func(route string, u Usage, events uint64) {
		got = append(got, fmt.Sprint(route, " ", u.Key, " ", u.Path, " ", events > unseen.Enough))
	})
	for n := range 3 * unseen.Enough {
		r := &record.Record{Event: event.Event{Resource: event.Resource{Resource: "pods"}}, Targets: []record.Target{{Sink: "s", Routes: "a"}}}
		edit := table.Edit(r, "s")
		if n == unseen.Enough-1 && got != nil {
			t.Fatalf("before that many events: %q", got)
		}
		if _, err := edit.Object(nil, []byte(`{"spec":{"x":1}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a redact spec.typo true"}; !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

// A route's hash is of the object, in its body and in a patch without one.
func TestRouteHashes(t *testing.T) {
	table, err := Compile(Accepted{Routes: []Route{{Name: "r", Redact: []string{"spec[*]"}}}}, nil, testKey())
	if err != nil {
		t.Fatal(err)
	}
	hashes := map[string]string{}
	for _, of := range []event.Event{
		{Resource: event.Resource{Resource: "pods"}, Namespace: "a", Name: "b"},
		{Resource: event.Resource{Resource: "pods"}, Namespace: "a", Name: "c"},
		{Resource: event.Resource{Resource: "pods", Group: "x"}, Namespace: "a", Name: "b"},
	} {
		edit := table.Edit(&record.Record{Event: of, Targets: []record.Target{{Sink: "s", Routes: "r"}}}, "s")
		out, err := edit.Object(nil, []byte(`{"metadata":{"name":"`+of.Name+`","namespace":"a"},"spec":{"v":1}}`))
		if err != nil {
			t.Fatal(err)
		}
		i := strings.Index(string(out), event.RedactedPrefix)
		hash := string(out)[i : i+len(event.RedactedPrefix)+event.RedactedDigits]
		patch, ok := edit.Patch([]byte(`[{"op":"replace","path":"/spec/v","value":1}]`), nil, nil)
		if !ok || !strings.Contains(string(patch), hash) {
			t.Errorf("the patch is %s, the hash %s", patch, hash)
		}
		if other, known := hashes[hash]; known {
			t.Errorf("%+v has the hash of %s", of, other)
		}
		hashes[hash] = of.Name
	}
}

// TestInvolvedObject: what an event has of another object is hidden as in that object, whose name it does not repeat.
func TestInvolvedObject(t *testing.T) {
	accepted := Accepted{
		Resources: []Resource{{Resource: "secrets", Edits: DefaultEdits()}},
		Routes:    []Route{{Name: "r", Redact: []string{"metadata.annotations.x"}}},
	}
	table, err := Compile(accepted, nil, testKey())
	if err != nil {
		t.Fatal(err)
	}
	in := &record.Inflater{Edit: table.Edit}
	shown := func(resource, name string, targets []record.Target) string {
		t.Helper()
		part, err := record.MetadataOf("u", nil, []byte(`{"x":"hunter2-canary"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := record.Append(nil, &record.Record{
			Event:   event.Event{Type: event.Added, ID: "00", Resource: event.Resource{Version: "v1", Resource: "events", Kind: "Event"}, Namespace: "a", Name: "e"},
			Targets: targets,
			Enrichment: &record.Enrichment{Involved: &record.Involved{
				Resource: event.Resource{Version: "v1", Resource: resource}, Namespace: "a", Name: name, Edits: 1, Object: part,
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := in.Event(1, record.InvolvedObject, payload, "s")
		if err != nil {
			t.Fatal(err)
		}
		return e.InvolvedObject.Annotations["x"]
	}
	if got := shown("secrets", "b", nil); leaks(got) { // it was exposed
		t.Errorf("of a Secret: %s", got)
	}
	routed := []record.Target{{Sink: "s", Routes: "r"}}
	b, c := shown("pods", "b", routed), shown("pods", "c", routed)
	edit := table.Edit(&record.Record{Event: event.Event{Resource: event.Resource{Resource: "pods"}, Namespace: "a", Name: "b"}, Targets: routed}, "s")
	own, err := edit.Object(nil, []byte(`{"metadata":{"name":"b","namespace":"a","annotations":{"x":"hunter2-canary"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if leaks(b) || b == c || annotation(t, string(own)) != b {
		t.Errorf("hashes %s and %s, the object's %s", b, c, own)
	}
}
