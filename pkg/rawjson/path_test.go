package rawjson

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestParsePath(t *testing.T) {
	for path, steps := range map[string]int{
		"a": 1, "metadata.managedFields": 2, `metadata.annotations["a.b/c"]`: 3, "spec.containers[*].env[*].value": 6, "data[*]": 2, "data.*": 2,
		"*": 1, "[*]": 1, "a[0]": 2, `["a"]`: 1, `["a\"\\b"].c`: 2, `a["*"]`: 2, `a[""]`: 2, "a-b/c:d.e": 2, `a["ü"][12][*]`: 4,
		"**.a": 2, "a.**.b.**[*].c": 6, `a["**"]`: 2,
	} {
		p, err := ParsePath(path)
		if err != nil || len(p.steps) != steps {
			t.Errorf("%s: got %d steps, %v, want %d", path, len(p.steps), err, steps)
			continue
		}
		again, err := ParsePath(p.String())
		if err != nil || !slices.Equal(again.steps, p.steps) {
			t.Errorf("%s: String gives %s, which is %v, %v", path, p, again.steps, err)
		}
		if p.Wildcard() != strings.Contains(strings.NewReplacer(`["*"]`, "", `["**"]`, "").Replace(path), "*") {
			t.Errorf("%s: Wildcard is %t", path, p.Wildcard())
		}
	}
	for path, message := range map[string]string{
		"":                        "a key is missing",
		".a":                      "begins with a key, such as spec.replicas, without a dot",
		"{.a}":                    "not a JSONPath expression",
		"$.a":                     "not a JSONPath expression",
		"a.":                      "a key is missing",
		"a..b":                    "at byte 1: a key is missing",
		"a.[0]":                   "a key is missing",
		"a b":                     `' ' must be written as ["key"]`,
		`a"b`:                     `'"' must be written as ["key"]`,
		"a]":                      `']' must be written as ["key"]`,
		"a[0":                     "closing ] is missing",
		"a[0]b":                   "expected . or [, not 'b'",
		"a[x]":                    `[x] is neither`,
		"a[-1]":                   `[-1] is neither`,
		"a[]":                     `[] is neither`,
		"a[99999999999999999999]": "is neither",
		`a["b`:                    `closing " is missing`,
		`a["b"`:                   "closing ] is missing",
		`a["b\n"]`:                `followed by " or \`,
		`a["b\`:                   `followed by " or \`,
		"a.**":                    "after ** comes the name",
		"a.**.**.b":               "after ** comes the name",
	} {
		_, err := ParsePath(path)
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: got %v, want %q", path, err, message)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, test := range []struct {
		p, q string
		want bool
	}{
		{"a", "a", true},
		{"a", "a.b", true},
		{"a.b", "a", false},
		{"*", "a.b", true},
		{"a.c", "a[*]", true},
		{"b", "a.b", false},
		{"**.b", "a.b", true},
		{"**.b", "b", true},
		{"**.b", "a.b.c", true},
		{"**.b", "a.c", false},
		{"a.**.c", "a.b.b.c", true},
		{"a.**.c", "b.c", false},
		{"**.a.**.d", "x.a.b.c.d", true},
		{"**[*]", "a.b", true},
		{"**.b.*", "a.b", false},
	} {
		p, err := ParsePath(test.p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParsePath(test.q)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Covers(q); got != test.want {
			t.Errorf("%s covers %s: %t", p, q, got)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add(`metadata.annotations["a.b/c"][*].d[3]`)
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		again, err := ParsePath(p.String())
		if err != nil || !slices.Equal(again.steps, p.steps) {
			t.Errorf("%q: String gives %q, which is %v, %v", s, p, again.steps, err)
		}
	})
}

func TestLookup(t *testing.T) {
	raw := []byte(` {"spec":{"containers":[{"image":"a","env":[]},{"image":"b"}],"re\u0070licas": 3 ,"x":null},"a.b":{"c":"d"},"spec":{"replicas":4}}`)
	for path, want := range map[string]string{
		"spec.replicas": "3", "spec.x": "null", `["a.b"].c`: `"d"`, "spec.containers[1].image": `"b"`, "spec.containers[*].image": `"a" "b"`,
		"spec.containers[0].env": "[]", "spec.containers[0].env[*]": "", "spec.none": "", "spec.containers.image": "", "spec.replicas.x": "", "spec[0]": "",
		"[*].c": `"d"`, "spec.containers[2]": "",
	} {
		p, err := ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		var all [][]byte
		for v := range Values(raw, p) {
			all = append(all, v)
		}
		if p.String() == "spec.replicas" {
			want = "3 4"
		}
		if got := string(bytes.Join(all, []byte(" "))); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
		first, ok := Lookup(raw, p)
		if ok != (len(all) > 0) || ok && !bytes.Equal(first, all[0]) {
			t.Errorf("%s: Lookup gave %s, %t", path, first, ok)
		}
	}
	if _, ok := Lookup(raw, Path{}); ok {
		t.Error("the zero path named a value")
	}
}

// TestLookupBrokenJSON gives Lookup every beginning of an object: it must end, and not panic.
func TestLookupBrokenJSON(t *testing.T) {
	raw := []byte(`{"a":[{"b":"\u00e9","c":[true,-1.5e3]},{"b":{}}],"d":{"e":null}}`)
	for _, path := range []string{"a[*].b", "a[1].b", "d.e", "[*][*]", "x.y"} {
		p, err := ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		for n := range raw {
			for range Values(raw[:n], p) {
				continue
			}
		}
	}
}

func TestMembers(t *testing.T) {
	for raw, want := range map[string][]string{
		`{}`: nil,
		` { "a" : 1 , "b\n":[ {"c":2}, 3 ],"":null} `: {"a", "1", "b\n", `[ {"c":2}, 3 ]`, "", "null"},
		`{"a":{"a":1},"a":2}`:                         {"a", `{"a":1}`, "a", "2"},
		`[1]`:                                         nil,
		`"a"`:                                         nil,
		``:                                            nil,
		`{"a":1,`:                                     {"a", "1"},
		`{"a":1 "b":2}`:                               {"a", "1"},
		`{"a":`:                                       nil,
	} {
		var got []string
		for k, v := range Members([]byte(raw)) {
			got = append(got, string(k), string(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("Members(%s) = %q, want %q", raw, got, want)
		}
	}
}

func TestItems(t *testing.T) {
	for raw, want := range map[string][]string{
		`[]`:                        nil,
		` [ 1 , "a]",{"b":[2]},[]]`: {"1", `"a]"`, `{"b":[2]}`, "[]"},
		`{"a":1}`:                   nil,
		``:                          nil,
		`[1,`:                       {"1"},
		`[1 2]`:                     {"1"},
	} {
		var got []string
		for v := range Items([]byte(raw)) {
			got = append(got, string(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("Items(%s) = %q, want %q", raw, got, want)
		}
	}
}

func TestPathCut(t *testing.T) {
	rest, err := ParsePath(`a[*]["b.c"][2]`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		first, after, ok := rest.Cut()
		if !ok {
			break
		}
		got, rest = append(got, first.String()), after
	}
	if want := []string{"a", "[*]", `["b.c"]`, "[2]"}; !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
	for text, want := range map[string]string{"a.b": "a", `["b.c"][0]`: "b.c", "[2].a": "", "*.a": ""} {
		p, err := ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		if key, ok := p.Key(); key != want || ok != (want != "") {
			t.Errorf("the first key of %s is %q, %t", text, key, ok)
		}
	}
	if key, ok := (Path{}).Key(); ok {
		t.Errorf("the zero path has the key %q", key)
	}
}

// TestUnquoteOfAnything: the value that Lookup finds need not be a string, and after a mistake not even JSON.
func TestUnquoteOfAnything(t *testing.T) {
	for value, want := range map[string]string{
		`"text"`: "text", `"a\u00e9\n"`: "aé\n", `""`: "",
		"": "", "5": "", "123": "", "true": "", "null": "", "{}": "", `["a"]`: "", `"`: "",
	} {
		if got := Unquote([]byte(value)); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	for _, broken := range []string{`"open`, `"\"`, `"\u1"`, `"\ud800\u"`, `"\ud800\u12"`} {
		_ = Unquote([]byte(broken)) // any text
	}
}
