package compact

import (
	"fmt"
	"strings"
	"sync"
)

const (
	// sampleObjects and sampleBytes: a dictionary is made once this many objects, or bytes of JSON, have been encoded
	// without one, and consists of them. Resources with fewer objects do without.
	sampleObjects = 8
	sampleBytes   = 32 << 10

	// sampleEach is the most that one object gives to a dictionary.
	sampleEach = sampleBytes / 2
)

// Codec makes objects of one resource, whose JSON is much alike, and reads them back. It takes the first objects it
// encodes as samples and makes a dictionary of them; after a restart it goes on with the dictionary of the objects it
// decodes. One codec per resource and set of edits.
//
// Encode may be called by one goroutine at a time; Decode by any number, also meanwhile.
type Codec struct {
	dicts   *Dictionaries
	sampled int    // Encode's: how many objects samples holds
	samples []byte // Encode's

	mu    sync.Mutex // guards the rest
	types []*typeMeta
	dict  uint32 // what Encode uses; 0 = none yet
}

// NewCodec makes a codec whose dictionaries go to d.
func NewCodec(d *Dictionaries) *Codec {
	return &Codec{dicts: d}
}

// Encode makes an object of raw, one object's JSON, and m, which Scan read from it; nil has Encode scan it. position is
// the object's place in its stream, 0 for none. Neither raw nor m is kept. It fails if m holds times that are none, or
// if a new dictionary cannot be saved.
func (c *Codec) Encode(raw []byte, m *Meta, position uint64) (*Object, error) {
	if len(raw) == 0 || len(raw) > MaxRawLen {
		return nil, fmt.Errorf("compact: an object of %d bytes", len(raw))
	}
	if m == nil {
		scanned, err := Scan(raw)
		if err != nil {
			return nil, err
		}
		m = &scanned
	}
	kind, dict := c.forEncode(m)
	if dict == 0 {
		var err error
		if dict, err = c.sample(raw); err != nil {
			return nil, err
		}
	}
	o := &Object{kind: kind, position: position, dict: dict}
	if err := o.pack(raw, m); err != nil {
		return nil, err
	}
	return o, nil
}

// sample takes raw as a sample and returns the dictionary once there is one.
func (c *Codec) sample(raw []byte) (uint32, error) {
	c.samples = append(c.samples, raw[:min(len(raw), sampleEach, sampleBytes-len(c.samples))]...)
	if c.sampled++; c.sampled < sampleObjects && len(c.samples) < sampleBytes {
		return 0, nil
	}
	dict, err := c.dicts.Add(c.samples)
	if err != nil {
		return 0, err
	}
	c.samples = nil
	c.adopt(dict)
	return dict, nil
}

// adopt makes Encode use a dictionary unless it has one.
func (c *Codec) adopt(dict uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dict == 0 {
		c.dict = dict
	}
}

func (c *Codec) forEncode(m *Meta) (*typeMeta, uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.types {
		if t.apiVersion == string(m.APIVersion) && t.kind == string(m.Kind) {
			return t, c.dict
		}
	}
	return c.addTypeLocked(string(m.APIVersion), string(m.Kind)), c.dict
}

// typeOf returns the one typeMeta of an apiVersion and kind.
func (c *Codec) typeOf(apiVersion, kind string) *typeMeta {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.types {
		if t.apiVersion == apiVersion && t.kind == kind {
			return t
		}
	}
	return c.addTypeLocked(strings.Clone(apiVersion), strings.Clone(kind))
}

func (c *Codec) addTypeLocked(apiVersion, kind string) *typeMeta {
	t := &typeMeta{apiVersion: apiVersion, kind: kind, dicts: c.dicts}
	c.types = append(c.types, t)
	return t
}
