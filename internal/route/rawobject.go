package route

import (
	"bytes"
	"slices"

	"cel.dev/cel-go/common/types/ref"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// rawObject is a JSON object. Its members are found in one pass over it, once.
type rawObject struct {
	raw     []byte
	members []rawMember // in the order sent
	scanned bool
	decoded ref.Val
}

type rawMember struct {
	key []byte
	raw []byte
	val ref.Val // wrapped raw; nil until asked for
}

// reset makes o another object and keeps its memory.
func (o *rawObject) reset(raw []byte) {
	clear(o.members)
	*o = rawObject{raw: raw, members: o.members[:0]}
}

func (o *rawObject) scan() {
	if o.scanned {
		return
	}
	o.scanned = true
	if o.members == nil {
		o.members = make([]rawMember, 0, 8)
	}
	for key, value := range rawjson.Members(o.raw) {
		o.members = append(o.members, rawMember{key: key, raw: value})
	}
	o.members = lastOfEach(o.members)
}

// lastOfEach leaves one member of each key, the last, as all who decode JSON do.
// API servers send none twice, so that there is next to never anything to move.
func lastOfEach(members []rawMember) []rawMember {
	last := make(map[string]int)
	twice := false
	if len(members) > 16 {
		for i, m := range members {
			_, seen := last[string(m.key)]
			twice = twice || seen
			last[string(m.key)] = i
		}
	} else {
		for i, m := range members {
			twice = twice || slices.ContainsFunc(members[:i], func(other rawMember) bool { return bytes.Equal(m.key, other.key) })
		}
	}
	if !twice {
		return members
	}
	for i, m := range members {
		last[string(m.key)] = i
	}
	kept := members[:0]
	for i, m := range members {
		if last[string(m.key)] == i {
			kept = append(kept, m)
		}
	}
	return kept
}

// member returns the member of a key, nil if there is none. A nil object has none.
func (o *rawObject) member(key string) *rawMember {
	if o == nil {
		return nil
	}
	o.scan()
	for i := range o.members {
		if string(o.members[i].key) == key {
			return &o.members[i]
		}
	}
	return nil
}

// json is the member's value as sent; nil if there is no member.
func (m *rawMember) json() []byte {
	if m == nil {
		return nil
	}
	return m.raw
}

// value is the member's value.
func (m *rawMember) value() ref.Val {
	if m.val == nil {
		m.val = wrap(m.raw)
	}
	return m.val
}

// object is the member's value if it is an object, else nil.
func (m *rawMember) object() *rawObject {
	if m == nil || m.raw[0] != '{' {
		return nil
	}
	if v, ok := m.value().(*lazyMap); ok {
		if o, ok := v.mapSource.(*rawObject); ok {
			return o
		}
	}
	return nil
}

func (o *rawObject) find(key string) (ref.Val, bool) {
	if m := o.member(key); m != nil {
		return m.value(), true
	}
	return nil, false
}

func (o *rawObject) keys() ([]string, error) {
	o.scan()
	keys := make([]string, len(o.members))
	for i, m := range o.members {
		keys[i] = string(m.key)
	}
	return keys, nil
}

func (o *rawObject) count() (int, error) {
	o.scan()
	return len(o.members), nil
}

func (o *rawObject) whole() ref.Val {
	if o.decoded == nil {
		o.decoded = decode(o.raw)
	}
	return o.decoded
}

func (o *rawObject) json() []byte {
	if o == nil {
		return nil
	}
	return o.raw
}

func (o *rawObject) rawSize() int { return len(o.raw) }
