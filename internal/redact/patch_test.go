package redact

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/event"
)

// TestEditPatch edits patches whose objects are not at hand.
func TestEditPatch(t *testing.T) {
	const hash = `"redacted:hmac-sha256:`
	for _, tc := range []struct {
		name         string
		drop, redact []string
		patch, want  string // the digits of a hash are left out of want; none: nothing may be shown
	}{
		{"nothing is concerned", []string{"status"}, []string{"spec.a"}, `[{"op":"replace","path":"/spec/b","value":1}]`, `[{"op":"replace","path":"/spec/b","value":1}]`},
		{"a dropped value", []string{"spec.a"}, nil, `[{"op":"replace","path":"/spec/a","value":1},{"op":"remove","path":"/spec/b"}]`, `[{"op":"remove","path":"/spec/b"}]`},
		{"within a dropped value", []string{"spec"}, nil, `[{"op":"add","path":"/spec/a/b/0","value":1}]`, `[]`},
		{"around a dropped value", []string{"spec.a"}, nil, `[{"op":"add","path":"/spec","value":{"a":1,"b":2}}]`, `[{"op":"add","path":"/spec","value":{"b":2}}]`},
		{"a redacted value", nil, []string{"spec.a"}, `[{"op":"replace","path":"/spec/a","value":"x"}]`, `[{"op":"replace","path":"/spec/a","value":` + hash + `"}]`},
		{"a redacted value goes", nil, []string{"spec.a"}, `[{"op":"remove","path":"/spec/a"}]`, `[{"op":"remove","path":"/spec/a"}]`},
		{"within a redacted value", nil, []string{"spec"}, `[{"op":"replace","path":"/spec/a","value":"x"}]`, ``},
		{"around a redacted value", nil, []string{"spec.*.v"}, `[{"op":"add","path":"/spec","value":{"a":{"v":"x","w":1}}}]`, `[{"op":"add","path":"/spec","value":{"a":{"v":` + hash + `","w":1}}}]`},
		{
			"items of an array", nil,
			[]string{"spec.env[*].value"},
			`[{"op":"add","path":"/spec/env/3","value":{"name":"n","value":"x"}},{"op":"replace","path":"/spec/env/0/value","value":"y"},{"op":"add","path":"/spec/env/-","value":{"value":"z"}}]`,
			`[{"op":"add","path":"/spec/env/3","value":{"name":"n","value":` + hash + `"}},{"op":"replace","path":"/spec/env/0/value","value":` + hash + `"},{"op":"add","path":"/spec/env/-","value":{"value":` + hash + `"}}]`,
		},
		{"an item by number", nil, []string{"spec.env[0].value"}, `[{"op":"replace","path":"/spec/env/1/value","value":"y"}]`, ``},
		{"a key with a slash", []string{`metadata.annotations["a/b"]`}, nil, `[{"op":"replace","path":"/metadata/annotations/a~1b","value":"y"}]`, `[]`},
		{"the whole object", []string{"spec"}, nil, `[{"op":"replace","path":"","value":{"spec":1,"status":2}}]`, `[{"op":"replace","path":"","value":{"status":2}}]`},
		{"null", []string{"status"}, nil, `[{"op":"add","path":"/spec","value":null}]`, `[{"op":"add","path":"/spec","value":null}]`},
		{"an operation that is none of ours", []string{"status"}, nil, `[{"op":"move","from":"/spec/a","path":"/spec/b"}]`, ``},
		{"no patch", []string{"status"}, nil, `{}`, ``},
		{"a manifest of a Secret", nil, nil, `[{"op":"add","path":"/metadata/annotations","value":{"x":"{\"kind\":\"Secret\",\"data\":{\"a\":\"b\"}}","y":"z"}}]`, `[{"op":"add","path":"/metadata/annotations","value":{"x":` + hash + `","y":"z"}}]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := Edits{Drop: tc.drop, Redact: tc.redact}.Editor(schema.GroupResource{Resource: "pods"}, testKey())
			if err != nil {
				t.Fatal(err)
			}
			got, ok := editor{Editor: e}.editPatch([]byte(tc.patch))
			text := string(got)
			for at := strings.Index(text, hash); at >= 0; {
				end := at + len(hash) + event.RedactedDigits
				text = text[:at+len(hash)] + text[end:]
				next := strings.Index(text[at+len(hash):], hash)
				if next < 0 {
					break
				}
				at += len(hash) + next
			}
			if text != tc.want || ok != (tc.want != "") {
				t.Errorf("got %s, %t\nwant %s", text, ok, tc.want)
			}
			if again, ok := (editor{Editor: e}).editPatch(got); tc.want != "" && (!ok || string(again) != string(got)) {
				t.Errorf("edited again: %s, %t\nonce: %s", again, ok, got)
			}
		})
	}
}

// TestEditsAreIdempotent edits what is edited, and what was edited less.
func TestEditsAreIdempotent(t *testing.T) {
	raw := secretWith(canary)
	once := edit(t, DefaultEdits(), secrets(), raw)
	if twice := edit(t, DefaultEdits(), secrets(), once); twice != once {
		t.Errorf("edited twice\n%s\nonce\n%s", twice, once)
	}
	exposed := DefaultEdits()
	exposed.ExposeSecrets = true
	if late := edit(t, DefaultEdits(), secrets(), edit(t, exposed, secrets(), raw)); late != once {
		t.Errorf("hidden later\n%s\nat once\n%s", late, once)
	}
	for _, value := range []string{
		`"redacted:hmac-sha256:0123456789abcde"`, `"redacted:hmac-sha256:0123456789abcdef0"`, `"redacted:hmac-sha256:0123456789abcdeF"`,
		`"redacted:hmac-sha256:0123456789abcde\u0066"`, `" redacted:hmac-sha256:0123456789abcdef"`,
	} {
		out := edit(t, Edits{Redact: []string{"a"}}, configMaps(), `{"a":`+value+`}`)
		if strings.Contains(out, value) {
			t.Errorf("%s passes for a hash", value)
		}
	}
}

func TestFingerprintsTellEditsApart(t *testing.T) {
	secret, pod := schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "pods"}
	base := Edits{Drop: []string{"a", "b"}, Redact: []string{"c"}}
	for _, tc := range []struct {
		name          string
		gr            schema.GroupResource
		before, after Edits
		same, tighter bool
	}{
		{"order and spelling", pod, base, Edits{Drop: []string{`["b"]`, "a", "a"}, Redact: []string{"c"}}, true, false},
		{"one more", pod, base, Edits{Drop: []string{"a", "b", "d"}, Redact: []string{"c"}}, false, true},
		{"one less", pod, base, Edits{Drop: []string{"a"}, Redact: []string{"c"}}, false, false},
		{"another kind", pod, base, Edits{Drop: []string{"a", "b", "c"}}, false, true},
		{"secrets exposed", secret, Edits{}, Edits{ExposeSecrets: true}, false, false},
		{"secrets hidden", secret, Edits{ExposeSecrets: true}, Edits{}, false, true},
		{"no secrets", pod, Edits{ExposeSecrets: true}, Edits{}, true, false},
		{"a path that a standard rule has, too", pod, Edits{}, Edits{Redact: []string{"metadata.annotations[*]"}}, false, true},
	} {
		if same := tc.before.Fingerprint(tc.gr) == tc.after.Fingerprint(tc.gr); same != tc.same {
			t.Errorf("%s: the same fingerprint: %t", tc.name, same)
		}
		if tighter := tc.after.Tightens(tc.gr, tc.before); tighter != tc.tighter {
			t.Errorf("%s: tighter: %t", tc.name, tighter)
		}
	}
}

// FuzzEditPatch edits patches of a damaged or foreign record: what is shown holds no value of a redacted path, and is edited
// once.
func FuzzEditPatch(f *testing.F) {
	e, err := Edits{Drop: []string{"status"}, Redact: []string{"data[*]", "**.secret"}}.Editor(schema.GroupResource{Resource: "pods"}, testKey())
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		`[{"op":"replace","path":"/data/a","value":"VALUE"},{"op":"remove","path":"/status/b"}]`, `[{"op":"add","path":"","value":{"data":{"a":"VALUE"},"status":1}}]`,
		`[{"op":"add","path":"/spec/a~1b/secret","value":{"c":"VALUE"}}]`, `[{"op":"add","path":"/spec/0","value":{"secret":["VALUE"]}}]`, `[{"op":"add","path":"/data/a/b","value":"VALUE"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, patch []byte) {
		once, ok := editor{Editor: e}.editPatch(patch)
		if !ok {
			return
		}
		var ops []struct {
			Op, Path string
			Value    any
		}
		if err := json.Unmarshal(once, &ops); err != nil {
			t.Fatalf("%q becomes %q: %v", patch, once, err)
		}
		for _, op := range ops {
			tokens := pointerTokens(op.Path)
			hidden := len(tokens) > 1 && tokens[0] == "data" || slices.Contains(tokens, "secret")
			if text, isText := op.Value.(string); hidden && op.Op != "remove" && op.Value != nil && !(isText && strings.HasPrefix(text, "redacted:")) {
				t.Errorf("%q becomes %q, which shows %v", patch, once, op.Value)
			}
			if len(tokens) > 0 && tokens[0] == "status" {
				t.Errorf("%q becomes %q, which shows the status", patch, once)
			}
		}
		if twice, ok := (editor{Editor: e}).editPatch(once); !ok || !bytes.Equal(once, twice) {
			t.Errorf("%q becomes %q, and that %q", patch, once, twice)
		}
	})
}
