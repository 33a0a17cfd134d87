package compact

import (
	"fmt"
	"sync"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Codec makes objects of one resource, whose JSON is much alike, and reads objects back. It makes a dictionary of the
// first objects it encodes and a better one of many (see trainer), or goes on with the dictionary that another codec of
// the same resource, or an earlier process, has made.
//
// Encode may be called by one goroutine at a time; Decode, which serves objects of any resource, by any number, also
// meanwhile.
type Codec struct {
	dicts   *Dictionaries
	trainer trainer // Encode's
}

// NewCodec makes a codec whose dictionaries go to d, for the resource that the first object it encodes names by its
// apiVersion and kind. That is the wrong name for metadata alone, which is a PartialObjectMetadata whatever it is of.
func NewCodec(d *Dictionaries) *Codec { return NewCodecFor(d, "") }

// NewCodecFor is NewCodec with a name for the resource. Codecs whose objects look alike should share one, as those of
// one resource in several namespaces; the name should mean the same in the next process.
func NewCodecFor(d *Dictionaries, resource string) *Codec {
	return &Codec{dicts: d, trainer: trainer{dicts: d, resource: resource}}
}

// Encode makes an object of raw, one object's JSON, and m, which Scan read from it; nil has Encode scan it. position is
// the object's place in its stream, 0 for none. Neither raw nor m is kept. It fails if m holds times that are none, or
// with ErrDictionary if a new dictionary cannot be saved.
func (c *Codec) Encode(raw []byte, m *rawjson.Meta, position uint64) (*Object, error) {
	if len(raw) == 0 || len(raw) > MaxRawLen {
		return nil, fmt.Errorf("compact: an object of %d bytes", len(raw))
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
	if err := o.pack(c.dicts, raw, m); err != nil {
		return nil, err
	}
	c.trainer.observe(o)
	return o, nil
}

// typeMeta is what all objects of a type have in common.
type typeMeta struct {
	apiVersion, kind string
	labelKeys        keyTable
	dicts            *Dictionaries
}

// typeTable holds every type once. Types are few and stay.
type typeTable struct {
	dicts *Dictionaries

	mu   sync.RWMutex // guards what follows
	byID map[typeID]*typeMeta
}

type typeID struct{ apiVersion, kind string }

// of returns a type. It keeps neither argument.
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
