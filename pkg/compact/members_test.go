package compact

import (
	"slices"
	"testing"
)

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
