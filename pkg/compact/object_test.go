package compact

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/apitest"
)

// checkObject fails unless an object gives back raw and its getters say what raw says as unstructured.
func checkObject(t *testing.T, o *Object, raw []byte) {
	t.Helper()
	if got, err := o.AppendJSON([]byte("kept")); err != nil || string(got) != "kept"+string(raw) {
		t.Fatalf("inflated: got %s, %v, want kept%s", got, err, raw)
	}
	want := &unstructured.Unstructured{}
	if err := want.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	check := func(field string, got, want any) {
		t.Helper()
		if !equality.Semantic.DeepEqual(want, got) {
			t.Errorf("%s: got %v, want %v", field, got, want)
		}
	}
	check("kind", o.GetObjectKind().GroupVersionKind(), want.GroupVersionKind())
	check("namespace", o.GetNamespace(), want.GetNamespace())
	check("name", o.GetName(), want.GetName())
	check("generateName", o.GetGenerateName(), want.GetGenerateName())
	check("uid", o.GetUID(), want.GetUID())
	check("resourceVersion", o.GetResourceVersion(), want.GetResourceVersion())
	check("generation", o.GetGeneration(), want.GetGeneration())
	check("labels", o.GetLabels(), want.GetLabels())
	check("annotations", o.GetAnnotations(), want.GetAnnotations())
	check("finalizers", o.GetFinalizers(), want.GetFinalizers())
	check("ownerReferences", o.GetOwnerReferences(), want.GetOwnerReferences())
	check("managedFields", o.GetManagedFields(), want.GetManagedFields())
	check("deletionGracePeriodSeconds", o.GetDeletionGracePeriodSeconds(), want.GetDeletionGracePeriodSeconds())
	check("creationTimestamp", o.GetCreationTimestamp(), want.GetCreationTimestamp())
	check("deletionTimestamp", o.GetDeletionTimestamp(), want.GetDeletionTimestamp())
	full, err := o.Unstructured()
	if err != nil {
		t.Fatal(err)
	}
	check("unstructured", full.Object, want.Object)
	check("rawLen", o.RawLen(), len(raw))
	body, err := o.kind.dicts.Inflate(nil, o.Body())
	check("body", string(body), string(raw))
	check("body's error", err, nil)
}

func mustEncode(t testing.TB, c *Codec, raw []byte) *Object {
	t.Helper()
	o, err := c.Encode(raw, nil, 0)
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return o
}

func TestObject(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	for _, raw := range []string{
		`{"kind":"A","apiVersion":"g/v1"}`,
		`{"kind":"A","apiVersion":"g/v1","metadata":{}}`,
		`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"system:a\u003cb","uid":"u","labels":{},"annotations":{},"finalizers":[],"ownerReferences":[]}}`,
		`{"kind":"B","apiVersion":"g/v1","metadata":{"name":"ü","namespace":"n","resourceVersion":"18446744073709551615","generation":-1,"labels":{"a":"","b":"ü"}}}`,
		`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"a","creationTimestamp":"1969-12-31T23:59:59Z","deletionTimestamp":"2026-05-06T07:08:09Z","deletionGracePeriodSeconds":0,"finalizers":["x/y","z"]}}`,
		`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"a","generateName":"g-","ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","controller":true}]},"big":12345678901234567890,"float":1.50}`,
		`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}]}}`,
	} {
		checkObject(t, mustEncode(t, codec, []byte(raw)), []byte(raw))
	}
	g := apitest.NewPods(2)
	for range 40 {
		raw := g.Next()
		checkObject(t, mustEncode(t, codec, raw), raw)
	}
}

func TestObjectRefusesMetadata(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	for _, raw := range []string{
		``, `{`, `[]`, `{"metadata":{"name":1}}`, `{"metadata":{"creationTimestamp":"yesterday"}}`, `{"metadata":{"deletionTimestamp":"2026-13-01T00:00:00Z"}}`,
		`{"metadata":{"name":"` + strings.Repeat("n", 70_000) + `"}}`,
	} {
		if _, err := codec.Encode([]byte(raw), nil, 0); err == nil {
			t.Errorf("took %.80s", raw)
		}
	}
}

// TestLargeObjects are as large as an API server allows and around the sizes where compression changes its ways, with and
// without a dictionary, compressible or not.
func TestLargeObjects(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	random := rand.NewChaCha8([32]byte{})
	sizes := []int{1, 1 << 10, 64 << 10, 128<<10 - 300, 128<<10 + 1, 3 << 20}
	for round := range 2 {
		for _, size := range sizes {
			noise := make([]byte, size/2)
			_, _ = random.Read(noise)
			for kind, data := range map[string]string{"random": hex.EncodeToString(noise), "even": strings.Repeat("abcdefgh", size/8)} {
				raw := fmt.Appendf(nil, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"%s-%d"},"data":{"x":"%s"}}`, kind, size, data)
				o := mustEncode(t, codec, raw)
				if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, raw) {
					t.Errorf("round %d, %s, %d bytes: differs, %v", round, kind, size, err)
				}
				again, err := codec.Decode(o.AppendBinary(nil))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := again.AppendJSON(nil); err != nil || !bytes.Equal(got, raw) {
					t.Errorf("round %d, %s, %d bytes: differs once decoded, %v", round, kind, size, err)
				}
			}
		}
	}
	if codec.trainer.current.id == 0 {
		t.Error("no dictionary was made")
	}
}

func TestLabels(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	o := mustEncode(t, codec, []byte(`{"metadata":{"labels":{"app":"a","tier":"web","app":"b","empty":""}}}`))
	l := o.Labels()
	if v, ok := l.Lookup("app"); v != "b" || !ok {
		t.Errorf("app: got %q, %t", v, ok)
	}
	if !l.Has("empty") || l.Has("none") || l.Get("tier") != "web" || l.Get("none") != "" {
		t.Errorf("got %v", l.Map())
	}
	selector, err := labels.Parse("tier in (web,db),app!=a,!none")
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(l) {
		t.Errorf("%s does not match %v", selector, l.Map())
	}
	if none := mustEncode(t, codec, []byte(`{}`)).Labels(); none.Map() != nil || none.Has("app") {
		t.Errorf("got %v, want none", none.Map())
	}
}

// TestManyLabelKeys goes beyond what the table of label keys holds.
func TestManyLabelKeys(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	var objects []*Object
	for i := range 400 {
		objects = append(objects, mustEncode(t, codec, fmt.Appendf(nil, `{"metadata":{"labels":{"key-%d":"v%d","common":"c","%s":"long"}}}`, i, i, strings.Repeat("k", 200))))
	}
	for i, o := range objects {
		want := map[string]string{fmt.Sprintf("key-%d", i): fmt.Sprintf("v%d", i), "common": "c", strings.Repeat("k", 200): "long"}
		decoded, err := codec.Decode(o.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(o.GetLabels(), want) || !equality.Semantic.DeepEqual(decoded.GetLabels(), want) {
			t.Errorf("object %d: got %v and %v, want %v", i, o.GetLabels(), decoded.GetLabels(), want)
		}
	}
}

func TestObjectIsReadOnly(t *testing.T) {
	o := mustEncode(t, NewCodec(NewDictionaries(nil)), apitest.NewPods(1).Next())
	v := reflect.ValueOf(o)
	setters := 0
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		if !strings.HasPrefix(name, "Set") {
			continue
		}
		setters++
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			v.Method(i).Call([]reflect.Value{reflect.Zero(v.Method(i).Type().In(0))})
		}()
	}
	if want := reflect.TypeFor[metav1.Object]().NumMethod() / 2; setters != want+1 {
		t.Errorf("%d setters, want metav1.Object's %d and SetGroupVersionKind", setters, want)
	}
	if o.DeepCopyObject() != any(o) {
		t.Error("DeepCopyObject made a copy")
	}
	if a, err := meta.Accessor(o); err != nil || a != any(o) {
		t.Errorf("meta.Accessor: %v, %v", a, err)
	}
}

func TestPosition(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	raw := apitest.NewPods(1).Next()
	o, err := codec.Encode(raw, nil, 7)
	if err != nil {
		t.Fatal(err)
	}
	moved := o.WithPosition(9)
	if o.Position() != 7 || moved.Position() != 9 {
		t.Errorf("positions %d and %d", o.Position(), moved.Position())
	}
	checkObject(t, moved, raw)
	if decoded, err := codec.Decode(o.AppendBinary(nil)); err != nil || decoded.Position() != 0 {
		t.Errorf("a decoded object has position %d, %v", decoded.Position(), err)
	}
}

func TestGettersDoNotAllocate(t *testing.T) {
	o := mustEncode(t, NewCodec(NewDictionaries(nil)), apitest.NewPods(1).Next())
	selector, err := labels.Parse("app.kubernetes.io/name!=x")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"GetNamespace":         func() { _ = o.GetNamespace() },
		"GetName":              func() { _ = o.GetName() },
		"GetUID":               func() { _ = o.GetUID() },
		"GetResourceVersion":   func() { _ = o.GetResourceVersion() },
		"GetGeneration":        func() { _ = o.GetGeneration() },
		"GetCreationTimestamp": func() { _ = o.GetCreationTimestamp() },
		"GetFinalizers":        func() { _ = o.GetFinalizers() },
		"GetObjectKind":        func() { _ = o.GetObjectKind() },
		"DeepCopyObject":       func() { _ = o.DeepCopyObject() },
		"Labels":               func() { _ = o.Labels().Get("app.kubernetes.io/name") },
		"Body":                 func() { _ = o.Body() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { selector.Matches(o.Labels()) }); n > 1 {
		t.Errorf("matching a selector: %v allocations, want at most the interface's", n)
	}
}
