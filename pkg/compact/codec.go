package compact

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Codec makes objects of one resource, whose JSON is much alike, and reads them back. It makes a dictionary of the first
// objects it encodes and a better one of many, see trainer; after a restart it goes on with the dictionary of the objects
// it decodes. One codec per resource and set of edits.
//
// Encode may be called by one goroutine at a time; Decode by any number, also meanwhile.
type Codec struct {
	dicts   *Dictionaries
	trainer trainer // Encode's

	mu    sync.Mutex // guards the rest
	types []*typeMeta
	votes map[uint32]int // how many decoded objects name which dictionary, until the first Encode; then nil
}

// NewCodec makes a codec whose dictionaries go to d.
func NewCodec(d *Dictionaries) *Codec {
	return &Codec{dicts: d, votes: map[uint32]int{}}
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
	kind, elected := c.forEncode(m)
	if elected != 0 {
		c.trainer.adopt(elected, c.dicts.rank(elected) == rankTrained)
	}
	if err := c.trainer.prepare(c.dicts, raw); err != nil {
		return nil, err
	}
	o := &Object{kind: kind, position: position, dict: c.trainer.dict}
	if err := o.pack(raw, m); err != nil {
		return nil, err
	}
	c.trainer.observe(o)
	return o, nil
}

// forEncode returns the type of an object and, the first time, the dictionary that won the vote.
func (c *Codec) forEncode(m *Meta) (kind *typeMeta, elected uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.votes) > 0 {
		elected = c.electedLocked()
	}
	c.votes = nil
	for _, t := range c.types {
		if t.apiVersion == string(m.APIVersion) && t.kind == string(m.Kind) {
			return t, elected
		}
	}
	return c.addTypeLocked(string(m.APIVersion), string(m.Kind)), elected
}

// electedLocked returns the dictionary with most votes, of the trained ones if there are any: just after one has been
// trained most objects still name the first.
func (c *Codec) electedLocked() uint32 {
	better := func(a, b uint32) int {
		return cmp.Or(
			cmp.Compare(c.dicts.rank(a), c.dicts.rank(b)),
			cmp.Compare(c.votes[a], c.votes[b]),
			cmp.Compare(a, b),
		)
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(c.votes)), better)
}

// vote counts a decoded object for its dictionary.
func (c *Codec) vote(dict uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.votes != nil && dict != 0 {
		c.votes[dict]++
	}
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
