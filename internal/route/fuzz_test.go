package route

import (
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// No text makes compiling or evaluating panic, and what compiles is bounded.
func FuzzWhen(f *testing.F) {
	for _, when := range []string{
		`object.status.phase == "Failed"`, `metadata.labels.app in ["a", "b"]`, `object.a.exists(x, x.y == 1)`, `quantity("1").isLessThan(quantity(object.q))`,
		`has(object.a.b) ? object.a.b : false`, `cel.bind(x, object.a, x == x)`, `object.?a.?b.orValue(true)`, `event.time > timestamp("2020-01-01T00:00:00Z")`,
		`object.list.exists(i, v, i == v.n)`, `object.list.sortBy(a, a.n)[0].n == 0`, `ip("10.0.0.1") in object`, "\x00", `((((`, " ", "\n", `"\u{110000}"`, `'''a`,
	} {
		f.Add(when)
	}
	o := newObjects(f)
	obj, old := o.from(failedPod), o.from(hugeObject(1000, 50))
	x, err := newExpressions(limits{cost: 20_000, memory: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, when string) {
		c, faults := x.compile(when)
		if (c == nil) == (len(faults) == 0) {
			t.Fatalf("neither compiled nor refused, or both: %v", faults)
		}
		for _, fault := range faults {
			if fault.line < 1 || fault.column < 1 || fault.msg == "" {
				t.Errorf("fault %+v", fault)
			}
		}
		if c == nil {
			return
		}
		e := newEvaluation(x.views)
		e.reset(change(event.Updated, old, obj), 0)
		_, missing, err := c.eval(e)
		if missing && err == nil {
			t.Error("missing without an error")
		}
		if err != nil && strings.HasPrefix(err.Error(), "internal error") {
			t.Error(err)
		}
	})
}

// Whatever the object, a canary under `data` never comes out of the edits of Secrets.
func FuzzSecretEdits(f *testing.F) {
	f.Add(secretWith("x"))
	f.Add(`{"data":{"a":["x"]}}`)
	f.Add(`{"data":null,"stringData":[1,{"a":2}]}`)
	edits, err := DefaultEdits().Func(secrets(), testKey())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if out, err := edits(nil, []byte(raw)); err == nil {
			if _, err := rawjson.Scan(out); err != nil && !strings.Contains(err.Error(), "wrong type") && !strings.Contains(err.Error(), "metadata") {
				t.Errorf("%q becomes what is no object: %q: %v", raw, out, err)
			}
			for _, part := range []string{"data", "stringData"} {
				p, err := rawjson.ParsePath(part + "[*]")
				if err != nil {
					t.Fatal(err)
				}
				for v := range rawjson.Values(out, p) {
					if !strings.HasPrefix(string(v), `"`+redactedPrefix) {
						t.Errorf("%q leaves %q", raw, v)
					}
				}
			}
		}
	})
}
