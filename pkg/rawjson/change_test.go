package rawjson

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

func TestChange(t *testing.T) {
	entry := func(manager, operation, subresource, time string) string {
		return `{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"k:{\"a\":1}":{}}},"manager":"` + manager +
			`","operation":"` + operation + `","subresource":"` + subresource + `","time":"` + time + `"}`
	}
	const old, new = "2026-11-22T10:00:00Z", "2026-11-22T10:00:01Z"
	for name, tc := range map[string]struct {
		fields string
		want   Change
	}{
		"none":      {`[]`, Change{}},
		"null":      {`null`, Change{}},
		"an object": {`{"time":"` + new + `"}`, Change{}},
		"text":      {`["x", 1, null, []]`, Change{}},
		"one":       {`[` + entry("kubectl-edit", "Update", "", old) + `]`, Change{texts("kubectl-edit"), []byte("Update"), nil, []byte(old), nil}},
		"the newest, not the last": {
			`[` + entry("a", "Update", "", old) + `,` + entry("b", "Apply", "scale", new) + `,` + entry("c", "Update", "", old) + `]`,
			Change{texts("b"), []byte("Apply"), []byte("scale"), []byte(new), nil},
		},
		"several": {
			`[` + entry("a", "Update", "", new) + `,` + entry("b", "Update", "status", new) + `,` + entry("a", "Update", "status", new) + `]`,
			Change{texts("a", "b"), []byte("Update"), nil, []byte(new), nil},
		},
		"operations differ": {
			`[` + entry("a", "Update", "status", new) + `,` + entry("b", "Apply", "status", new) + `]`,
			Change{texts("a", "b"), nil, []byte("status"), []byte(new), nil},
		},
		"escaped": {`[` + entry(`k\u0061`, "Update", "", old) + `]`, Change{texts("ka"), []byte("Update"), nil, []byte(old), nil}},
		"no time": {`[{"manager":"a"}]`, Change{}},
		"scaled": {
			`[` + entry("a", "Update", "", old) + `,{"manager":"hpa","operation":"Update","subresource":"scale"},` + entry("b", "Update", "", new) + `]`,
			Change{texts("b"), []byte("Update"), nil, []byte(new), []byte("hpa")},
		},
		"an odd time":       {`[` + entry("a", "Update", "", "2026-11-22T10:00:00.5Z") + `]`, Change{}},
		"a time of numbers": {`[{"manager":"a","time":5}]`, Change{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, rules := range [][]Rule{nil, {{Path: "metadata.managedFields"}}, {{Path: "*.*"}}, {{Path: "metadata.managedFields[*].fieldsV1"}}} {
				e, err := NewEditor(rules...)
				if err != nil {
					t.Fatal(err)
				}
				raw := []byte(`{"kind":"Pod","metadata":{"name":"a","managedFields":` + tc.fields + `,"uid":"u"},"managedFields":[` + entry("x", "y", "z", new) + `]}`)
				want, err := e.Append(nil, raw)
				if err != nil {
					t.Fatal(err)
				}
				by := Change{Managers: texts("from", "before"), Time: []byte(new)}
				got, err := e.AppendChange(nil, raw, &by)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != string(want) {
					t.Errorf("%v: edited to %s, without the change to %s", rules, got, want)
				}
				if diff := cmp.Diff(tc.want, by, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%v: (-want +got)\n%s", rules, diff)
				}
			}
		})
	}
}

func texts(all ...string) (list [][]byte) {
	for _, s := range all {
		list = append(list, []byte(s))
	}
	return list
}

// FuzzChange compares with the API's own types.
func FuzzChange(f *testing.F) {
	f.Add(`[{"manager":"a","operation":"Update","time":"2026-11-22T10:00:00Z","fieldsV1":{"f:a":{}}},{"manager":"b","operation":"Apply","subresource":"status","time":"2026-11-22T10:00:00Z"}]`)
	f.Add(`[{"manager":"a","time":"2026-11-22T10:00:00Z"},{"manager":"b","time":"2026-11-22T09:59:59Z"}]`)
	e, err := NewEditor(Rule{Path: "metadata.managedFields"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, fields string) {
		raw := []byte(`{"metadata":{"managedFields":` + fields + `}}`)
		var by Change
		_, err := e.AppendChange(nil, raw, &by)
		if (err == nil) != json.Valid(raw) {
			if _, plain := e.Append(nil, raw); (plain == nil) != (err == nil) {
				t.Fatalf("%q: %v with the change, %v without", raw, err, plain)
			}
			return
		}
		var entries []metav1.ManagedFieldsEntry
		if err != nil || utiljson.Unmarshal([]byte(fields), &entries) != nil {
			return
		}
		var newest time.Time
		for _, m := range entries {
			if m.Time != nil && m.Time.After(newest) {
				newest = m.Time.Time
			}
		}
		got, err := time.Parse(time.RFC3339, string(by.Time))
		if err != nil || !got.Equal(newest) {
			return // times in a form that API servers do not send
		}
		for _, name := range by.Managers {
			if !slices.ContainsFunc(entries, func(m metav1.ManagedFieldsEntry) bool {
				return m.Manager == string(name) && m.Time != nil && m.Time.Time.Equal(newest)
			}) {
				t.Errorf("%q: no manager %q at %s", fields, name, newest)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	raw, _ := benchPods(b, 500)
	e, err := NewEditor(Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	var dst []byte
	var by Change
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if dst, err = e.Append(dst[:0], raw[i%len(raw)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if dst, err = e.AppendChange(dst[:0], raw[i%len(raw)], &by); err != nil || len(by.Managers) == 0 {
				b.Fatal(by, err)
			}
		}
	})
}
