package celjson

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/compact"
)

// Document is one state of an object as expressions read it. Type and most of the
// metadata come from the compact object, the rest from its JSON, which is inflated on
// first use. It belongs to one evaluation at a time.
type Document struct {
	obj      *compact.Object
	packed   compact.Labels // the object's labels in place, if labelled
	labelled bool
	lookups  int               // of labels
	byKey    map[string]string // the labels after many lookups, or as a whole
	names    []string          // the keys of the labels, once they were asked for
	inflated bool
	err      error // of inflating
	buffer   []byte
	body     Object

	object   lazyMap // the document
	metadata lazyMap // its metadata
	labels   lazyMap // its labels
}

// Reset sets the document to another state, nil for none. It reuses the memory.
func (d *Document) Reset(o *compact.Object) {
	d.obj, d.labelled, d.inflated, d.err = o, false, false, nil
	d.lookups, d.byKey, d.names = 0, nil, nil
	d.object.mapSource = (*objectSource)(d)
	d.metadata.mapSource = (*metadataSource)(d)
	d.labels.mapSource = (*labelSource)(d)
}

// maxBuffer is the size of the largest buffer kept for the next object.
const maxBuffer = 1 << 20

// Release drops the references to the object.
func (d *Document) Release() {
	d.obj, d.packed, d.byKey, d.names = nil, compact.Labels{}, nil, nil
	d.body.reset(nil)
	if cap(d.buffer) > maxBuffer {
		d.buffer = nil
	}
}

// Source returns the compact object, nil if there is no state.
func (d *Document) Source() *compact.Object { return d.obj }

// Value returns the document as a CEL map, or null if there is no state.
func (d *Document) Value() ref.Val {
	if d.obj == nil {
		return types.NullValue
	}
	return &d.object
}

// Body returns the inflated JSON. It is valid until the next Reset.
func (d *Document) Body() (*Object, error) {
	if !d.inflated {
		d.inflated = true
		d.buffer, d.err = d.obj.AppendJSON(d.buffer[:0])
		d.body.reset(d.buffer)
	}
	return &d.body, d.err
}

// Loaded reports whether the JSON is inflated, and whether it is decoded as a whole.
func (d *Document) Loaded() (inflated, decoded bool) { return d.inflated, d.body.decoded != nil }

// Labels returns the object's labels as a CEL map and whether it has any.
func (d *Document) Labels() (ref.Val, bool) {
	for range d.labelsInPlace().All() {
		return &d.labels, true
	}
	return &d.labels, false
}

// labelsInPlace caches the object's packed labels. Finding them costs as much as
// reading one label.
func (d *Document) labelsInPlace() compact.Labels {
	if !d.labelled {
		d.labelled, d.packed = true, d.obj.Labels()
	}
	return d.packed
}

// Metadata returns a member of the JSON's metadata and whether it is present.
func (d *Document) Metadata(key string) (ref.Val, bool) {
	v, m := d.jsonMetadata()
	if m == nil {
		return v, false
	}
	return m.find(key)
}

func (d *Document) member(key string) (ref.Val, bool) {
	body, err := d.Body()
	if err != nil {
		return types.WrapErr(err), false
	}
	return body.find(key)
}

// jsonMetadata returns the JSON's metadata, as a map if it is one.
func (d *Document) jsonMetadata() (ref.Val, *lazyMap) {
	v, _ := d.member("metadata")
	m, _ := v.(*lazyMap)
	return v, m
}

// Text returns a string and whether it is set: the JSON of an object omits empty text.
func Text(s string) (ref.Val, bool) { return types.String(s), s != "" }

// objectSource is the source of the whole object.
type objectSource Document

func (s *objectSource) find(key string) (ref.Val, bool) {
	d := (*Document)(s)
	switch key {
	case "apiVersion":
		return Text(d.obj.APIVersion())
	case "kind":
		return Text(d.obj.Kind())
	case "metadata":
		return &d.metadata, true
	}
	return d.member(key)
}

func (s *objectSource) keys() ([]string, error) {
	body, err := (*Document)(s).Body()
	if err != nil {
		return nil, err
	}
	return body.keys()
}

func (s *objectSource) count() (int, error) {
	body, err := (*Document)(s).Body()
	if err != nil {
		return 0, err
	}
	return body.count()
}

func (s *objectSource) whole() ref.Val {
	body, err := (*Document)(s).Body()
	if err != nil {
		return types.WrapErr(err)
	}
	return body.whole()
}

func (s *objectSource) JSON() []byte {
	body, err := (*Document)(s).Body()
	if err != nil {
		return nil
	}
	return body.JSON()
}

func (s *objectSource) rawSize() int { return s.obj.RawLen() }

// metadataSource is the source of `object.metadata`.
type metadataSource Document

func (s *metadataSource) find(key string) (ref.Val, bool) {
	d := (*Document)(s)
	switch key {
	case "name":
		return Text(d.obj.GetName())
	case "namespace":
		return Text(d.obj.GetNamespace())
	case "uid":
		return Text(string(d.obj.GetUID()))
	case "resourceVersion":
		return Text(d.obj.GetResourceVersion())
	case "generation":
		n := d.obj.GetGeneration()
		return types.Int(n), n != 0
	case "labels":
		return d.Labels()
	}
	return d.Metadata(key)
}

func (s *metadataSource) keys() ([]string, error) {
	if _, m := (*Document)(s).jsonMetadata(); m != nil {
		return m.keys()
	}
	return nil, s.err
}

func (s *metadataSource) count() (int, error) {
	if _, m := (*Document)(s).jsonMetadata(); m != nil {
		return m.count()
	}
	return 0, s.err
}

func (s *metadataSource) whole() ref.Val {
	if _, m := (*Document)(s).jsonMetadata(); m != nil {
		return m.whole()
	}
	if s.err != nil {
		return types.WrapErr(s.err)
	}
	return types.NewStringInterfaceMap(types.DefaultTypeAdapter, nil)
}

func (s *metadataSource) JSON() []byte {
	if _, m := (*Document)(s).jsonMetadata(); m != nil {
		return m.JSON()
	}
	return nil
}

func (s *metadataSource) rawSize() int { return s.obj.RawLen() }

// labelSource is the source of the object's labels.
type labelSource Document

// maxLookups is the number of lookups in place, each of which reads all labels.
const maxLookups = 32

func (s *labelSource) find(key string) (ref.Val, bool) {
	if len(key) > celexpr.MaxKey { // the API server permits none
		return nil, false
	}
	labels := (*Document)(s).labelsInPlace()
	if s.lookups++; s.lookups <= maxLookups {
		v, found := labels.Lookup(key)
		return types.String(v), found
	}
	if s.byKey == nil {
		s.byKey = labels.Map()
	}
	v, found := s.byKey[key]
	return types.String(v), found
}

func (s *labelSource) keys() ([]string, error) {
	if s.names == nil {
		for key := range (*Document)(s).labelsInPlace().All() {
			s.names = append(s.names, key)
		}
	}
	return s.names, nil
}

func (s *labelSource) count() (int, error) {
	keys, err := s.keys()
	return len(keys), err
}

func (s *labelSource) whole() ref.Val {
	if s.byKey == nil {
		s.byKey = (*Document)(s).labelsInPlace().Map()
	}
	return types.NewStringStringMap(types.DefaultTypeAdapter, s.byKey)
}

func (s *labelSource) JSON() []byte { return nil }
func (s *labelSource) rawSize() int { return s.obj.RawLen() }
