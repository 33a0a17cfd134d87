package body

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
)

// oddJSON is a value of any type, with what API servers pass on of custom resources and what no
// server should send.
func oddJSON(rng *rand.Rand, depth int) string {
	keys := []string{"a", "b", "", "a.b/c", `\u0000`, `\ud800`, "__proto__", "metadata", "name", "items", `\"`, "é"}
	switch n := rng.IntN(14); {
	case n < 3 && depth > 0:
		var members []string
		for range rng.IntN(5) {
			members = append(members, `"`+keys[rng.IntN(len(keys))]+`":`+oddJSON(rng, depth-1))
		}
		return "{" + strings.Join(members, ",") + "}"
	case n < 6 && depth > 0:
		var items []string
		for range rng.IntN(4) {
			items = append(items, oddJSON(rng, depth-1))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	scalars := []string{
		"null", "true", "false", "0", "-0", "1", "-1", "1.0", "1e3", "1e400", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
		"123456789012345678901234567890", "0.1", `""`, `"a"`, `"\u0000"`, `"\ud800"`, `"\udc00x"`, `"\u202e"`, "\"\u2028\"", `"2026-01-01T00:00:00Z"`, `"99999-01-01T00:00:00Z"`, `"1Gi"`, `"\\\"/"`,
	}
	return scalars[rng.IntN(len(scalars))]
}

// TestOdd: whatever an object contains, a body is JSON, or the expression fails. It makes the
// same of it again.
func TestOdd(t *testing.T) {
	var bodies []*Body
	for _, text := range []string{
		`object`, `[object, oldObject, patch]`, `json.encode(object)`, `[object.?a, object.?b.?a]`, `object.a`, `string(object.a)`, `int(object.a)`, `double(object.a)`, `[double(object.a)]`,
		`object == oldObject`, `object.a == oldObject.a`, `[object.a == 1, object.a == 1.0, object.a != "a"]`, `object.a < object.b`, `object.a + object.b`, `object.a in object.b`, `"a" in object`,
		`object.map(k, [k, object[k]])`, `object.transformMap(k, v, {k: v})`, `object.transformMapEntry(k, v, {v: k})`, `object.transformList(k, v, v)`, `object.exists(k, object[k] == null)`, `object.a.all(x, x == x)`, `object.a.map(x, x)`, `object.a.map(x, x.a)`, `object.a.filter(x, x.a == 1)`,
		`"%s".format([object])`, `"%s %s".format([object.a, object.b])`, `"%d".format([object.a])`, `"%.2f".format([object.a])`, `"%x".format([object.a])`, `size(object.a)`, `object.a.size()`, `object.a[0]`, `object.a.join(",")`, `object.a.distinct()`, `object.a.sort()`, `object.a.flatten()`, `object.a.flatten(3)`, `object.a.slice(0, 1)`, `object.a.reverse()`,
		`object.a.replace("a", "b")`, `object.a.split("")`, `object.a.substring(1)`, `object.a.charAt(0)`, `object.a.indexOf("a")`, `object.a.upperAscii()`, `strings.quote(object.a)`, `base64.encode(bytes(object.a))`, `base64.decode(object.a)`, `bytes(object.a)`, `string(bytes(object.a))`,
		`timestamp(object.a)`, `timestamp(object.a).getFullYear()`, `quantity(object.a).asInteger()`, `isQuantity(object.a)`, `object.a.matches("^a+$")`, `math.greatest(object.a, object.b)`, `math.ceil(object.a)`, `math.abs(object.a)`, `type(object.a) == int`, `{object.a: 1}`, `{dyn(object.a): object.b, "a": 1}`, `[object.a][0]`, `has(object.a.b)`, `object.?a.orValue(object)`, `object.?a.optMap(x, x)`, `-object.a`, `object.a / object.b`, `object.a % object.b`, `object.a * 2`, `object.a ? 1 : 2`,
		`metadata.labels`, `[metadata.name, metadata.labels, metadata.annotations, metadata.ownerReferences, metadata.finalizers, metadata.generation, metadata.generateName]`, `metadata.creationTimestamp`, `metadata.labels.map(k, metadata.labels[k])`, `event.summary`, `event`, `event.data`, `event.data.object`, `events.map(e, e.object.?a)`, `events.map(e, e.data)`,
	} {
		b, faults := Compile(text, "")
		if faults != nil {
			t.Fatalf("%s: %v", text, faults)
		}
		bodies = append(bodies, b)
	}
	sent := map[int]int{}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(16, seed))
		object := func() json.RawMessage {
			raw := `{"a":` + oddJSON(rng, 4) + `,"b":` + oddJSON(rng, 3) + `,"metadata":` + oddJSON(rng, 3) + `}`
			if rng.IntN(8) == 0 {
				raw = strings.Replace(raw, `"metadata":`, `"metadata":{"labels":{"x":`+oddJSON(rng, 1)+`},"annotations":`+oddJSON(rng, 2)+`,"creationTimestamp":`+oddJSON(rng, 0)+`,"generation":`+oddJSON(rng, 0)+`},"x":`, 1)
			}
			return json.RawMessage(raw)
		}
		e := deployment()
		e.Object, e.OldObject, e.Patch = object(), object(), json.RawMessage(`[{"op":"add","path":"/\u0000","value":`+oddJSON(rng, 3)+`}]`)
		e.Summary = summary.Of(e)
		if strings.ContainsFunc(e.Summary, func(r rune) bool { return r < ' ' || r == '\u2028' || r == '\u202e' }) || len(e.Summary) > 1500 {
			t.Errorf("seed %d: the summary is %q", seed, e.Summary)
		}
		for i, b := range bodies {
			body, contentType, err := b.Join([]*event.Event{e})
			again, _, failed := b.Join([]*event.Event{e})
			if string(body) != string(again) || (err == nil) != (failed == nil) {
				t.Errorf("seed %d, %s: %s, %v and then %s, %v", seed, b.text, body, err, again, failed)
			}
			if err != nil && (strings.Contains(err.Error(), "{") || len(err.Error()) > 2*celexpr.MaxError) {
				t.Errorf("seed %d, %s of %s: the error shows a value as Go has it: %v", seed, b.text, e.Object, err)
			}
			if err != nil || body == nil {
				continue
			}
			sent[i]++
			if contentType == event.ContentTypeJSON && !json.Valid(body) {
				t.Errorf("seed %d, %s of %s: it is no JSON: %s", seed, b.text, e.Object, body)
			}
		}
	}
	for i, b := range bodies {
		if sent[i] == 0 {
			t.Errorf("%s made nothing", b.text)
		}
	}
}
