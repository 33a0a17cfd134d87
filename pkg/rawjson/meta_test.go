package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/watcherd/watcherd/internal/apitest"
)

func TestScan(t *testing.T) {
	raw := []byte(` {"kind" : "Pod", "api\u0056ersion":"v1", "m\u0065tadata": {"name":"a\u0026b","namespace":"n","uid":"u","resourceVersion":"7",
		"generation":-3,"creationTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":0,"labels":{"k\/1":"v\"","k2":null},
		"annotations":{"a":"ü\ud83d\ude00"},"finalizers":["f"],"unknown":[{"name":"no"}]},"spec":{"metadata":{"name":"no"}}} `)
	m, err := Scan(raw)
	if err != nil {
		t.Fatal(err)
	}
	for field, pair := range map[string][2]string{
		"kind":              {string(m.Kind), "Pod"},
		"apiVersion":        {string(m.APIVersion), "v1"},
		"name":              {string(m.Name), "a&b"},
		"namespace":         {string(m.Namespace), "n"},
		"uid":               {string(m.UID), "u"},
		"resourceVersion":   {string(m.ResourceVersion), "7"},
		"creationTimestamp": {string(m.CreationTimestamp), "2026-01-02T03:04:05Z"},
		"deletionTimestamp": {string(m.DeletionTimestamp), ""},
		"finalizers":        {string(m.Finalizers), `["f"]`},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", field, pair[0], pair[1])
		}
	}
	if m.Generation != -3 || !m.HasDeletionGracePeriod || m.DeletionGracePeriodSeconds != 0 {
		t.Errorf("numbers: %d, %t, %d", m.Generation, m.HasDeletionGracePeriod, m.DeletionGracePeriodSeconds)
	}
	if want := map[string]string{"k/1": `v"`, "k2": ""}; !equality.Semantic.DeepEqual(m.Labels.Map(), want) {
		t.Errorf("labels: got %v, want %v", m.Labels.Map(), want)
	}
	if v, ok := m.Annotations.Get("a"); !ok || string(v) != "ü😀" {
		t.Errorf("annotation: got %q, %t", v, ok)
	}
	if v, ok := m.Annotations.Get("b"); ok || v != nil {
		t.Errorf("annotation that is not there: got %q, %t", v, ok)
	}
	if head, err := ScanHead(raw); err != nil || !equality.Semantic.DeepEqual(head, m) {
		t.Errorf("ScanHead: got %+v, %v, want %+v", head, err, m)
	}
}

// TestScanHeadStops has something after the metadata that Scan refuses and ScanHead never sees.
func TestScanHeadStops(t *testing.T) {
	raw := []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":`)
	if m, err := ScanHead(raw); err != nil || string(m.Name) != "a" {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := Scan(raw); err == nil {
		t.Error("Scan took an object that breaks off")
	}
	if _, err := ScanHead(raw[:40]); err == nil {
		t.Error("ScanHead took metadata that breaks off")
	}
}

func TestScanLastOfDuplicatesCounts(t *testing.T) {
	m, err := Scan([]byte(`{"kind":"A","metadata":{"name":"a","uid":"u"},"kind":"B","metadata":{"name":"b","name":"c","labels":{"x":"1","x":"2"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Kind) != "B" || string(m.Name) != "c" || m.UID != nil || m.Labels.Map()["x"] != "2" {
		t.Errorf("got kind %q, name %q, uid %q, labels %v", m.Kind, m.Name, m.UID, m.Labels.Map())
	}
}

func TestScanRefuses(t *testing.T) {
	for _, raw := range []string{
		``, ` `, `{`, `[]`, `"a"`, `null`, `{}x`, `{} {}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":01}`, `{"a":1.}`,
		`{"a":.5}`, `{"a":1e}`, `{"a":-}`, `{"a":+1}`, `{"a":tru}`, `{"a":nul}`, `{"a":[1,]}`, `{"a":[1 2]}`, `{"a":[}`, `{"a":{]}`, `{"a":"\x"}`,
		`{"a":"\u12g4"}`, `{"a":"\u12`, "{\"a\":\"\n\"}", `{"a":"`, `{"a":"\`, "{\"a\":1}\x00", `{"a":[[[`, `{"a":1]`, "\ufeff{}",
	} {
		_, err := Scan([]byte(raw))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%s: got error %v, want a syntax error", raw, err)
			continue
		}
		if syntax.Offset < 0 || syntax.Offset > len(raw) {
			t.Errorf("%s: offset %d", raw, syntax.Offset)
		}
		if json.Valid([]byte(raw)) && strings.HasPrefix(raw, "{") {
			t.Errorf("%s is valid", raw)
		}
	}
	for _, raw := range []string{
		`{"kind":1}`, `{"metadata":[]}`, `{"metadata":"x"}`, `{"metadata":{"name":{}}}`, `{"metadata":{"generation":"1"}}`, `{"metadata":{"generation":1.5}}`,
		`{"metadata":{"labels":[]}}`, `{"metadata":{"labels":{"a":1}}}`, `{"metadata":{"finalizers":{}}}`,
	} {
		_, err := Scan([]byte(raw))
		var syntax *SyntaxError
		if err == nil || errors.As(err, &syntax) {
			t.Errorf("%s: got error %v, want one of a wrong type", raw, err)
		}
	}
}

// TestDepth nests as deep as encoding/json allows, and a level deeper.
func TestDepth(t *testing.T) {
	nested := func(n int, opening, closing string) []byte {
		return []byte(`{"a":` + strings.Repeat(opening, n-1) + `1` + strings.Repeat(closing, n-1) + `}`)
	}
	drop, err := NewEditor(Rule{Path: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string][2]string{"arrays": {"[", "]"}, "objects": {`{"a":`, "}"}} {
		for levels, ok := range map[int]bool{1: true, 63: true, 64: true, 65: true, 66: true, 128: true, 129: true, maxDepth: true, maxDepth + 1: false, 1_000_000: false} {
			raw := nested(levels, kind[0], kind[1])
			if json.Valid(raw) != ok {
				t.Fatalf("%d %s: encoding/json disagrees", levels, name)
			}
			if _, err := Scan(raw); (err == nil) != ok {
				t.Errorf("%d %s: Scan: %v", levels, name, err)
			}
			if _, err := drop.Append(nil, raw); (err == nil) != ok {
				t.Errorf("%d %s: Editor: %v", levels, name, err)
			}
		}
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	raw := apitest.NewPods(1).Next()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Scan(raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// decodeMeta is the oracle: what Kubernetes' own decoder makes of the JSON. plain is false where the two differ on
// purpose: keys that occur twice.
func decodeMeta(raw []byte) (meta metav1.PartialObjectMetadata, plain bool, err error) {
	strict, err := kjson.UnmarshalStrict(raw, &meta)
	for _, s := range strict {
		if strings.Contains(s.Error(), "duplicate") {
			return meta, false, err
		}
	}
	return meta, true, err
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1","generateName":"a-","ownerReferences":[{}]},"spec":{}}`,
		`{"metadata":{"name":"a\u0026b","labels":{"a":null},"deletionGracePeriodSeconds":30}}`,
		`{"metadata":{"creationTimestamp":"2026-01-02T03:04:05.5+01:00","deletionTimestamp":null,"generation":9223372036854775807}}`,
		"{\"metadata\":{\"name\":\"\xff\\ud800\\ud83d\\ude00\"}}", `{"metadata":{"annotations":{"a":"1","a":"2"}},"metadata":null}`,
		`{"a":[1,-0.5e+7,true,false,null,"\u00e9\\"]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := Scan(raw)
		if err == nil && !json.Valid(raw) {
			t.Fatalf("took what is not valid: %q", raw)
		}
		want, plain, wantErr := decodeMeta(raw)
		if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) || wantErr != nil || !plain {
			return
		}
		if err != nil {
			t.Fatalf("refused %q: %v", raw, err)
		}
		check := func(field string, got, want any) {
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("%q: %s: got %v, want %v", raw, field, got, want)
			}
		}
		check("apiVersion", string(m.APIVersion), want.APIVersion)
		check("kind", string(m.Kind), want.Kind)
		check("name", string(m.Name), want.Name)
		check("generateName", string(m.GenerateName), want.GenerateName)
		check("namespace", string(m.Namespace), want.Namespace)
		check("uid", string(m.UID), string(want.UID))
		check("resourceVersion", string(m.ResourceVersion), want.ResourceVersion)
		check("generation", m.Generation, want.Generation)
		check("labels", m.Labels.Map(), want.Labels)
		check("annotations", m.Annotations.Map(), want.Annotations)
		check("has deletionGracePeriodSeconds", m.HasDeletionGracePeriod, want.DeletionGracePeriodSeconds != nil)
		if want.DeletionGracePeriodSeconds != nil {
			check("deletionGracePeriodSeconds", m.DeletionGracePeriodSeconds, *want.DeletionGracePeriodSeconds)
		}
		for _, c := range []struct {
			field string
			got   []byte
			want  *metav1.Time
		}{{"creationTimestamp", m.CreationTimestamp, &want.CreationTimestamp}, {"deletionTimestamp", m.DeletionTimestamp, want.DeletionTimestamp}} {
			if len(c.got) == 0 {
				check("no "+c.field, c.want.IsZero(), true)
				continue
			}
			got, err := time.Parse(time.RFC3339, string(c.got))
			if err != nil {
				t.Fatal(err)
			}
			check(c.field, got.Unix(), c.want.Unix())
		}
		var finalizers []string
		if m.Finalizers != nil {
			if err := json.Unmarshal(m.Finalizers, &finalizers); err != nil {
				t.Fatal(err)
			}
		}
		check("finalizers", finalizers, want.Finalizers)
		if head, err := ScanHead(raw); err != nil || !equality.Semantic.DeepEqual(head, m) {
			t.Errorf("%q: ScanHead: got %+v, %v, want %+v", raw, head, err, m)
		}
	})
}
