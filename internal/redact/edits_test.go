package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func secrets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
}

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

func testKey() []byte { return []byte("0123456789abcdef0123456789abcdef") }

func edit(t *testing.T, e Edits, gvr schema.GroupVersionResource, raw string) string {
	t.Helper()
	f, err := e.Editor(gvr.GroupResource(), testKey())
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Append([]byte("before"), []byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	edited, ok := bytes.CutPrefix(out, []byte("before"))
	if !ok || !json.Valid(edited) {
		t.Fatalf("not appended, or no JSON: %s", out)
	}
	return string(edited)
}

// canary is a value that must not come out; so must none of its usual guises.
const canary = "hunter2-canary"

func leaks(out string) bool {
	plain := base64.StdEncoding.EncodeToString([]byte(canary))
	return strings.Contains(out, canary) || strings.Contains(out, plain) || strings.Contains(out, "canary")
}

// secretWith is a Secret whose value is everywhere that Secrets' values get to.
func secretWith(value string) string {
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	manifest := `{"apiVersion":"v1","data":{"password":"` + encoded + `"},"kind":"Secret","metadata":{"name":"s"},"stringData":{"password":"` + value + `"}}`
	quoted, _ := json.Marshal(manifest + "\n")
	pretty, _ := json.Marshal(strings.ReplaceAll(manifest, ":", ": "))
	yaml, _ := json.Marshal("apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  password: " + value + "\n")
	inner, _ := json.Marshal(map[string]string{"original": manifest})
	nested, _ := json.Marshal(string(inner))
	cut, _ := json.Marshal(manifest[:len(manifest)-4])
	list, _ := json.Marshal(`{"kind":"List","items":[` + manifest + `]}`)
	return `{"apiVersion":"v1","kind":"Secret","type":"Opaque","metadata":{"name":"s","namespace":"prod","resourceVersion":"7","managedFields":[{"manager":"kubectl"}],` +
		`"annotations":{"kubectl.kubernetes.io/last-applied-configuration":` + string(quoted) + `,"tool/original":` + string(quoted) + `,"tool/pretty":` + string(pretty) +
		`,"tool/yaml":` + string(yaml) + `,"tool/nested":` + string(nested) + `,"tool/cut":` + string(cut) + `,"tool/list":` + string(list) +
		`,"objectset.rio.cattle.io/applied":"H4sI` + encoded + `","note":"keep me"}},` +
		`"data":{"password":"` + encoded + `","empty":"","\u0061b":"` + encoded + `"},"stringData":{"password":"` + value + `"}}`
}

// The manifests that tools store in annotations repeat what a watch redacts, in every kind.
func TestAppliedManifests(t *testing.T) {
	edits := DefaultEdits()
	edits.Redact = []string{"data.password"}
	for name, applied := range map[string]bool{
		"kubectl.kubernetes.io/last-applied-configuration": true, "banzaicloud.com/last-applied": true, "kapp.k14s.io/original": true,
		"objectset.rio.cattle.io/applied": true, "kopf.zalando.org/last-handled-configuration": true, "operator.example.com/last-handled-configuration": true,
		"app.oam.dev/last-applied-configuration": true, "mongodb.com/v1.lastSuccessfulConfiguration": true,
		"example.com/last-applied-at": false, "kapp.k14s.io/original-diff-md5": false,
	} {
		raw := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","annotations":{"` + name + `":"{\"data\":{\"password\":\"` + canary + `\"}}"}},"data":{"password":"` + canary + `"}}`
		if out := edit(t, edits, configMaps(), raw); leaks(out) == applied {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// applied is an object with the manifest that kubectl stores of it, which ends with a newline.
func applied(kind, manifest string) string {
	quoted, _ := json.Marshal(manifest + "\n")
	return `{"apiVersion":"v1","kind":"` + kind + `","metadata":{"name":"c","namespace":"n","annotations":{"kubectl.kubernetes.io/last-applied-configuration":` + string(quoted) + `}},"data":{"password":"` + canary + `"}}`
}

// A watch may keep the manifest that kubectl stores, of every kind but Secrets. It hides in
// it what the watch, and a route, hide in the object.
func TestKeepApplied(t *testing.T) {
	const manifest = `{"data":{"password":"` + canary + `","user":"<visible>"},"metadata":{"name":"c","namespace":"n"}}`
	kept := DefaultEdits()
	kept.KeepApplied = true
	raw := applied("ConfigMap", manifest)
	if out := edit(t, kept, configMaps(), raw); out != raw {
		t.Errorf("not kept as it is:\n%s\n%s", raw, out)
	}
	if out := edit(t, kept, secrets(), applied("Secret", manifest)); leaks(out) {
		t.Errorf("of a Secret: %s", out)
	}
	if out := edit(t, kept, configMaps(), applied("ConfigMap", `{"kind":"Secret","data":{"password":"`+canary+`"}}`)); !strings.Contains(out, `-configuration":"redacted:`) {
		t.Errorf("manifest of a Secret: %s", out)
	}
	hiding := map[string]Edits{"redact": kept, "drop": kept, "deep": kept}
	for name, e := range hiding {
		switch name {
		case "redact":
			e.Redact = []string{"data.password"}
		case "drop":
			e.Drop = append(slices.Clone(e.Drop), "data.password")
		case "deep":
			e.Redact = []string{"**.password"}
		}
		hiding[name] = e
	}
	for name, e := range hiding {
		out := edit(t, e, configMaps(), raw)
		if leaks(out) || !strings.Contains(out, "visible") {
			t.Errorf("%s: %s", name, out)
		}
		if again := edit(t, e, configMaps(), out); again != out {
			t.Errorf("%s, edited twice:\n%s\n%s", name, out, again)
		}
		if broken := edit(t, e, configMaps(), applied("ConfigMap", "password: "+canary)); leaks(strings.Replace(broken, `"data":{"password":"`+canary+`"}`, "", 1)) {
			t.Errorf("%s, not JSON: %s", name, broken)
		}
		route, err := Edits{Drop: e.Drop, Redact: e.Redact}.RouteEditor(configMaps().GroupResource(), testKey())
		if err != nil {
			t.Fatal(err)
		}
		if out, err := route.Append(nil, []byte(raw)); err != nil || leaks(string(out)) || !strings.Contains(string(out), "visible") {
			t.Errorf("%s, by a route: %s (%v)", name, out, err)
		}
		value, _ := json.Marshal(manifest)
		out2, _, err := route.AppendAt(nil, "n", "c", []string{"metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"}, value)
		if err != nil || leaks(string(out2)) {
			t.Errorf("%s, in a patch: %s (%v)", name, out2, err)
		}
	}
	hash := regexp.MustCompile(`redacted:hmac-sha256:[0-9a-f]{16}`)
	if hashes := hash.FindAllString(edit(t, hiding["redact"], configMaps(), raw), -1); len(hashes) != 2 || hashes[0] == hashes[1] {
		t.Errorf("the hash of a value shows that the manifest has the same one: %v", hashes)
	}
	guess := strings.Replace(raw, `"name":"c","namespace":"n"`, `"name":"other","namespace":"elsewhere"`, 1)
	hashes := hash.FindAllString(edit(t, hiding["redact"], configMaps(), raw)+edit(t, hiding["redact"], configMaps(), guess), -1)
	if len(hashes) != 4 || hashes[0] == hashes[2] || hashes[1] == hashes[3] {
		t.Errorf("a manifest of another object's name in an object has its hash, by which a value can be guessed: %v", hashes)
	}
}

// What keeps the manifest is another form than what does not, and the looser one, but for Secrets.
func TestKeepAppliedIsAForm(t *testing.T) {
	standard, kept := DefaultEdits(), DefaultEdits()
	kept.KeepApplied = true
	for gr, other := range map[schema.GroupResource]bool{configMaps().GroupResource(): true, secrets().GroupResource(): false} {
		if (kept.Variant(gr) != standard.Variant(gr)) != other || (kept.Fingerprint(gr) != standard.Fingerprint(gr)) != other {
			t.Errorf("%s: variants %q and %q, fingerprints %x and %x", gr, kept.Variant(gr), standard.Variant(gr), kept.Fingerprint(gr), standard.Fingerprint(gr))
		}
		if standard.Tightens(gr, kept) != other || kept.Tightens(gr, standard) {
			t.Errorf("%s: tightens %t, and back %t", gr, standard.Tightens(gr, kept), kept.Tightens(gr, standard))
		}
		if keys := kept.Differ(standard, gr); slices.Equal(keys, []string{"keep"}) != other {
			t.Errorf("%s: differ in %v", gr, keys)
		}
		if u := kept.Union(standard); u.Tightens(gr, standard) || standard.Tightens(gr, u) {
			t.Errorf("%s: the union is %+v", gr, u)
		}
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	raw := secretWith(canary)
	if !leaks(raw) {
		t.Fatal("the canary is not where it should be")
	}
	out := edit(t, DefaultEdits(), secrets(), raw)
	if leaks(out) {
		t.Errorf("the canary is in %s", out)
	}
	for _, kept := range []string{`"name":"s"`, `"namespace":"prod"`, `"resourceVersion":"7"`, `"type":"Opaque"`, `"note":"keep me"`, `"password":"redacted:hmac-sha256:`, `"empty":"redacted:hmac-sha256:`} {
		if !strings.Contains(out, kept) {
			t.Errorf("%s is not in %s", kept, out)
		}
	}
	if strings.Contains(out, "managedFields") {
		t.Errorf("managedFields are in %s", out)
	}
	if !regexp.MustCompile(`"password":"redacted:hmac-sha256:[0-9a-f]{16}"`).MatchString(out) {
		t.Errorf("the hash is not of 16 digits: %s", out)
	}
	if again := edit(t, DefaultEdits(), secrets(), raw); again != out {
		t.Errorf("one secret, two results:\n%s\n%s", out, again)
	}
	if other := edit(t, DefaultEdits(), secrets(), secretWith(canary+"2")); other == out {
		t.Error("a change of the secret does not show")
	}
	f, err := DefaultEdits().Editor(secrets().GroupResource(), []byte("another key, as long as need be"))
	if err != nil {
		t.Fatal(err)
	}
	if other, err := f.Append(nil, []byte(raw)); err != nil || string(other) == out {
		t.Errorf("the result does not hang on the key (%v)", err)
	}
}

func TestExposeSecrets(t *testing.T) {
	e := DefaultEdits()
	e.ExposeSecrets = true
	out := edit(t, e, secrets(), secretWith(canary))
	if strings.Contains(out, event.RedactedPrefix) || strings.Count(out, canary) < 5 || strings.Contains(out, "managedFields") {
		t.Errorf("exposed: %s", out)
	}
	// Only of Secrets: elsewhere a manifest of one has no business being.
	other := strings.Replace(secretWith(canary), `"data":{`, `"x":{},"datum":{`, 1)
	other = other[:strings.Index(other, `"datum"`)-1] + "}"
	if out := edit(t, e, configMaps(), other); leaks(out) || !strings.Contains(out, "keep me") {
		t.Errorf("another kind: %s", out)
	}
	named := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "secrets"}
	if out := edit(t, DefaultEdits(), named, `{"kind":"Secret","metadata":{"name":"a"},"data":{"a":"b"}}`); !strings.Contains(out, `"a":"b"`) {
		t.Errorf("another group's secrets: %s", out)
	}
}

func TestRedactAndDrop(t *testing.T) {
	raw := `{"kind":"Pod","metadata":{"name":"a","managedFields":[1],"annotations":{"a":"1","b":"2"}},"spec":{"containers":[{"name":"c","env":[{"name":"A","value":"` + canary + `"},{"name":"B"},{"name":"C","value":{"x":["` + canary + `"]}}]}],"host":true},"data":{"a":"x"}}`
	e := Edits{Drop: []string{"data", "metadata.annotations.b"}, Redact: []string{"spec.containers[*].env[*].value", "spec.host", "metadata.annotations[*]"}}
	out := edit(t, e, configMaps(), raw)
	if leaks(out) || strings.Contains(out, "true") || strings.Contains(out, `"a":"1"`) || strings.Contains(out, `"b"`) || strings.Contains(out, `"data"`) {
		t.Errorf("left: %s", out)
	}
	if strings.Count(out, event.RedactedPrefix) != 4 || !strings.Contains(out, `"name":"C"`) || !strings.Contains(out, "managedFields") {
		t.Errorf("result: %s", out)
	}
	// A user's drop wins over the rules for Secrets, and a user's redaction may cover more.
	out = edit(t, Edits{Drop: []string{"data.password"}, Redact: []string{"stringData"}}, secrets(), secretWith(canary))
	if leaks(out) || !strings.Contains(out, `"stringData":"redacted:`) || strings.Contains(out, `"data":{"password"`) {
		t.Errorf("result: %s", out)
	}
}

func TestEditsFuncErrors(t *testing.T) {
	if _, err := DefaultEdits().Editor(secrets().GroupResource(), []byte("short")); err == nil {
		t.Error("a short key is taken")
	}
	bad := Edits{Drop: []string{"a..b"}, Redact: []string{"ok", "[x"}}
	if _, err := bad.Editor(secrets().GroupResource(), testKey()); err == nil {
		t.Error("a faulty path is taken")
	}
	var paths []string
	if joined, ok := bad.Validate().(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if s, ok := errors.AsType[*field.Error](e); ok {
				paths = append(paths, s.Field)
			}
		}
	}
	if !slices.Equal(paths, []string{"drop[0]", "redact[1]"}) {
		t.Errorf("faults at %q", paths)
	}
	f, err := DefaultEdits().Editor(secrets().GroupResource(), testKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{``, `null`, `[]`, `{"data":{"a":"b"}`, `{"data":{"a":"b"}}}`} {
		if out, err := f.Append(nil, []byte(raw)); err == nil {
			t.Errorf("%s becomes %s", raw, out)
		}
	}
}

func TestVariant(t *testing.T) {
	gr := configMaps().GroupResource()
	if v := DefaultEdits().Variant(gr); v != "" {
		t.Errorf("default edits have variant %q", v)
	}
	exposed := DefaultEdits()
	exposed.ExposeSecrets = true
	if v := exposed.Variant(gr); v != "" {
		t.Errorf("exposing Secrets gives configmaps the variant %q", v)
	}
	a := Edits{Drop: []string{"status", `metadata["managedFields"]`}, Redact: []string{`data["a"]`, "data.*"}}
	b := Edits{Drop: []string{"metadata.managedFields", "status", "status"}, Redact: []string{"data[*]", "data.a"}}
	if a.Variant(gr) != b.Variant(gr) || a.Variant(gr) == "" {
		t.Errorf("one form of objects has the variants %q and %q", a.Variant(gr), b.Variant(gr))
	}
	seen := map[string]bool{"": true}
	for _, e := range []Edits{{}, a, {Drop: a.Redact, Redact: a.Drop}, {Drop: []string{"status"}}, {Redact: []string{"status"}}} {
		if v := e.Variant(gr); seen[v] || len(v) != 12 {
			t.Errorf("%+v has variant %q", e, v)
		}
		seen[e.Variant(gr)] = true
	}
	if v := exposed.Variant(secrets().GroupResource()); seen[v] {
		t.Errorf("exposed Secrets have variant %q", v)
	}
}

func TestHoldsSecret(t *testing.T) {
	for text, want := range map[string]bool{
		`{"kind":"Secret","data":{"a":"b"}}`:                       true,
		`{"kind" : "Secret" , "stringData" : {}}`:                  true,
		`{"data":{},"kind":"Secret"}`:                              true,
		"kind: Secret\nstringData:\n  a: b\n":                      true,
		"- apiVersion: v1\n  kind: 'Secret'\n  data: {a: b}":       true,
		"kind: Secret\r\ndata:\r\n  a: b\r\n":                      true,
		`{"a":"{\"kind\":\"Secret\",\"data\":{}}"}`:                true,
		`{"a":"{\\\"kind\\\":\\\"Secret\\\",\\\"data\\\":{}}"}`:    true,
		`{"a":"kind: Secret\ndata:\n  a: b"}`:                      true,
		`{"a":"kind: Secret\\ndata:\\n  a: b"}`:                    true,
		`{"kind":"Secret","metadata":{"name":"a"}}`:                false,
		`{"kind":"SecretStore","data":{"a":"b"}}`:                  false,
		`{"kind":"Deployment","spec":{"volumes":[{"secret":{}}]}}`: false,
		`{"kind":"ConfigMap","data":{"a":"b"}}`:                    false,
		`{"myKind":"Secret","data":{}}`:                            false,
		"Secret data: the kind of things":                          false,
		``:                                                         false,
	} {
		value, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := holdsSecret(value); got != want {
			t.Errorf("%q holds a Secret: %t", text, got)
		}
	}
}

// Whatever the object, a canary under `data` never comes out of the edits of Secrets.
func FuzzSecretEdits(f *testing.F) {
	f.Add(secretWith("x"))
	f.Add(`{"data":{"a":["x"]}}`)
	f.Add(`{"data":null,"stringData":[1,{"a":2}]}`)
	edits, err := DefaultEdits().Editor(secrets().GroupResource(), testKey())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if out, err := edits.Append(nil, []byte(raw)); err == nil {
			if _, err := rawjson.Scan(out); err != nil && !strings.Contains(err.Error(), "wrong type") && !strings.Contains(err.Error(), "metadata") {
				t.Errorf("%q becomes what is no object: %q: %v", raw, out, err)
			}
			for _, part := range []string{"data", "stringData"} {
				p, err := rawjson.ParsePath(part + "[*]")
				if err != nil {
					t.Fatal(err)
				}
				for v := range rawjson.Values(out, p) {
					if !strings.HasPrefix(string(v), `"`+event.RedactedPrefix) {
						t.Errorf("%q leaves %q", raw, v)
					}
				}
			}
		}
	})
}

// BenchmarkEdits is the cost of what hides values: docs/security.md has its table.
func BenchmarkEdits(b *testing.B) {
	pod, err := os.ReadFile(filepath.Join("..", "route", "testdata", "pod.json"))
	if err != nil {
		b.Fatal(err)
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	redacted := func(paths ...string) Edits {
		e := DefaultEdits()
		e.Redact = paths
		return e
	}
	ten := []string{
		"spec.nodeName", "spec.hostname", "spec.priority", "spec.serviceAccountName", "spec.schedulerName",
		"status.hostIP", "status.podIP", "status.qosClass", "spec.containers[*].image", "metadata.labels.app",
	}
	exposed := DefaultEdits()
	exposed.ExposeSecrets = true
	secret := func(annotation string) []byte {
		data := make([]string, 10)
		for i := range data {
			data[i] = fmt.Sprintf(`"key%d":%q`, i, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte('a' + i)}, 24)))
		}
		return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"1","annotations":{"note":%q}},"data":{%s}}`,
			annotation, strings.Join(data, ","))
	}
	for _, bc := range []struct {
		name  string
		edits Edits
		gvr   schema.GroupVersionResource
		raw   []byte
	}{
		{"pod/default", DefaultEdits(), pods, pod},
		{"pod/redact one path", redacted("spec.nodeName"), pods, pod},
		{"pod/redact ten paths", redacted(ten...), pods, pod},
		{"pod/redact at any depth", redacted("**.image"), pods, pod},
		{"pod/redact all labels", redacted("metadata.labels[*]"), pods, pod},
		{"pod/podEnv", redacted(Presets()["podEnv"]...), pods, pod},
		{"secret/exposed", exposed, secrets(), secret("short")},
		{"secret/hidden", DefaultEdits(), secrets(), secret("short")},
		{"secret/exposed with an annotation of 100 KB", exposed, secrets(), secret(strings.Repeat("word ", 20<<10))},
		{"secret/hidden with an annotation of 100 KB", DefaultEdits(), secrets(), secret(strings.Repeat("word ", 20<<10))},
	} {
		b.Run(bc.name, func(b *testing.B) {
			f, err := bc.edits.Editor(bc.gvr.GroupResource(), testKey())
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, 2*len(bc.raw))
			b.ReportAllocs()
			b.SetBytes(int64(len(bc.raw)))
			for b.Loop() {
				if dst, err = f.Append(dst[:0], bc.raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
