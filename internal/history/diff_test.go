package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestUnified(t *testing.T) {
	for _, tc := range []struct{ name, before, after, want string }{
		{"equal but for what every write changes", `{"metadata":{"name":"a","resourceVersion":"1","generation":1}}`, `{"metadata":{"name":"a","resourceVersion":"2"}}`, ""},
		{"order of named items", `{"l":[{"name":"a","x":1},{"name":"b"}]}`, `{"l":[{"name":"b"},{"name":"a","x":1}]}`, ""},
		{"nothing before", "", `{"a":1}`, "--- from\n+++ to\n@@ -0,0 +1,1 @@\n+a: 1\n"},
		{
			"items by name", `{"l":[{"name":"a","x":1},{"name":"b","x":1},{"name":"c"}]}`, `{"l":[{"name":"b","x":2},{"name":"a","x":1}]}`,
			"--- from\n+++ to\n@@ -1,6 +1,5 @@\n l:\n - name: b\n-  x: 1\n-- name: c\n+  x: 2\n - name: a\n   x: 1\n",
		},
		{
			"two hunks", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}`, `{"a":2,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":2}`,
			"--- from\n+++ to\n@@ -1,4 +1,4 @@\n-a: 1\n+a: 2\n b: 1\n c: 1\n d: 1\n@@ -6,4 +6,4 @@\n f: 1\n g: 1\n h: 1\n-i: 1\n+i: 2\n",
		},
	} {
		got, err := unified([]byte(tc.before), []byte(tc.after), "from", "to")
		if err != nil || got != tc.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", tc.name, err, got, tc.want)
		}
	}
}

// TestAnyText compares and attributes the fields of objects whose keys and texts hold what JSON
// may have and YAML may not.
func TestAnyText(t *testing.T) {
	for _, tc := range []struct{ text, line string }{
		{"a\x7fb", `+"a\x7Fb": "a\x7Fb"`},
		{"\u0080\u009f", `+"\x80\x9F": "\x80\x9F"`},
		{"\ufeff\ufffe\uffff", `+"\uFEFF\uFFFE\uFFFF": "\uFEFF\uFFFE\uFFFF"`},
		{strings.Repeat("k", 2000), "+? " + strings.Repeat("k", 2000) + "\n+: " + strings.Repeat("k", 2000)},
	} {
		state, err := json.Marshal(map[string]string{tc.text: tc.text})
		if err != nil {
			t.Fatal(err)
		}
		got, err := unified([]byte(`{}`), state, "from", "to")
		if err != nil || !strings.HasSuffix(got, tc.line+"\n") {
			t.Errorf("%.20q: %v\n%s", tc.text, err, got)
		}
		var b Blame
		if err := b.state(state); err != nil || len(b.Fields) != 1 || strings.ContainsAny(b.Fields[0].Text, "\x7f\u0080\ufeff") {
			t.Errorf("%.20q: %v, %+v", tc.text, err, b.Fields)
		}
	}
}

// TestEdits applies the edits of random texts.
func TestEdits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(n int) (lines []string) {
		for range rng.IntN(n) {
			lines = append(lines, fmt.Sprint(rng.IntN(5)))
		}
		return lines
	}
	for i := range 2000 {
		n := 30
		if i == 0 {
			n = 4 * maxDistance // further apart than is searched
		}
		a, b := text(n), text(n)
		var before, after []string
		for _, e := range edits(a, b) {
			if e.op != '+' {
				before = append(before, e.line)
			}
			if e.op != '-' {
				after = append(after, e.line)
			}
		}
		if strings.Join(before, " ") != strings.Join(a, " ") || strings.Join(after, " ") != strings.Join(b, " ") {
			t.Fatalf("edits of %v and %v lead from %v to %v", a, b, before, after)
		}
	}
}
