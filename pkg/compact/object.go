package compact

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Object is one Kubernetes object. The fields of keys, indexes and selectors are
// readable in place, the rest is compressed. It is immutable and safe for
// concurrent use. It implements runtime.Object and metav1.Object; its setters
// panic, and DeepCopyObject returns the object itself.
//
// GetNamespace, GetName, GetUID, GetResourceVersion, GetGeneration, the timestamps
// and Labels do not inflate; their strings point into the object. GetLabels builds
// a map. GetAnnotations, GetOwnerReferences, GetFinalizers, GetGenerateName,
// GetManagedFields and GetDeletionGracePeriodSeconds inflate the object if the
// field is set, which takes some microseconds. They return nothing if inflating
// fails, which does not happen to an object made by Encode; AppendJSON returns the
// error.
type Object struct {
	readOnly
	// packed holds the object's own data in one allocation: namespace, name, uid,
	// resourceVersion, head, change, labels and body.
	packed   string
	kind     *typeMeta
	position uint64
	sequence atomic.Uint64
	dict     uint32
	bodyAt   uint32
	ends     [4]uint16 // where namespace, name, uid and resourceVersion end
}

// APIVersion returns the apiVersion, such as apps/v1.
func (o *Object) APIVersion() string { return o.kind.apiVersion }

// Kind returns the kind.
func (o *Object) Kind() string { return o.kind.kind }

// Position returns the object's place in its informer's stream, 0 for none.
func (o *Object) Position() uint64 { return o.position }

// WithPosition returns the object with another position. It shares the memory.
func (o *Object) WithPosition(position uint64) *Object {
	c := &Object{packed: o.packed, kind: o.kind, position: position, dict: o.dict, bodyAt: o.bodyAt, ends: o.ends}
	c.RecordedAs(o.Sequence())
	return c
}

// Sequence returns the number under which the state was recorded, 0 for none.
func (o *Object) Sequence() uint64 { return o.sequence.Load() }

// RecordedAs notes the number under which the state was recorded. Unlike everything
// else of an Object it may change while others read.
func (o *Object) RecordedAs(sequence uint64) { o.sequence.Store(sequence) }

// Body returns the compressed JSON, shared with the object: read only.
func (o *Object) Body() Body {
	body := o.packed[o.bodyAt:]
	data := unsafe.Slice(unsafe.StringData(body), len(body)) //nolint:gosec // read only: the bytes of a string
	return Body{Dict: o.dict, RawLen: o.RawLen(), Data: data}
}

// RawLen returns the length of the object's JSON.
func (o *Object) RawLen() int { return o.head().rawLen }

// AppendJSON appends the object's JSON, byte for byte as encoded. Its errors are
// those of Dictionaries.Inflate.
func (o *Object) AppendJSON(dst []byte) ([]byte, error) {
	return o.kind.dicts.Inflate(dst, o.Body())
}

// Unstructured decodes the object into a new map.
func (o *Object) Unstructured() (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	err := o.withJSON(func(raw []byte) error { return json.Unmarshal(raw, &u.Object) })
	if err != nil {
		return nil, fmt.Errorf("compact: %s %s/%s: %w", o.kind.kind, o.GetNamespace(), o.GetName(), err)
	}
	return u, nil
}

// withJSON inflates the object into a pooled buffer.
func (o *Object) withJSON(use func(raw []byte) error) error {
	buf := o.kind.dicts.buffers.Get().(*[]byte)
	defer o.kind.dicts.buffers.Put(buf)
	raw, err := o.AppendJSON((*buf)[:0])
	if err != nil {
		return err
	}
	if cap(raw) <= maxIdleBuffer {
		*buf = raw
	}
	return use(raw)
}

// Size returns the object's memory in bytes, without the data shared by its codec's
// objects.
func (o *Object) Size() int {
	return int(unsafe.Sizeof(*o)) + len(o.packed)
}

func (o *Object) head() head {
	h, _ := o.headAndRest()
	return h
}

// headAndRest returns the head, and what is between it and the body: who changed the object if the head has that flag, and the labels.
func (o *Object) headAndRest() (head, packedReader) {
	r := packedReader{s: o.packed[o.ends[3]:o.bodyAt], ok: true}
	return r.head(), r
}

// pack sets the object's metadata and body, which is raw's, or known.
func (o *Object) pack(d *Dictionaries, raw []byte, m *rawjson.Meta, known Body) error {
	h, err := newHead(m, len(raw))
	if err != nil {
		return err
	}
	buf := d.buffers.Get().(*[]byte)
	defer d.buffers.Put(buf)
	b := (*buf)[:0]
	for i, text := range [...][]byte{m.Namespace, m.Name, m.UID, m.ResourceVersion} {
		if b = append(b, text...); len(b) > math.MaxUint16 {
			return fmt.Errorf("compact: namespace, name, uid and resourceVersion are more than %d bytes", math.MaxUint16)
		}
		o.ends[i] = uint16(len(b))
	}
	if c := m.Change; c != nil && len(c.Managers) > 0 {
		if at, err := unixSeconds(c.Time); err == nil {
			h.flags |= hasChange
			b = o.kind.appendChange(h.appendTo(b), c, at)
		}
	}
	if h.flags&hasChange == 0 {
		b = h.appendTo(b)
	}
	for key, value := range m.Labels.All() {
		b = o.kind.labelKeys.append(b, key, value)
	}
	o.bodyAt = uint32(len(b)) // the labels are part of raw, which is bounded
	if len(known.Data) > 0 {
		b, o.dict = append(b, known.Data...), known.Dict
	} else if b, o.dict, err = d.compress(b, raw, o.dict); err != nil {
		return err
	}
	o.packed = string(b)
	if cap(b) <= maxIdleBuffer {
		*buf = b
	}
	return nil
}

func newHead(m *rawjson.Meta, rawLen int) (head, error) {
	h := head{rawLen: rawLen, generation: m.Generation}
	var err error
	if len(m.CreationTimestamp) > 0 {
		h.flags |= hasCreation
		if h.created, err = unixSeconds(m.CreationTimestamp); err != nil {
			return h, fmt.Errorf("compact: metadata.creationTimestamp: %w", err)
		}
	}
	if len(m.DeletionTimestamp) > 0 {
		h.flags |= hasDeletion
		if h.deleted, err = unixSeconds(m.DeletionTimestamp); err != nil {
			return h, fmt.Errorf("compact: metadata.deletionTimestamp: %w", err)
		}
	}
	if !m.Annotations.Empty() {
		h.flags |= hasAnnotations
	}
	if len(m.OwnerReferences) > len("[]") {
		h.flags |= hasOwners
	}
	if len(m.Finalizers) > len("[]") {
		h.flags |= hasFinalizers
	}
	if len(m.GenerateName) > 0 {
		h.flags |= hasGenerateName
	}
	if len(m.ManagedFields) > len("[]") {
		h.flags |= hasManagedFields
	}
	return h, nil
}

// unixSeconds parses an RFC 3339 time to the second, as metav1.Time does.
func unixSeconds(text []byte) (int64, error) {
	t, err := time.Parse(time.RFC3339, string(text))
	return t.Unix(), err
}

// LastChange is who changed an object last, as rawjson.Change has it. The zero value
// means that it is unknown.
type LastChange struct {
	Manager     string // several are separated by commas
	Operation   string // Apply or Update; "" if several differ
	Subresource string // "" for the object itself, or if several differ
	Time        time.Time
}

// LastChange returns who changed the object last, if its managed fields said so when it
// was encoded. An object from Decode does not have it.
func (o *Object) LastChange() LastChange {
	c, _ := o.lastChange()
	return c
}

// maxAhead is how far the clock of an API server may be ahead of the one here.
const maxAhead = time.Minute

// ChangedBy returns who changed an object from before, nil if that is unknown, to o. It is LastChange, unless the change
// left no time there: if the generation is another and LastChange is that of before, the object was scaled, by the
// manager of the entry of scale, at the time at which that was observed, in seconds. Within the second of LastChange,
// as observed, it may have been either: both are named. The request of a deletion leaves no manager: who made it is unknown.
// It is unknown, too, after a change with a time of the future, which a client can write into the managed fields: that entry
// stays the newest.
func (o *Object) ChangedBy(before *Object, observed time.Time) LastChange {
	c, scaler := o.lastChange()
	if before != nil && o.head().flags&^before.head().flags&hasDeletion != 0 {
		if was := before.LastChange(); was == c || was == (LastChange{}) {
			return LastChange{}
		}
	}
	if c.Time.After(observed.Add(maxAhead)) && before != nil && before.LastChange() == c {
		return LastChange{}
	}
	if scaler == "" || before == nil || before.GetGeneration() == o.GetGeneration() || before.LastChange() != c {
		return c
	}
	scaled := LastChange{Manager: scaler, Operation: "Update", Subresource: "scale", Time: observed.UTC().Truncate(time.Second)}
	if !scaled.Time.Equal(c.Time) {
		return scaled
	}
	if c.Manager != scaler {
		c.Manager += "," + scaler
	}
	if c.Operation != scaled.Operation {
		c.Operation = ""
	}
	if c.Subresource != scaled.Subresource {
		c.Subresource = ""
	}
	return c
}

func (o *Object) lastChange() (c LastChange, scaler string) {
	h, r := o.headAndRest()
	if h.flags&hasChange == 0 {
		return c, ""
	}
	var key string
	if n := r.byte(); n == literalKey {
		key = r.text()
	} else {
		key = o.kind.changes.all()[n]
	}
	c.Time = time.Unix(r.varint(), 0).UTC()
	c.Operation, key, _ = strings.Cut(key, "\n")
	c.Subresource, key, _ = strings.Cut(key, "\n")
	c.Manager, scaler, _ = strings.Cut(key, "\n")
	return c, scaler
}

// appendChange packs all but the time as the number of a text, as few managers change
// the objects of a type, and the time in seconds.
func (t *typeMeta) appendChange(dst []byte, c *rawjson.Change, at int64) []byte {
	var space [256]byte
	key := append(append(space[:0], c.Operation...), '\n')
	key = append(append(key, c.Subresource...), '\n')
	for i, m := range c.Managers {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(key, m...)
	}
	if len(c.Scaler) > 0 {
		key = append(append(key, '\n'), c.Scaler...)
	}
	return binary.AppendVarint(t.changes.appendNumber(dst, key), at)
}

func (r *packedReader) skipChange() {
	if r.byte() == literalKey {
		r.text()
	}
	r.varint()
}

// Codec encodes the objects of one resource and decodes objects of any. It builds a
// dictionary from the first objects and later trains a better one (see trainer), or
// uses the newer dictionary of another codec of the resource or of an earlier
// process.
//
// Encode and Refresh are for one goroutine at a time. Decode is safe for concurrent use, also
// during these.
type Codec struct {
	dicts   *Dictionaries
	trainer trainer // of Encode
}

// NewCodec returns a codec that adds its dictionaries to d. It names the resource
// by apiVersion and kind of the first object, which is wrong for metadata alone:
// every PartialObjectMetadata has the same type.
func NewCodec(d *Dictionaries) *Codec { return NewCodecFor(d, "") }

// NewCodecFor is NewCodec with a name for the resource. Codecs of similar objects,
// such as one resource in several namespaces, should share a name. The name must be
// the same in the next process.
func NewCodecFor(d *Dictionaries, resource string) *Codec {
	return &Codec{dicts: d, trainer: trainer{dicts: d, resource: resource}}
}

// Encode encodes raw, the JSON of one object. m is the result of rawjson.Scan, nil
// to scan raw here. position is the object's place in its stream, 0 for none.
// Encode retains neither raw nor m. It fails if m has invalid times, or with
// ErrDictionary if a new dictionary cannot be saved.
func (c *Codec) Encode(raw []byte, m *rawjson.Meta, position uint64) (*Object, error) {
	if len(raw) == 0 || len(raw) > MaxRawLen {
		return nil, fmt.Errorf("compact: an object of %d bytes is empty or too large", len(raw))
	}
	if m == nil {
		scanned, err := rawjson.Scan(raw)
		if err != nil {
			return nil, err
		}
		m = &scanned
	}
	o := &Object{kind: c.dicts.types.of(m.APIVersion, m.Kind), position: position}
	if c.trainer.resource == "" {
		c.trainer.resource = o.kind.apiVersion + " " + o.kind.kind
	}
	var err error
	if o.dict, err = c.trainer.dictionary(raw); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDictionary, err)
	}
	if err := o.pack(c.dicts, raw, m, Body{}); err != nil {
		return nil, err
	}
	c.trainer.observe(o)
	return o, nil
}

// Object makes an object of raw, its JSON. known is the body that raw was inflated from,
// empty if there is none: then raw is encoded without a dictionary. It fails as Encode does
// without a result of rawjson.Scan.
func (d *Dictionaries) Object(raw []byte, known Body) (*Object, error) {
	if len(raw) == 0 || len(raw) > MaxRawLen {
		return nil, fmt.Errorf("compact: an object of %d bytes is empty or too large", len(raw))
	}
	m, err := rawjson.Scan(raw)
	if err != nil {
		return nil, err
	}
	o := &Object{kind: d.types.of(m.APIVersion, m.Kind)}
	return o, o.pack(d, raw, &m, known)
}

// typeMeta is the data shared by all objects of a type.
type typeMeta struct {
	apiVersion, kind string
	labelKeys        keyTable
	changes          keyTable // of appendChange
	dicts            *Dictionaries
}

// typeTable interns types. They are few and never removed.
type typeTable struct {
	dicts *Dictionaries

	mu   sync.RWMutex // guards byID
	byID map[typeID]*typeMeta
}

type typeID struct{ apiVersion, kind string }

// of returns a type. It retains neither argument.
func (t *typeTable) of(apiVersion, kind []byte) *typeMeta {
	t.mu.RLock()
	found := t.byID[typeID{string(apiVersion), string(kind)}]
	t.mu.RUnlock()
	if found != nil {
		return found
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id := typeID{string(apiVersion), string(kind)}
	if t.byID[id] == nil {
		t.byID[id] = &typeMeta{apiVersion: id.apiVersion, kind: id.kind, dicts: t.dicts}
	}
	return t.byID[id]
}
