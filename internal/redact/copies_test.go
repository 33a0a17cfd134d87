package redact

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/event"
)

func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// annotated is a Secret with a value, or the metadata of one, and an annotation.
func annotated(t *testing.T, kind, value, annotation string) string {
	t.Helper()
	object := map[string]any{
		"apiVersion": "v1", "kind": kind,
		"metadata": map[string]any{"name": "grafana", "namespace": "tenant-a", "annotations": map[string]any{"x": annotation}},
	}
	if kind == "Secret" {
		object["data"] = map[string]any{"password": encoded(value), "namespace": encoded("tenant-a"), "release": encoded("grafana"), "pin": encoded("1234")}
	}
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func annotation(t *testing.T, raw string) string {
	t.Helper()
	var o struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		t.Fatal(err)
	}
	return o.Metadata.Annotations["x"]
}

// Copies of a Secret's values in its annotations are redacted as the values are.
func TestCopiesInAnnotations(t *testing.T) {
	const odd = "päss \"w\\ord\"\n<&>\n" // what JSON escapes
	ascii := strings.NewReplacer("ä", `\u00e4`, `\`, `\\`, `"`, `\"`, "\n", `\n`, "<", `\u003c`).Replace(odd)
	inJSON, _ := json.Marshal(map[string]string{"password": odd})
	twice, _ := json.Marshal(map[string]string{"outer": string(inJSON)})
	bare := `{"type":"Opaque","data":{"other":"` + encoded("anything") + `"}}`
	for name, text := range map[string]string{
		"the value":               odd,
		"within text":             "it is " + odd + ", do not pass it on",
		"base64":                  encoded(odd),
		"base64 unpadded":         "x=" + strings.TrimRight(encoded(odd), "="),
		"base64 for URLs":         base64.URLEncoding.EncodeToString([]byte(odd)),
		"JSON":                    string(inJSON),
		"JSON in JSON":            string(twice),
		"JSON in ASCII":           `{"password":"` + ascii + `"}`,
		"YAML":                    "password: |\n  " + strings.ReplaceAll(odd, "\n", "\n  "),
		"a manifest":              `{"kind":"Secret","data":{"other":"x"}}`,
		"a manifest without kind": bare,
		"a manifest in YAML":      "stringData:\n  other: anything\n",
		"a manifest cut off":      `{"apiVersion":"v1","data":{"password":"` + encoded("former"),
		"a manifest in base64":    encoded(bare),
		"base64 within text":      "v1:" + encoded("xx"+odd+"yy"),
		"base64 twice":            encoded(encoded("xx" + odd)),
		"gzip in base64":          encoded(zipped(bare)),
		"gzip cut off":            encoded(zipped(odd + bare))[:60],
		"broken lines":            encoded(odd)[:10] + "\n" + encoded(odd)[10:],
		"too much of gzip":        encoded(zipped(strings.Repeat("x ", maxInflated))),
	} {
		t.Run(name, func(t *testing.T) {
			out := edit(t, DefaultEdits(), secrets(), annotated(t, "Secret", odd, text))
			if got := annotation(t, out); !event.IsRedacted([]byte(`"` + got + `"`)) {
				t.Errorf("left: %s", got)
			}
			if again := edit(t, DefaultEdits(), secrets(), out); again != out {
				t.Errorf("edited again: %s", again)
			}
			exposed := Edits{ExposeSecrets: true}
			if got := annotation(t, edit(t, exposed, secrets(), annotated(t, "Secret", odd, text))); got != text {
				t.Errorf("exposed: %s", got)
			}
			for _, hiding := range []Edits{{Redact: []string{"data.password"}}, {Redact: []string{"**.password"}}, {Redact: []string{"data"}}, {Drop: []string{"*.password"}}} {
				paths := append(hiding.Redact, hiding.Drop...)
				route, err := hiding.RouteEditor(secrets().GroupResource(), testKey())
				if err != nil {
					t.Fatal(err)
				}
				hiding.ExposeSecrets = true
				exposing := annotated(t, "Secret", odd, text)
				if got := annotation(t, edit(t, hiding, secrets(), exposing)); !event.IsRedacted([]byte(`"` + got + `"`)) {
					t.Errorf("exposed but for %q: %s", paths, got)
				}
				routed, err := route.Append(nil, []byte(exposing))
				if err != nil {
					t.Fatal(err)
				}
				if got := annotation(t, string(routed)); !event.IsRedacted([]byte(`"` + got + `"`)) {
					t.Errorf("exposed but for %q of a route: %s", paths, got)
				}
			}
			exposed.Redact, exposed.Drop = []string{"data.other", "**.env[*].value"}, []string{"metadata.managedFields"}
			if got := annotation(t, edit(t, exposed, secrets(), annotated(t, "Secret", odd, text))); got != text {
				t.Errorf("exposed, and nothing of it hidden: %s", got)
			}
		})
	}
	for name, text := range map[string]string{
		"nothing":            "",
		"words":              "the metadata: of a Secret, in words without blanks supercalifragilisticexpialidocious",
		"name and namespace": "grafana in tenant-a",
		"a short value":      "12345",
		"another value":      encoded("not the password, but long enough"),
		"JSON":               `{"revision":7,"owner":"team","datapoints":[1]}`,
		"a digest":           "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	} {
		if got := annotation(t, edit(t, DefaultEdits(), secrets(), annotated(t, "Secret", odd, text))); got != text {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A copy of a long value is recognized by its beginning, wherever that is cut off.
func TestCopiesOfLongValues(t *testing.T) {
	for shift := range 16 {
		value := strings.Repeat(" \x1a", shift%2*maxValue) + strings.Repeat("x", 1000+shift) + strings.Repeat("\\u00e4 \"\\\\\n ä", 2000)
		inJSON, _ := json.Marshal(map[string]string{"v": value})
		for name, text := range map[string]string{"plain": value, "JSON": string(inJSON), "base64": encoded(value), "cut": value[:len(value)/2], "cut base64": encoded(value)[:len(value)/2]} {
			out := edit(t, DefaultEdits(), secrets(), annotated(t, "Secret", value, text))
			if got := annotation(t, out); !event.IsRedacted([]byte(`"` + got + `"`)) {
				t.Errorf("%s, shifted by %d: %.50s", name, shift, got)
			}
		}
	}
}

// The values of a Secret whose metadata alone is known may be in any of its annotations.
func TestCopiesInMetadata(t *testing.T) {
	out := edit(t, DefaultEdits(), secrets(), annotated(t, "PartialObjectMetadata", "", "anything"))
	if got := annotation(t, out); !event.IsRedacted([]byte(`"` + got + `"`)) {
		t.Errorf("left: %s", got)
	}
	if got := annotation(t, edit(t, DefaultEdits(), configMaps(), annotated(t, "PartialObjectMetadata", "", "anything"))); got != "anything" {
		t.Errorf("another kind: %s", got)
	}
	e, err := DefaultEdits().Editor(secrets().GroupResource(), testKey())
	if err != nil {
		t.Fatal(err)
	}
	patch, ok := editor{Editor: e}.editPatch([]byte(`[{"op":"add","path":"/metadata/annotations/x","value":"anything"},{"op":"add","path":"/metadata/labels/l","value":"v"}]`))
	if !ok || strings.Contains(string(patch), "anything") || !strings.Contains(string(patch), `"v"`) {
		t.Errorf("a patch alone: %s, %t", patch, ok)
	}
}

// Other strings of a Secret are redacted if they hold a longer value. User names and the
// like stay, as objects are selected by them.
func TestMentions(t *testing.T) {
	const token = "0123456789abcdefg"
	raw := `{"kind":"Secret","metadata":{"name":"n","labels":{"app":"postgres","bad":"x-` + token + `"},"finalizers":["` + token + `","a/b"],"ownerReferences":[{"name":"` + token + `","controller":true}]},` +
		`"data":{"user":"` + encoded("postgres") + `","token":"` + encoded(token) + `"},"type":"` + token + `"}`
	out := edit(t, DefaultEdits(), secrets(), raw)
	if strings.Contains(out, token) || strings.Count(out, event.RedactedPrefix) != 6 || !strings.Contains(out, `"app":"postgres"`) || !strings.Contains(out, `"a/b"`) {
		t.Errorf("result: %s", out)
	}
}

// The work for one object is bounded; what is not searched is redacted.
func TestCopiesAreBounded(t *testing.T) {
	var data, annotations strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&data, `%s"k%d":%q`, []string{"", ","}[min(i, 1)], i, encoded(fmt.Sprintf("aaaaaaaaaaaaaaaaaa%05d", i)))
	}
	for i := range 250 {
		fmt.Fprintf(&annotations, `"a%d":%q,`, i, strings.Repeat("a", 1000))
	}
	raw := `{"kind":"Secret","metadata":{"name":"n","annotations":{` + annotations.String() + `"z":"plain"}},"data":{` + data.String() + `}}`
	out := edit(t, DefaultEdits(), secrets(), raw)
	if strings.Contains(out, strings.Repeat("a", 17)) || strings.Contains(out, "plain") {
		t.Error("what was not searched is left")
	}
}

// Equal values have one hash only where they are the same value of the same object, so
// that a value can change places among the items of an array.
func TestHashesAreOfOneValue(t *testing.T) {
	e := Edits{Redact: []string{"data[*]", "list[*].v"}}
	other := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "configmaps"}
	seen := map[string]string{}
	for _, c := range []struct {
		name, raw string
		gvr       schema.GroupVersionResource
	}{
		{"first", `{"data":{"a":"1234"},"metadata":{"namespace":"n","name":"a"}}`, configMaps()},
		{"key", `{"data":{"b":"1234"},"metadata":{"namespace":"n","name":"a"}}`, configMaps()},
		{"name", `{"data":{"a":"1234"},"metadata":{"namespace":"n","name":"b"}}`, configMaps()},
		{"namespace", `{"data":{"a":"1234"},"metadata":{"namespace":"m","name":"a"}}`, configMaps()},
		{"both", `{"data":{"a":"1234"},"metadata":{"namespace":"na","name":""}}`, configMaps()},
		{"resource", `{"data":{"a":"1234"},"metadata":{"namespace":"n","name":"a"}}`, other},
		{"value", `{"data":{"a":"1235"},"metadata":{"namespace":"n","name":"a"}}`, configMaps()},
	} {
		out := edit(t, e, c.gvr, c.raw)
		i := strings.Index(out, event.RedactedPrefix)
		hash := out[i : i+len(event.RedactedPrefix)+event.RedactedDigits]
		if before, ok := seen[hash]; ok {
			t.Errorf("%s has the hash of %s", c.name, before)
		}
		seen[hash] = c.name
		if again := edit(t, e, c.gvr, c.raw); again != out {
			t.Errorf("%s: %s, then %s", c.name, out, again)
		}
	}
	items := edit(t, e, configMaps(), `{"metadata":{"name":"a"},"list":[{"v":"x"},{"v":"y"},{"v":"x"}]}`)
	parts := strings.Split(items, event.RedactedPrefix)
	if parts[1][:event.RedactedDigits] != parts[3][:event.RedactedDigits] || parts[1][:event.RedactedDigits] == parts[2][:event.RedactedDigits] {
		t.Errorf("items: %s", items)
	}
}

// The preset covers environment variables wherever a pod template is.
func TestPodEnv(t *testing.T) {
	e := Edits{Redact: Presets()["podEnv"]}
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	containers := func(name string) string {
		return fmt.Sprintf(`"%s":[{"name":"c","env":[{"name":"A","value":"%s"},{"name":"B","valueFrom":{"secretKeyRef":{"name":"kept","key":"value"}}}]}]`, name, canary)
	}
	pod := `"spec":{` + containers("containers") + `,` + containers("initContainers") + `,` + containers("ephemeralContainers") + `}`
	for kind, body := range map[string]string{
		"Pod":                pod,
		"PodTemplate":        `"template":{` + pod + `}`,
		"Deployment":         `"spec":{"template":{` + pod + `}}`,
		"CronJob":            `"spec":{"jobTemplate":{"spec":{"template":{` + pod + `}}}}`,
		"ControllerRevision": `"data":{"spec":{"template":{"$patch":"replace",` + pod + `}}}`,
		"Custom":             `"spec":{"tiers":[{"podTemplate":{` + pod + `}}],"env":[{"name":"A","value":"` + canary + `"}]}`,
	} {
		out := edit(t, e, configMaps(), `{"kind":"`+kind+`","metadata":{"name":"n"},`+body+`}`)
		if leaks(out) || strings.Count(out, event.RedactedPrefix) < 3 || strings.Count(out, `"kept"`) != 3 {
			t.Errorf("%s: %s", kind, out)
		}
	}
}

// Whatever the Secret, a value is in none of its annotations, and editing twice is the
// same as once.
func FuzzCopies(f *testing.F) {
	f.Add("hunter2-canary", `{"a":"hunter2-canary"}`, uint8(0))
	f.Add("a\\nb\"c<&>ä\u2028", "note", uint8(3))
	f.Add("0123456789", "H4sI", uint8(255))
	edits, err := DefaultEdits().Editor(secrets().GroupResource(), testKey())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value, text string, form uint8) {
		held := value
		for ; form > 0; form >>= 2 {
			switch form & 3 {
			case 1:
				held = encoded(held)
			case 2:
				inner, _ := json.Marshal(map[string]string{"v": held})
				held = string(inner)
			case 3:
				held = text + " " + held
			}
		}
		raw := annotated(t, "Secret", value, held)
		once, err := edits.Append(nil, []byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		twice, err := edits.Append(nil, once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s becomes %s, then %s (%v)", raw, once, twice, err)
		}
		plain := squeezed(unquoted([]byte(value)))
		if got := annotation(t, string(once)); len(plain) >= minCopy && value != "grafana" && value != "tenant-a" && value != "1234" && strings.Contains(got, value) {
			t.Errorf("%q is in %q", value, got)
		}
	})
}

// A Secret of the API server's size with many values and many annotations is not searched
// without bound: what is left counts as a copy.
func TestManyValuesAndAnnotations(t *testing.T) {
	data, annotations := map[string]string{}, map[string]string{}
	for i := range 20_000 {
		data[fmt.Sprint(i)] = encoded(fmt.Sprintf("%012d", i))
	}
	for i := range 5_000 {
		annotations[fmt.Sprintf("a%04d", i)] = "short"
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "a", "annotations": annotations}, "data": data})
	if err != nil {
		t.Fatal(err)
	}
	editor, err := DefaultEdits().Editor(schema.GroupResource{Resource: "secrets"}, make([]byte, MinKey))
	if err != nil {
		t.Fatal(err)
	}
	edited, err := editor.Append(nil, raw)
	if err != nil {
		t.Fatal(err)
	}
	if kept := bytes.Count(edited, []byte(`"short"`)); kept == 0 || kept > maxSearch/20_000 {
		t.Errorf("%d annotations were compared with all values", kept)
	}
}
