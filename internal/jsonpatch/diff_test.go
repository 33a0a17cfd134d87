package jsonpatch

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"pgregory.net/rapid"
)

func TestDiff(t *testing.T) {
	for _, tc := range []struct{ a, b, want string }{
		{`{"a":1}`, `{"a":1}`, `[]`},
		{`{"a":1,"b":{"c":2}}`, `{ "b":{"c":2},"a":1 }`, `[]`},
		{`{"a":"x"}`, `{"a":"\u0078"}`, `[]`},
		{`{"a":1,"b":{"c":[1,2,3],"d":1}}`, `{"a":2,"b":{"c":[1,2]},"e":null}`, `[{"op":"replace","path":"/a","value":2},{"op":"remove","path":"/b/c/2"},{"op":"remove","path":"/b/d"},{"op":"add","path":"/e","value":null}]`},
		{`{"a/b~c":1}`, `{"a/b~c":2,"<é>":"<&>"}`, `[{"op":"add","path":"/<é>","value":"<&>"},{"op":"replace","path":"/a~1b~0c","value":2}]`},
		{`{"a":12345678901234567890}`, `{"a":12345678901234567891}`, `[{"op":"replace","path":"/a","value":12345678901234567891}]`},
		{`{"a":[1]}`, `{"a":{"b":1}}`, `[{"op":"replace","path":"/a","value":{"b":1}}]`},
		{`{"a":[1]}`, `{"a":[1,{"b":2}]}`, `[{"op":"add","path":"/a/-","value":{"b":2}}]`},
		{`{"metadata":{"resourceVersion":"1","managedFields":[1],"name":"a"}}`, `{"metadata":{"resourceVersion":"2","name":"b","managedFields":[2]}}`, `[{"op":"replace","path":"/metadata/name","value":"b"}]`},
		{`{"metadata":{"resourceVersion":"1"}}`, `{"metadata":{"resourceVersion":"2","managedFields":[]}}`, `[]`},
		{`{"a":{"metadata":{"resourceVersion":"1"}},"resourceVersion":1}`, `{"a":{"metadata":{"resourceVersion":"2"}},"resourceVersion":2}`, `[{"op":"replace","path":"/a/metadata/resourceVersion","value":"2"},{"op":"replace","path":"/resourceVersion","value":2}]`},
		{`{}`, `{"":{"":1}}`, `[{"op":"add","path":"/","value":{"":1}}]`},
	} {
		got, err := Diff([]byte(tc.a), []byte(tc.b))
		if err != nil || string(got) != tc.want {
			t.Errorf("from %s to %s: %v\n got %s\nwant %s", tc.a, tc.b, err, got, tc.want)
		}
	}
	for _, bad := range []string{`{"a":`, `{"a":1}}`} {
		if got, err := Diff([]byte(`{"a":{"b":1}}`), []byte(bad)); err == nil && string(got) == "[]" {
			t.Errorf("to %s there is a patch: %s", bad, got)
		}
	}
}

// The patch of small objects whose values have long paths is not much longer than they are.
func TestDiffOfLongPaths(t *testing.T) {
	numbers := func(n string) string { return "[" + strings.Repeat(n+",", 20_000) + n + "]" }
	for name, wrap := range map[string][2]string{
		"deep objects": {strings.Repeat(`{"a":`, 3000), strings.Repeat("}", 3000)},
		"deep arrays":  {strings.Repeat("[", 3000), strings.Repeat("]", 3000)},
		"a long key":   {`{"` + strings.Repeat("k", 20_000) + `":`, "}"},
	} {
		object := func(revision, n string) []byte {
			return []byte(`{"metadata":{"resourceVersion":"` + revision + `","a/b":` + n + `,"same":1},"x~":` + wrap[0] + numbers(n) + wrap[1] + `,"y` + n + `":1,"same":2}`)
		}
		before, after := object("1", "1"), object("2", "2")
		text, err := Diff(before, after)
		want := `[{"op":"replace","path":"/metadata/a~1b","value":2},{"op":"replace","path":"/x~0","value":` + wrap[0] + numbers("2") + wrap[1] + `},{"op":"remove","path":"/y1"},{"op":"add","path":"/y2","value":1}]`
		if err != nil || string(text) != want {
			t.Errorf("%s: %d bytes, %v: %.200s", name, len(text), err, text)
		}
	}
}

// A patch leads from one object to the other.
func TestDiffApplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := object(t, "a", 3)
		b := object(t, "b", 3)
		if rapid.Bool().Draw(t, "related") {
			b = mutate(t, a, 3)
		}
		before, after := encode(t, a), encode(t, b)
		text, err := Diff(before, after)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `"op":"test"`) {
			t.Fatalf("tests in %s", text)
		}
		patch, err := jsonpatch.DecodePatch(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := patch.Apply(before)
		if err != nil {
			t.Fatalf("%s to %s by %s: %v", before, after, text, err)
		}
		var x, y any
		for raw, to := range map[*any][]byte{&x: got, &y: after} {
			d := json.NewDecoder(bytes.NewReader(to))
			d.UseNumber()
			if err := d.Decode(raw); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("%s by %s gives %s, want %s", before, text, got, after)
		}
	})
}

func encode(t *rapid.T, v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func key(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "a/b", "~", "é\"", "d"}).Draw(t, "key")
}

func value(t *rapid.T, depth int) any {
	kinds := 5
	if depth > 0 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"", "x", "y<", "\n"}).Draw(t, "text")
	case 1:
		return rapid.Int64().Draw(t, "int")
	case 2:
		return rapid.Bool().Draw(t, "bool")
	case 3:
		return nil
	case 4:
		return rapid.Float64Range(-10, 10).Draw(t, "float")
	case 5:
		items := make([]any, rapid.IntRange(0, 4).Draw(t, "length"))
		for i := range items {
			items[i] = value(t, depth-1)
		}
		return items
	}
	return object(t, "object", depth-1)
}

func object(t *rapid.T, _ string, depth int) map[string]any {
	m := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		m[key(t)] = value(t, depth)
	}
	return m
}

// mutate copies an object with a few changes.
func mutate(t *rapid.T, m map[string]any, depth int) map[string]any {
	out := map[string]any{}
	for _, k := range []string{"a", "b", "c", "a/b", "~", "é\"", "d"} {
		v, ok := m[k]
		if !ok {
			continue
		}
		switch rapid.IntRange(0, 5).Draw(t, "change") {
		case 0:
		case 1:
			out[k] = value(t, depth-1)
		default:
			if inner, isObject := v.(map[string]any); isObject {
				v = mutate(t, inner, depth-1)
			}
			out[k] = v
		}
	}
	return out
}

// FuzzDiff: a patch of any two objects is valid JSON, and leads from one to the other.
func FuzzDiff(f *testing.F) {
	f.Add(`{"a":[1,{"b":2}],"c":"\u0041"}`, `{"a":[{"b":3}],"c~/":null}`)
	f.Add(`{"metadata":{"resourceVersion":"1","name":"a"}}`, `{"metadata":{"resourceVersion":"2","name":"b"}}`)
	f.Add(`{"a":1e3,"":{"":[]}}`, `{"a":1000}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		text, err := Diff([]byte(a), []byte(b))
		if err != nil {
			return
		}
		if !json.Valid([]byte(a)) || !json.Valid([]byte(b)) {
			return // it may stop at the first difference
		}
		if !json.Valid(text) {
			t.Errorf("from %s to %s: %s", a, b, text)
		}
	})
}

func BenchmarkDiff(b *testing.B) {
	before, err := os.ReadFile(filepath.Join("..", "route", "testdata", "pod.json"))
	if err != nil {
		b.Fatal(err)
	}
	after := bytes.Replace(before, []byte(`"phase":"Running"`), []byte(`"phase":"Failed"`), 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Diff(before, after); err != nil {
			b.Fatal(err)
		}
	}
}
