package compact

import (
	"fmt"
	"sync"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Codec encodes the objects of one resource and decodes objects of any. It builds a
// dictionary from the first objects and later trains a better one (see trainer), or
// uses the newer dictionary of another codec of the resource or of an earlier
// process.
//
// Encode is for one goroutine at a time. Decode is safe for concurrent use, also
// during Encode.
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
// empty if there is none: then raw is encoded without a dictionary.
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
	changes          keyTable // of changeKey
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
