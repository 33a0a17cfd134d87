package compact

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

var (
	_ runtime.Object    = (*Object)(nil)
	_ schema.ObjectKind = (*Object)(nil)
	_ metav1.Object     = (*Object)(nil)
	_ labels.Labels     = Labels{}
)

// GetObjectKind returns the object itself.
func (o *Object) GetObjectKind() schema.ObjectKind { return o }

// GroupVersionKind returns the object's apiVersion and kind.
func (o *Object) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.kind.apiVersion, o.kind.kind)
}

// DeepCopyObject returns the object itself, which is immutable.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// GetNamespace does not allocate; the string points into the object.
func (o *Object) GetNamespace() string { return o.packed[:o.ends[0]] }

// GetName does not allocate; the string points into the object.
func (o *Object) GetName() string { return o.packed[o.ends[0]:o.ends[1]] }

// GetUID does not allocate; the string points into the object.
func (o *Object) GetUID() types.UID { return types.UID(o.packed[o.ends[1]:o.ends[2]]) }

// GetResourceVersion does not allocate; the string points into the object.
func (o *Object) GetResourceVersion() string { return o.packed[o.ends[2]:o.ends[3]] }

// GetGeneration does not allocate.
func (o *Object) GetGeneration() int64 { return o.head().generation }

// GetCreationTimestamp does not allocate. Times have seconds, in UTC.
func (o *Object) GetCreationTimestamp() metav1.Time {
	h := o.head()
	if h.flags&hasCreation == 0 {
		return metav1.Time{}
	}
	return metav1.Time{Time: time.Unix(h.created, 0).UTC()}
}

// GetDeletionTimestamp returns nil unless the object is being deleted.
func (o *Object) GetDeletionTimestamp() *metav1.Time {
	h := o.head()
	if h.flags&hasDeletion == 0 {
		return nil
	}
	return &metav1.Time{Time: time.Unix(h.deleted, 0).UTC()}
}

// GetLabels builds a new map; Labels reads in place.
func (o *Object) GetLabels() map[string]string { return o.Labels().Map() }

// GetAnnotations inflates the object unless it has none and builds a new map.
func (o *Object) GetAnnotations() map[string]string {
	if !o.has(hasAnnotations) {
		return nil
	}
	var m map[string]string
	o.inflated(func(meta *rawjson.Meta) { m = meta.Annotations.Map() })
	return m
}

// GetFinalizers inflates the object unless it has none.
func (o *Object) GetFinalizers() []string {
	return inflatedSlice[string](o, hasFinalizers, func(m *rawjson.Meta) []byte { return m.Finalizers })
}

// GetOwnerReferences inflates the object unless it has none.
func (o *Object) GetOwnerReferences() []metav1.OwnerReference {
	return inflatedSlice[metav1.OwnerReference](o, hasOwners, func(m *rawjson.Meta) []byte { return m.OwnerReferences })
}

// GetManagedFields inflates the object unless it has none (they are dropped by default).
func (o *Object) GetManagedFields() []metav1.ManagedFieldsEntry {
	return inflatedSlice[metav1.ManagedFieldsEntry](o, hasManagedFields, func(m *rawjson.Meta) []byte { return m.ManagedFields })
}

// GetGenerateName inflates the object unless it has none.
func (o *Object) GetGenerateName() string {
	if !o.has(hasGenerateName) {
		return ""
	}
	var name string
	o.inflated(func(m *rawjson.Meta) { name = string(m.GenerateName) })
	return name
}

// GetSelfLink returns "": API servers do not send it since Kubernetes 1.20.
func (o *Object) GetSelfLink() string { return "" }

// GetDeletionGracePeriodSeconds inflates the object if it is being deleted.
func (o *Object) GetDeletionGracePeriodSeconds() *int64 {
	if !o.has(hasDeletion) {
		return nil
	}
	var seconds *int64
	o.inflated(func(m *rawjson.Meta) {
		if m.HasDeletionGracePeriod {
			n := m.DeletionGracePeriodSeconds
			seconds = &n
		}
	})
	return seconds
}

func (o *Object) has(flag byte) bool { return o.head().flags&flag != 0 }

// inflated calls use with the metadata of the inflated object. use must not retain
// it.
func (o *Object) inflated(use func(*rawjson.Meta)) {
	// An object made by Encode inflates; see Object.
	_ = o.withJSON(func(raw []byte) error {
		m, err := rawjson.ScanHead(raw)
		if err == nil {
			use(&m)
		}
		return err
	})
}

func inflatedSlice[T any](o *Object, flag byte, field func(*rawjson.Meta) []byte) []T {
	if !o.has(flag) {
		return nil
	}
	var out []T
	o.inflated(func(m *rawjson.Meta) {
		if json.Unmarshal(field(m), &out) != nil {
			out = nil
		}
	})
	return out
}

// readOnly has the setters of an Object, which all panic: caches, queues and handlers share
// an object.
type readOnly struct{}

func refuse(setter string) {
	panic(fmt.Sprintf("compact: %s on a read-only object; modify a copy from Unstructured", setter))
}

func (readOnly) SetGroupVersionKind(schema.GroupVersionKind)  { refuse("SetGroupVersionKind") }
func (readOnly) SetNamespace(string)                          { refuse("SetNamespace") }
func (readOnly) SetName(string)                               { refuse("SetName") }
func (readOnly) SetGenerateName(string)                       { refuse("SetGenerateName") }
func (readOnly) SetUID(types.UID)                             { refuse("SetUID") }
func (readOnly) SetResourceVersion(string)                    { refuse("SetResourceVersion") }
func (readOnly) SetGeneration(int64)                          { refuse("SetGeneration") }
func (readOnly) SetSelfLink(string)                           { refuse("SetSelfLink") }
func (readOnly) SetCreationTimestamp(metav1.Time)             { refuse("SetCreationTimestamp") }
func (readOnly) SetDeletionTimestamp(*metav1.Time)            { refuse("SetDeletionTimestamp") }
func (readOnly) SetDeletionGracePeriodSeconds(*int64)         { refuse("SetDeletionGracePeriodSeconds") }
func (readOnly) SetLabels(map[string]string)                  { refuse("SetLabels") }
func (readOnly) SetAnnotations(map[string]string)             { refuse("SetAnnotations") }
func (readOnly) SetFinalizers([]string)                       { refuse("SetFinalizers") }
func (readOnly) SetOwnerReferences([]metav1.OwnerReference)   { refuse("SetOwnerReferences") }
func (readOnly) SetManagedFields([]metav1.ManagedFieldsEntry) { refuse("SetManagedFields") }

// Labels reads an object's labels in place. It implements labels.Labels, so a
// selector matches without building a map. If a key occurs twice, the last value
// counts.
type Labels struct {
	packed string
	keys   []string // by number, see keyTable
}

// Labels returns the object's labels without allocating.
func (o *Object) Labels() Labels {
	h, r := o.headAndRest()
	if h.flags&hasChange != 0 {
		r.skipChange()
	}
	return Labels{r.s, o.kind.labelKeys.all()}
}

// All yields every label in the order sent. A key that occurs twice is yielded
// twice; the last value is the valid one.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		r := packedReader{s: l.packed, ok: true}
		for len(r.s) > 0 {
			var key string
			if n := r.byte(); n == literalKey {
				key = r.text()
			} else {
				key = l.keys[n]
			}
			if !yield(key, r.text()) {
				return
			}
		}
	}
}

// Same reports whether both are certainly the same labels in the same order. They are of
// objects of one type.
func (l Labels) Same(other Labels) bool { return l.packed == other.packed }

// Lookup returns the value of a label and whether it is set.
func (l Labels) Lookup(key string) (value string, ok bool) {
	for k, v := range l.All() {
		if k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Has reports whether a label is set.
func (l Labels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get returns the value of a label, "" if it is not set.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

// Map returns the labels as a new map, nil if there are none.
func (l Labels) Map() map[string]string {
	if l.packed == "" {
		return nil
	}
	return maps.Collect(l.All())
}

// A packed label is the number of its key, or literalKey and the key, then the value.
// Texts are length-prefixed. The keys of a resource's objects are alike and most of the
// bytes, so they are stored once.
const (
	literalKey     = 255 // number of keys that are not in the table
	longestTabled  = 128 // longer keys are not in the table
	maxTabledLabel = literalKey
)

// keyTable numbers the label keys of a resource in order of appearance until it is
// full. It only grows, so a number never changes its meaning.
type keyTable struct {
	keys atomic.Pointer[[]string] // by number; append only

	mu      sync.Mutex // guards numbers, and stores to keys
	numbers map[string]byte
}

func (t *keyTable) all() []string {
	if keys := t.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// number returns the number of a key and assigns one if there is room, else
// literalKey.
func (t *keyTable) number(key []byte) byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.numbers[string(key)]; ok {
		return n
	}
	n := len(t.numbers)
	if n == maxTabledLabel || len(key) > longestTabled {
		return literalKey
	}
	if t.numbers == nil {
		t.numbers = map[string]byte{}
	}
	keys := append(t.all(), string(key))
	t.numbers[keys[n]] = byte(n)
	t.keys.Store(&keys)
	return byte(n)
}

func (t *keyTable) appendNumber(dst, key []byte) []byte {
	n := t.number(key)
	if dst = append(dst, n); n == literalKey {
		dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	}
	return dst
}

func (t *keyTable) append(dst, key, value []byte) []byte {
	dst = t.appendNumber(dst, key)
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}
