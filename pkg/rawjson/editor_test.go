package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// wrap replaces a value by an object that holds it, so that a test sees what a rule was given.
func wrap(dst, value []byte, _ *Place) []byte {
	return append(append(append(dst, `{"was":`...), value...), '}')
}

func stars(dst, _ []byte, _ *Place) []byte { return append(dst, `"***"`...) }

func mustEditor(t testing.TB, rules ...Rule) *Editor {
	t.Helper()
	e, err := NewEditor(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEditor(t *testing.T) {
	for _, test := range []struct {
		raw, want string
		rules     []Rule
	}{
		{`{"a":1,"b":2}`, `{"a":1,"b":2}`, nil},
		{" {\"a\": [1 ,2]}\n", `{"a": [1 ,2]}`, nil},
		{`{"a":1,"b":2,"c":3}`, `{"b":2,"c":3}`, []Rule{{Path: "a"}}},
		{`{"a":1,"b":2,"c":3}`, `{"a":1,"c":3}`, []Rule{{Path: "b"}}},
		{`{"a":1,"b":2,"c":3}`, `{"a":1,"b":2}`, []Rule{{Path: "c"}}},
		{`{"a":1,"b":2,"c":3}`, `{"a":1}`, []Rule{{Path: "b"}, {Path: "c"}}},
		{`{"a":1,"b":2,"c":3}`, `{}`, []Rule{{Path: "b"}, {Path: "c"}, {Path: "a"}}},
		{`{"a":1,"b":2,"c":3}`, `{}`, []Rule{{Path: "*"}}},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 }`, `{ "a" : 1 }`, []Rule{{Path: "b"}, {Path: "c"}}},
		{`{"a":{"b":{"c":1},"d":2}}`, `{"a":{"d":2}}`, []Rule{{Path: "a.b"}}},
		{`{"a":[{"x":1,"y":2},{"y":3},4,[]]}`, `{"a":[{"x":1},{},4,[]]}`, []Rule{{Path: "a[*].y"}}},
		{`{"a":[1,2,3]}`, `{"a":[1,3]}`, []Rule{{Path: "a[1]"}}},
		{`{"a":[1,2,3]}`, `{"a":[2]}`, []Rule{{Path: "a[0]"}, {Path: "a[2]"}}},
		{`{"a":[1,2,3]}`, `{"a":[]}`, []Rule{{Path: "a[*]"}}},
		{`{"a":{"0":1}}`, `{"a":{"0":1}}`, []Rule{{Path: "a[0]"}}},
		{`{"a":[1]}`, `{"a":[1]}`, []Rule{{Path: `a["0"]`}}},
		{`{"a":1}`, `{"a":1}`, []Rule{{Path: "a.b.c"}}},
		{`{"\u0061":{"b.c":"d"},"e":1}`, `{"\u0061":{},"e":1}`, []Rule{{Path: `a["b.c"]`}}},
		{`{"a":1,"a":2,"b":3}`, `{"b":3}`, []Rule{{Path: "a"}}},
		{`{"a":"x","b":[true,null]}`, `{"a":{"was":"x"},"b":{"was":[true,null]}}`, []Rule{{"a", wrap}, {"b", wrap}}},
		{`{"data":{"p":"1","q":"2"}}`, `{"data":{"p":"***","q":"***"}}`, []Rule{{"data[*]", stars}}},
		{`{"data":{"p":"1","q":"2"}}`, `{"data":{"p":"***","q":"***"}}`, []Rule{{"data.*", stars}}},
		// A named step and a wildcard, in either order, and with more below.
		{`{"data":{"p":"1","q":"2"}}`, `{"data":{"q":"***"}}`, []Rule{{"data[*]", stars}, {Path: "data.p"}}},
		{`{"data":{"p":"1","q":"2"}}`, `{"data":{"q":"***"}}`, []Rule{{Path: "data.p"}, {"data[*]", stars}}},
		{`{"a":{"p":{"x":1,"y":2},"q":{"x":3,"y":4}}}`, `{"a":{"p":{},"q":{"y":4}}}`, []Rule{{Path: "a.p.y"}, {Path: "a[*].x"}}},
		{`{"a":[{"x":1,"y":2},{"x":3,"y":4}]}`, `{"a":[{},{"y":4}]}`, []Rule{{Path: "a[0].y"}, {Path: "a[*].x"}}},
		// Any depth, none included; twice in one path; beside a named step.
		{`{"v":1,"a":{"v":2,"b":[{"v":3},[{"v":4}]]}}`, `{"a":{"b":[{},[{}]]}}`, []Rule{{Path: "**.v"}}},
		{`{"v":1,"a":{"v":2,"b":[{"v":3}]}}`, `{"v":1,"a":{"b":[{}]}}`, []Rule{{Path: "a.**.v"}}},
		{`{"env":[{"value":1}],"a":{"env":[{"value":2,"x":3}]}}`, `{"env":[{"value":"***"}],"a":{"env":[{"value":"***","x":3}]}}`, []Rule{{"**.env[*].value", stars}}},
		{`{"a":{"a":{"a":{"v":1},"v":2},"b":{"v":3}}}`, `{"a":{"a":{"a":{"v":"***"},"v":"***"},"b":{"v":3}}}`, []Rule{{"**.a.**.a.v", stars}}},
		{`{"a":{"v":1,"b":2},"c":{"b":3}}`, `{"a":{"v":"***"},"c":{}}`, []Rule{{Path: "**.b"}, {"a.v", stars}}},
		{`{"a":[1,[2]]}`, `{"a":[]}`, []Rule{{Path: "**[*][*]"}}},
		// Outer over inner, drop over Replace, first over second.
		{`{"a":{"b":1,"c":2}}`, `{"a":{"was":{"b":1,"c":2}}}`, []Rule{{Path: "a.b"}, {"a", wrap}}},
		{`{"a":{"b":1,"c":2}}`, `{}`, []Rule{{"a.b", wrap}, {"a", wrap}, {Path: "a"}}},
		{`{"a":1}`, `{"a":"***"}`, []Rule{{"a", stars}, {"a", wrap}}},
		{`{"a":1}`, `{"a":"***"}`, []Rule{{"a", stars}, {"*", wrap}}},
		{`{"a":1}`, `{"a":{"was":1}}`, []Rule{{"*", wrap}, {"a", stars}}},
	} {
		got, err := mustEditor(t, test.rules...).Append([]byte("kept"), []byte(test.raw))
		if err != nil || string(got) != "kept"+test.want {
			t.Errorf("%s with %v:\n got %s, %v\nwant kept%s", test.raw, paths(test.rules), got, err, test.want)
		}
	}
}

func paths(rules []Rule) []string {
	var out []string
	for _, r := range rules {
		out = append(out, r.Path)
	}
	return out
}

func TestEditorRefuses(t *testing.T) {
	e := mustEditor(t, Rule{Path: "a.b"}, Rule{Path: "c[*]"})
	for _, raw := range []string{``, `[]`, `1`, `{`, `{"a":{"b":1}`, `{"a":{"b":}}`, `{"a":{"b":1,}}`, `{"a":{"b":1]}`, `{"c":[1}`, `{"c":[1,]}`, `{"c":[,]}`, `{}}`, `{} x`} {
		got, err := e.Append([]byte("kept"), []byte(raw))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || string(got) != "kept" {
			t.Errorf("%s: got %s, %v", raw, got, err)
		}
	}
	for name, replace := range map[string]func(dst, value []byte, at *Place) []byte{
		"nothing":      func(dst, _ []byte, _ *Place) []byte { return dst },
		"two values":   func(dst, _ []byte, _ *Place) []byte { return append(dst, "1 2"...) },
		"no JSON":      func(dst, _ []byte, _ *Place) []byte { return append(dst, "x"...) },
		"cuts off dst": func([]byte, []byte, *Place) []byte { return nil },
	} {
		if got, err := mustEditor(t, Rule{"a", replace}).Append(nil, []byte(`{"a":1}`)); !errors.Is(err, errReplacement) || len(got) != 0 {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	if _, err := NewEditor(Rule{Path: "a..b"}); err == nil {
		t.Error("took a path that is none")
	}
}

func TestAppendTyped(t *testing.T) {
	for raw, want := range map[string]string{
		`{"metadata":{}}`: `{"kind":"Pod","apiVersion":"v1","metadata":{}}`,
		`{}`:              `{"kind":"Pod","apiVersion":"v1"}`,
		` { } `:           `{"kind":"Pod","apiVersion":"v1" }`,
		`{"drop":1}`:      `{"kind":"Pod","apiVersion":"v1"}`,
		`{"apiVersion":"v2","metadata":{},"drop":1}`: `{"kind":"Pod","apiVersion":"v2","metadata":{}}`,
		`{"metadata":{},"kind":"Node"}`:              `{"apiVersion":"v1","metadata":{},"kind":"Node"}`,
		`{"metadata":{"kind":"x","apiVersion":"y"}}`: `{"kind":"Pod","apiVersion":"v1","metadata":{"kind":"x","apiVersion":"y"}}`,
	} {
		got, err := mustEditor(t, Rule{Path: "drop"}).AppendTyped([]byte("kept"), []byte(raw), "v1", "Pod")
		if err != nil || string(got) != "kept"+want {
			t.Errorf("%s:\n got %s, %v\nwant kept%s", raw, got, err, want)
		}
	}
	// An item of a list becomes, byte for byte, what the watch sends of the same object.
	item := []byte(`{"metadata":{"name":"a"},"spec":{}}`)
	watched := []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}`)
	if got, err := mustEditor(t).AppendTyped(nil, item, "v1", "Pod"); err != nil || !bytes.Equal(got, watched) {
		t.Errorf("got %s, %v", got, err)
	}
	got, err := mustEditor(t).AppendTyped(nil, []byte(`{}`), "a/\"\\\x01ü\xff", "")
	var decoded map[string]string
	if err != nil || json.Unmarshal(got, &decoded) != nil || decoded["apiVersion"] != "a/\"\\\x01ü\ufffd" {
		t.Errorf("got %s, %v", got, err)
	}
}

// oracle applies rules to decoded JSON, rule by rule at each value, with none of the Editor's machinery.
type oracle struct {
	rules []Rule
	paths []Path
}

var gone = new(int)

func (o *oracle) edit(v any, at []step) any {
	var replace func(dst, value []byte, at *Place) []byte
	for i, p := range o.paths {
		if !matches(p.steps, at) {
			continue
		}
		if o.rules[i].Replace == nil {
			return gone
		}
		if replace == nil {
			replace = o.rules[i].Replace
		}
	}
	if replace != nil {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return decodeJSON(replace(nil, text, nil))
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if y := o.edit(x, append(slices.Clip(at), step{kind: stepKey, key: k})); y != any(gone) {
				out[k] = y
			}
		}
		return out
	case []any:
		out := []any{}
		for i, x := range v {
			if y := o.edit(x, append(slices.Clip(at), step{kind: stepIndex, index: i})); y != any(gone) {
				out = append(out, y)
			}
		}
		return out
	}
	return v
}

func matches(p, at []step) bool {
	if len(p) == 0 || len(at) == 0 {
		return len(p) == len(at)
	}
	if p[0].kind == stepDeep {
		return matches(p[1:], at) || matches(p, at[1:])
	}
	return (p[0].kind == stepAny || p[0] == at[0]) && matches(p[1:], at[1:])
}

// decodeJSON decodes with numbers as they are written; nil if raw is not one JSON value.
func decodeJSON(raw []byte) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil
	}
	return v
}

func FuzzEditor(f *testing.F) {
	f.Add([]byte(`{"metadata":{"managedFields":[{}],"annotations":{"a.b/c":"d"}},"spec":{"containers":[{"env":[{"name":"N","value":"v"}]}]}}`),
		"metadata.managedFields\n"+`metadata.annotations["a.b/c"]`+"\n=spec.containers[*].env[*].value")
	f.Add([]byte(`{"a":{"b":[1,{"c":2}],"\u0062":3},"b":null}`), "a.b\n=a[*]\na.b[1].c")
	f.Add([]byte(`{ "a" : 1 , "b" : [ 1 , 2 ] }`), "*\n=b[0]")
	f.Add([]byte(`{"a":{"a":[{"a":{"b":1}}]},"b":2}`), "=**.a.**.b\n**.a[*].*.b\na.**[*]")
	f.Add([]byte(`{"a":[{"x":1,"y":2},{"x":3}]}`), "a[0].y\n=a[*].x")
	f.Fuzz(func(t *testing.T, raw []byte, lines string) {
		var o oracle
		for line := range strings.SplitSeq(lines, "\n") {
			r := Rule{Path: strings.TrimPrefix(line, "=")}
			if r.Path != line {
				r.Replace = wrap
			}
			if p, err := ParsePath(r.Path); err == nil {
				o.rules, o.paths = append(o.rules, r), append(o.paths, p)
			}
		}
		got, err := mustEditor(t, o.rules...).AppendTyped(nil, raw, "", "")
		decoded, object := decodeJSON(raw).(map[string]any)
		if (err == nil) != (object && json.Valid(raw)) {
			t.Fatalf("%q: %v", raw, err)
		}
		if err != nil {
			return
		}
		if want := o.edit(decoded, nil); !reflect.DeepEqual(decodeJSON(got), want) {
			t.Errorf("%q with %q: got %s, want %v", raw, paths(o.rules), got, want)
		}
	})
}

// Wildcards beside named keys match one value by many paths; an editor stays as large as
// its paths, and an edit visits each value once.
func TestManyWildcards(t *testing.T) {
	var rules []Rule
	raw := "1"
	for i := range 24 {
		steps := slices.Repeat([]string{"*"}, 24)
		steps[i] = fmt.Sprintf("k%d", i)
		rules = append(rules, Rule{strings.Join(steps, "."), stars}, Rule{Path: "**." + steps[i] + ".**.none"})
		raw = fmt.Sprintf(`{"k%d":%s,"x":[]}`, 23-i, raw)
	}
	want := strings.Replace(raw, `:1,"x":[]`, `:"***","x":"***"`, 1)
	var e *Editor
	if n := testing.AllocsPerRun(1, func() { e = mustEditor(t, rules...) }); n > 5000 {
		t.Errorf("an editor of %d paths takes %v allocations", len(rules), n)
	}
	got, err := e.Append(nil, []byte(raw))
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	if e.Hits(0) != 2 || e.Hits(1) != 0 {
		t.Errorf("%d and %d hits", e.Hits(0), e.Hits(1))
	}
}

// A rule sees the object, its name and the path of the value.
// The form of a long path is short, made once for the values of one array, and of that path alone.
func TestLongPlaces(t *testing.T) {
	key, deep := strings.Repeat("k", 2*maxForm), strings.Repeat(`{"a":`, 900)
	forms := map[string]int{}
	var made [][]byte
	e := mustEditor(t, Rule{"**.v", func(dst, value []byte, at *Place) []byte {
		form := at.AppendPath(nil)
		if len(form) > 2*maxForm {
			t.Errorf("a form of %d bytes", len(form))
		}
		if forms[string(form)]++; len(at.long) > 1 {
			made = append(made, at.long[len(at.long)-2].form)
		}
		return append(dst, value...)
	}})
	raw := `{"` + key + `":[{"v":1},{"v":2}],"` + key + `x":[{"v":1},[{"v":1}]],"d":` + deep + `[{"v":1},{"v":1}]` + strings.Repeat("}", 900) + `}`
	for range 2 {
		if _, err := e.Append(nil, []byte(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if len(forms) != 4 || len(made) != 12 {
		t.Errorf("%d forms of four paths, %d long ones", len(forms), len(made))
	}
	if &made[0][0] != &made[1][0] || &made[4][0] != &made[5][0] {
		t.Error("the form of an array is made for each item")
	}
}

func TestPlace(t *testing.T) {
	raw := `{"a":{"0":1,"b.c":[[1],{"d":1}]},"metadata":{"name":"n","namespace":"s","labels":{"l":"x"}}}`
	seen := map[string]int{}
	var memos int
	see := func(dst, value []byte, at *Place) []byte {
		if at.Memo == nil {
			at.Memo = true
			memos++
		}
		namespace, name := at.Of()
		seen[fmt.Sprintf("%s/%s %s %d", namespace, name, at.AppendPath(nil), len(at.Object))]++
		return append(dst, value...)
	}
	e := mustEditor(t, Rule{`a["0"]`, see}, Rule{"**[*].d", see}, Rule{`a["b.c"][0][0]`, see}, Rule{"metadata.labels[*]", see})
	for range 2 {
		if _, err := e.Append(nil, []byte(raw)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{`"a"[]`, `"a""b.c"[][]`, `"a""b.c"[]"d"`, `"metadata""labels""l"`} {
		if key := fmt.Sprintf("s/n %s %d", path, len(raw)); seen[key] != 2 {
			t.Errorf("%s is not among %v", key, seen)
		}
	}
	if memos != 2 {
		t.Errorf("%d memos for two objects", memos)
	}
	clear(seen)
	if _, _, err := e.AppendAt(nil, "s", "n", []string{"a", "b.c", "-"}, []byte(`{"d":1}`)); err != nil || seen[`s/n "a""b.c"[]"d" 0`] != 0 {
		t.Errorf("%v, %v", seen, err)
	}
	e = mustEditor(t, Rule{"**[*].d", see})
	if _, _, err := e.AppendAt(nil, "s", "n", []string{"a", "b.c", "-"}, []byte(`{"d":1}`)); err != nil || seen[`s/n "a""b.c"[]"d" 0`] != 1 {
		t.Errorf("%v, %v", seen, err)
	}
}

func TestAppendAt(t *testing.T) {
	e := mustEditor(t, Rule{Path: "a.drop"}, Rule{"a.hash", stars}, Rule{"b[*].v", stars}, Rule{"c[1].v", stars})
	for _, test := range []struct {
		tokens, value, want string
		fate                Fate
	}{
		{"a x", `1`, `1`, Kept},
		{"a", `{"drop":1,"hash":2,"x":3}`, `{"hash":"***","x":3}`, Kept},
		{"a drop", `1`, ``, Dropped},
		{"a drop deep er", `1`, ``, Dropped},
		{"a hash", `{"x":1}`, `"***"`, Kept},
		{"a hash x", `1`, ``, Unknown},
		{"b -", `{"v":1}`, `{"v":"***"}`, Kept},
		{"b 7 v", `1`, `"***"`, Kept},
		{"c 7 v", `1`, ``, Unknown},
		{"c x", `1`, `1`, Kept},
		{"z y x", `[1]`, `[1]`, Kept},
		{"a drop", ``, ``, Dropped},
		{"a hash", ``, ``, Kept},
	} {
		var value []byte
		if test.value != "" {
			value = []byte(test.value)
		}
		out, fate, err := e.AppendAt([]byte("."), "", "", strings.Fields(test.tokens), value)
		if err != nil || fate != test.fate || string(out) != "."+test.want {
			t.Errorf("%s = %s: %s, fate %d, %v", test.tokens, test.value, out, fate, err)
		}
	}
	for _, value := range []string{`{"drop"`, `1 2`, ``} {
		if out, _, err := e.AppendAt([]byte("."), "", "", []string{"a"}, []byte(value)); err == nil || string(out) != "." {
			t.Errorf("%q: %s, %v", value, out, err)
		}
	}
}
