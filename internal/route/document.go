package route

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/watcherd/watcherd/pkg/compact"
)

// document is one state of an object as expressions read it: type and most of the
// metadata from the compact object, all else from its JSON, inflated when first
// needed. It belongs to one evaluation at a time.
type document struct {
	obj      *compact.Object
	packed   compact.Labels // the object's labels in place, once labelled
	labelled bool
	inflated bool
	err      error // of inflating
	buffer   []byte
	body     rawObject

	object   lazyMap // over the document itself
	metadata lazyMap // its metadata
	labels   lazyMap // its labels
}

// reset points the document at another state; nil is none. Memory is kept.
func (d *document) reset(o *compact.Object) {
	d.obj, d.labelled, d.inflated, d.err = o, false, false, nil
	d.object.mapSource = (*objectSource)(d)
	d.metadata.mapSource = (*metadataSource)(d)
	d.labels.mapSource = (*labelSource)(d)
}

// labelsInPlace are the object's labels. Finding where they are packed costs as much
// as reading one of them.
func (d *document) labelsInPlace() compact.Labels {
	if !d.labelled {
		d.labelled, d.packed = true, d.obj.Labels()
	}
	return d.packed
}

func (d *document) hasLabels() bool {
	for range d.labelsInPlace().All() {
		return true
	}
	return false
}

// maxKept is how much memory a document keeps for the next object.
const maxKept = 1 << 20

// release lets go of the object.
func (d *document) release() {
	d.obj, d.packed = nil, compact.Labels{}
	d.body.reset(nil)
	if cap(d.buffer) > maxKept {
		d.buffer = nil
	}
}

// raw is the object's JSON, valid until the document is reset.
func (d *document) raw() ([]byte, error) {
	if !d.inflated {
		d.inflated = true
		d.buffer, d.err = d.obj.AppendJSON(d.buffer[:0])
		d.body.reset(d.buffer)
	}
	return d.buffer, d.err
}

// member is a member of the JSON object itself.
func (d *document) member(key string) (ref.Val, bool) {
	if _, err := d.raw(); err != nil {
		return types.WrapErr(err), false
	}
	return d.body.find(key)
}

// field is a member of the JSON's metadata.
func (d *document) field(key string) (ref.Val, bool) {
	v, found := d.member("metadata")
	if m, ok := v.(*lazyMap); ok && found {
		return m.find(key)
	}
	return v, false
}

// text is a value that is left out of JSON where it is empty.
func text(s string) (ref.Val, bool) { return types.String(s), s != "" }

// objectSource is the whole object: `object` and `oldObject`.
type objectSource document

func (s *objectSource) find(key string) (ref.Val, bool) {
	d := (*document)(s)
	switch key {
	case "apiVersion":
		return text(d.obj.APIVersion())
	case "kind":
		return text(d.obj.Kind())
	case "metadata":
		return &d.metadata, true
	}
	return d.member(key)
}

func (s *objectSource) keys() ([]string, error) {
	if _, err := (*document)(s).raw(); err != nil {
		return nil, err
	}
	return s.body.keys()
}

func (s *objectSource) count() (int, error) {
	if _, err := (*document)(s).raw(); err != nil {
		return 0, err
	}
	return s.body.count()
}

func (s *objectSource) whole() ref.Val {
	if _, err := (*document)(s).raw(); err != nil {
		return types.WrapErr(err)
	}
	return s.body.whole()
}

func (s *objectSource) json() []byte {
	raw, err := (*document)(s).raw()
	if err != nil {
		return nil
	}
	return raw
}

func (s *objectSource) rawSize() int { return s.obj.RawLen() }

// metadataSource is `object.metadata`, as JSON has it.
type metadataSource document

func (s *metadataSource) find(key string) (ref.Val, bool) {
	d := (*document)(s)
	switch key {
	case "name":
		return text(d.obj.GetName())
	case "namespace":
		return text(d.obj.GetNamespace())
	case "uid":
		return text(string(d.obj.GetUID()))
	case "resourceVersion":
		return text(d.obj.GetResourceVersion())
	case "generation":
		n := d.obj.GetGeneration()
		return types.Int(n), n != 0
	case "labels":
		return &d.labels, d.hasLabels()
	}
	return d.field(key)
}

func (s *metadataSource) keys() ([]string, error) {
	v, found := (*document)(s).member("metadata")
	if m, ok := v.(*lazyMap); ok && found {
		return m.keys()
	}
	return nil, s.err
}

func (s *metadataSource) count() (int, error) {
	v, found := (*document)(s).member("metadata")
	if m, ok := v.(*lazyMap); ok && found {
		return m.count()
	}
	return 0, s.err
}

func (s *metadataSource) whole() ref.Val {
	v, found := (*document)(s).member("metadata")
	if m, ok := v.(*lazyMap); ok && found {
		return m.whole()
	}
	if s.err != nil {
		return types.WrapErr(s.err)
	}
	return types.NewStringInterfaceMap(types.DefaultTypeAdapter, nil)
}

func (s *metadataSource) json() []byte {
	v, found := (*document)(s).member("metadata")
	if m, ok := v.(*lazyMap); ok && found {
		return m.json()
	}
	return nil
}

func (s *metadataSource) rawSize() int { return s.obj.RawLen() }

// labelSource is the object's labels.
type labelSource document

func (s *labelSource) find(key string) (ref.Val, bool) {
	v, found := (*document)(s).labelsInPlace().Lookup(key)
	return types.String(v), found
}

func (s *labelSource) keys() ([]string, error) {
	var keys []string
	for key := range (*document)(s).labelsInPlace().All() {
		keys = append(keys, key)
	}
	return keys, nil
}

func (s *labelSource) count() (int, error) {
	n := 0
	for range (*document)(s).labelsInPlace().All() {
		n++
	}
	return n, nil
}

func (s *labelSource) whole() ref.Val {
	return types.NewStringStringMap(types.DefaultTypeAdapter, (*document)(s).labelsInPlace().Map())
}

func (s *labelSource) json() []byte { return nil }

func (s *labelSource) rawSize() int { return s.obj.RawLen() }
