package compact

import (
	"bytes"
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// equalMeta fails unless an object's getters say what the same JSON says as unstructured.
func equalMeta(t *testing.T, o *Object, raw []byte) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	var want, got metav1.Object = u, o
	check := func(field string, want, got any) {
		t.Helper()
		if !equality.Semantic.DeepEqual(want, got) {
			t.Errorf("%s: got %v, want %v", field, got, want)
		}
	}
	check("gvk", u.GroupVersionKind(), o.GetObjectKind().GroupVersionKind())
	check("namespace", want.GetNamespace(), got.GetNamespace())
	check("name", want.GetName(), got.GetName())
	check("generateName", want.GetGenerateName(), got.GetGenerateName())
	check("uid", want.GetUID(), got.GetUID())
	check("resourceVersion", want.GetResourceVersion(), got.GetResourceVersion())
	check("generation", want.GetGeneration(), got.GetGeneration())
	check("labels", want.GetLabels(), got.GetLabels())
	check("annotations", want.GetAnnotations(), got.GetAnnotations())
	check("finalizers", want.GetFinalizers(), got.GetFinalizers())
	check("ownerReferences", want.GetOwnerReferences(), got.GetOwnerReferences())
	check("managedFields", want.GetManagedFields(), got.GetManagedFields())
	check("deletionGracePeriodSeconds", want.GetDeletionGracePeriodSeconds(), got.GetDeletionGracePeriodSeconds())
	created, gotCreated := want.GetCreationTimestamp(), got.GetCreationTimestamp()
	check("creationTimestamp", created.Unix(), gotCreated.Unix())
	check("deletionTimestamp", want.GetDeletionTimestamp(), got.GetDeletionTimestamp())
	full, err := o.Unstructured()
	if err != nil {
		t.Fatal(err)
	}
	check("unstructured", u.Object, full.Object)
}

func TestEncodeDecode(t *testing.T) {
	saved := map[uint32][]byte{}
	codec := NewCodec(NewDictionaries(func(id uint32, content []byte) error {
		saved[id] = content
		return nil
	}))
	g := newPodGen(1)
	var raws, binaries [][]byte
	for i := range 100 {
		raw := g.pod()
		m, err := Scan(raw)
		if err != nil {
			t.Fatal(err)
		}
		o, err := codec.Encode(raw, &m, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, raw) {
			t.Fatalf("inflated differs: %v", err)
		}
		if o.Position() != uint64(i) {
			t.Errorf("position %d, want %d", o.Position(), i)
		}
		equalMeta(t, o, raw)
		raws, binaries = append(raws, raw), append(binaries, o.AppendBinary(nil))
	}
	// A later process loads the dictionaries, then the objects.
	later := NewDictionaries(nil)
	for id, content := range saved {
		if err := later.Load(id, content); err != nil {
			t.Fatal(err)
		}
	}
	codec = NewCodec(later)
	for i, b := range binaries {
		o, err := codec.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		equalMeta(t, o, raws[i])
		if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, raws[i]) {
			t.Fatalf("inflated differs: %v", err)
		}
	}
}

func TestEditor(t *testing.T) {
	for _, test := range []struct {
		raw, want string
		rules     []Rule
	}{
		{`{"a":1,"b":2}`, `{"a":1}`, []Rule{{Path: "b"}}},
		{`{"a":1,"b":2}`, `{"b":2}`, []Rule{{Path: "a"}}},
		{` {"a" : 1 , "b" : 2 } `, `{}`, []Rule{{Path: "a"}, {Path: "b"}}},
		{`{"a":[{"x":1,"y":2},{"y":3}]}`, `{"a":[{"x":1},{}]}`, []Rule{{Path: "a[*].y"}}},
		{`{"a":[1,2,3]}`, `{"a":[1,3]}`, []Rule{{Path: "a[1]"}}},
		{`{"\u0061":{"b.c":"d"}}`, `{"\u0061":{}}`, []Rule{{Path: `a["b.c"]`}}},
	} {
		e, err := NewEditor(test.rules...)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Append(nil, []byte(test.raw))
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
		}
		if !json.Valid(got) {
			t.Errorf("%s: %s is not valid", test.raw, got)
		}
		var a, b any
		_ = json.Unmarshal(got, &a)
		_ = json.Unmarshal([]byte(test.want), &b)
		if !equality.Semantic.DeepEqual(a, b) {
			t.Errorf("%s: got %s, want %s", test.raw, got, test.want)
		}
	}
}

func TestScanList(t *testing.T) {
	g := newPodGen(1)
	var items, want [][]byte
	for range 30 {
		p := g.pod()
		want, items = append(want, p), append(items, listItem(p))
	}
	list := []byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"c","remainingItemCount":7},"items":[` + string(bytes.Join(items, []byte(","))) + "]}\n")
	e, err := NewEditor()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	meta, err := ScanList(bytes.NewReader(list), func(raw []byte) error {
		o, err := e.AppendTyped(nil, raw, "v1", "Pod")
		if err != nil {
			return err
		}
		var a, b any
		_ = json.Unmarshal(o, &a)
		_ = json.Unmarshal(want[n], &b)
		if !equality.Semantic.DeepEqual(a, b) {
			t.Errorf("item %d: got %s, want %s", n, o, want[n])
		}
		n++
		return nil
	})
	if err != nil || n != 30 || meta.ResourceVersion != "12" || meta.Continue != "c" || *meta.RemainingItemCount != 7 || meta.Kind != "PodList" {
		t.Errorf("%d items, %+v, %v", n, meta, err)
	}
}
