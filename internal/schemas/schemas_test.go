package schemas

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const pod = `{"components":{"schemas":{
"Pod":{"type":"object","properties":{
  "metadata":{"default":{},"allOf":[{"$ref":"#/components/schemas/Meta"}]},
  "spec":{"$ref":"#/components/schemas/Spec"},
  "any":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"string"}}},
  "raw":{"type":"object"},"untyped":{},
  "template":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"kind":{"type":"string"}}},
  "open":{"type":"object","additionalProperties":true},"closed":{"type":"object","additionalProperties":false,"properties":{"a":{"type":"string"}}},
  "union":{"oneOf":[{"type":"object","properties":{"left":{"type":"string"}}},{"type":"object","properties":{"right":{"type":"string"}}}]}}},
"Meta":{"type":"object","properties":{"name":{"type":"string"},"labels":{"type":"object","additionalProperties":{"type":"string"}}}},
"Spec":{"type":"object","properties":{
  "containers":{"type":"array","items":{"allOf":[{"$ref":"#/components/schemas/Container"}]}},
  "limits":{"type":"object","additionalProperties":{"type":"object","properties":{"cpu":{"type":"string"}}}},
  "children":{"$ref":"#/components/schemas/Spec"}}},
"Container":{"type":"object","properties":{"image":{"type":"string"},"env":{"type":"array","items":{"type":"object","properties":{"value":{"type":"string"}}}}}}
}}}`

func TestHas(t *testing.T) {
	d := &document{}
	if err := json.Unmarshal([]byte(pod), d); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"metadata": true, "metadata.name": true, "metadata.nam": false, `metadata.labels["a.b/c"]`: true, "metadata.labels.a.b": false, "metadata.labels[*]": true,
		"spec.containers[*].image": true, "spec.containers[0].env[*].value": true, "spec.container[*].image": false, "spec.containers.image": false,
		"spec.containers[*].env.value": false, "spec.limits.x.cpu": true, "spec.limits.x.gpu": false, "spec.limits[*].cpu": true,
		"any.thing.at[*].all": true, "raw.a.b": true, "untyped.a[*]": true, "template.spec.x": true, "open.a.b": true, "closed.a": true, "closed.b": false,
		"union.left": true, "union.right": true, "union.middle": false, "spec[*].imag.x": false, "spec[*][*].image": true,
		"spec.children.children.containers[*].image": true, "spec.children.children.image": false,
		"spec.**.value": true, "spec.**.env[*].value": true, "spec.**.env[*].valu": false, "metadata.**.value": true, "**.nothing": true, // below any and raw
		"nothing": false, "metadata.name.first": false,
	} {
		p, err := rawjson.ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		s := &search{d, map[visit]bool{}}
		if got := s.has(d.Components.Schemas["Pod"], StepsOf(p)); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}

// TestUses lists the fields of a configuration with the places that they are named at.
func TestUses(t *testing.T) {
	for expression, want := range map[string]string{
		`object.status.phase == "Failed"`:                                                        "1:14 status.phase",
		`has(object.a.b) && oldObject.c > 1`:                                                     "1:4 a.b, 1:29 c",
		`object.?a.?b.orValue("").c`:                                                             "1:25 a.b.c",
		`object.metadata.labels["a/b"] == object.spec["x"][0].y`:                                 `1:23 metadata.labels["a/b"], 1:53 spec.x[*].y`,
		`object.items.exists(c, c.env.all(e, e.name != ""))`:                                     "1:7 items, 1:25 items[*].env, 1:38 items[*].env[*].name",
		`object.items.exists(i, c, c.image == "")`:                                               "1:7 items, 1:28 items[*].image",
		`object.items.map(object, object.x).size()`:                                              "1:7 items, 1:32 items[*].x",
		`cel.bind(x, object.spec, x.a.b == 1)`:                                                   "1:19 spec, 1:29 spec.a.b",
		"[{'a': object.a}, metadata.name, f(object.b)]\n" + `+ [object[event.type].c, dyn(x).y]`: "1:14 a, 1:42 b, 2:22 [*].c",
		`events.map(e, e.object.spec.x + e.event.id)`:                                            "1:28 spec.x",
		`object == oldObject`:                                                                    "",
	} {
		c := &config.Config{
			Watches: []config.Watch{{Name: "w", Drop: []string{"a.b"}, Redact: []string{"c[*]"}, FieldSelector: "spec.nodeName=x"}},
			Routes:  []config.Route{{Watches: []string{"w"}, When: expression, Changed: []string{"spec"}, Sinks: []string{"s"}, Metric: &config.RouteMetric{Labels: map[string]string{"l": expression}}}},
			Sinks:   []config.Sink{{Name: "s", Body: expression}, {Name: "other"}},
		}
		uses, err := Uses(c)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, u := range uses {
			if len(u.Scopes) != 1 || len(u.Scopes[0].Watches) != 1 {
				t.Errorf("%s is about %v", u.At, u.Scopes)
			}
			text := u.Name
			if u.Line > 0 {
				text = fmt.Sprintf("%d:%d %s", u.Line, u.Column, u.Name)
			}
			got[u.At] = append(got[u.At], text)
		}
		for at, want := range map[string]string{
			"watches[0].drop[0]": "a.b", "watches[0].redact[0]": "c[*]", "watches[0].fieldSelector": "spec.nodeName",
			"routes[0].changed[0]": "spec", "routes[0].when": want, "routes[0].metric.labels.l": want, "sinks[0].body": want,
		} {
			if got := strings.Join(got[at], ", "); got != want {
				t.Errorf("%s of %s: %s, want %s", at, expression, got, want)
			}
		}
	}
}

// No expression makes the search for its fields panic.
func FuzzUses(f *testing.F) {
	for _, text := range []string{
		`has(object.a.b) && oldObject.c > 1`, `object.?a[?"b"].orValue("").c`, `object.items.exists(i, c, c.image == "")`, `cel.bind(x, object.spec, x.a.b == 1)`,
		`events.map(e, e.object.spec.x)`, `object.m.transformMap(k, v, v.a)`, `[object].sortBy(o, o.a)`, `object[object[0].x]`, `value() + object.value()`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := &config.Config{Sinks: []config.Sink{{Name: "s", Body: text}}}
		uses, err := Uses(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range uses {
			if u.Line < 1 || u.Column < 1 || u.Name == "" || len(u.Field) == 0 {
				t.Errorf("%q: %+v", text, u)
			}
		}
	})
}
