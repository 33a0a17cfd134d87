package route

import (
	"bytes"
	"slices"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"sigs.k8s.io/json"

	"github.com/watcherd/watcherd/pkg/compact"
)

// wrap is a JSON value as CEL sees it. Numbers written as integers are int if they
// fit, all others double, as everywhere in Kubernetes. Objects and arrays are read
// further only when asked: an expression seldom looks at more than two or three
// fields, and decoding a whole pod costs more than all the rest of routing it.
func wrap(raw []byte) ref.Val {
	switch c := raw[0]; c {
	case '{':
		return &lazyMap{&rawObject{raw: raw}}
	case '[':
		return &rawArray{raw: raw}
	case '"':
		return types.String(unquote(raw))
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return types.Int(n)
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Double(f)
}

// decode reads a whole value, into maps and slices.
func decode(raw []byte) ref.Val {
	var v any
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &v); err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

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
	for key, value := range compact.Members(o.raw) {
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

// rawArray is a JSON array as a CEL list.
type rawArray struct {
	raw     []byte
	items   []rawItem
	scanned bool
	decoded ref.Val
}

type rawItem struct {
	raw []byte
	val ref.Val
}

var _ traits.Lister = (*rawArray)(nil)

func (a *rawArray) scan() {
	if a.scanned {
		return
	}
	a.scanned = true
	for raw := range compact.Items(a.raw) {
		a.items = append(a.items, rawItem{raw: raw})
	}
}

func (a *rawArray) at(i int) ref.Val {
	item := &a.items[i]
	if item.val == nil {
		item.val = wrap(item.raw)
	}
	return item.val
}

// Get returns one item.
func (a *rawArray) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	a.scan()
	if i < 0 || i >= len(a.items) {
		return types.NewErr("index out of bounds: %d", i)
	}
	return a.at(i)
}

// Size is the number of items.
func (a *rawArray) Size() ref.Val {
	a.scan()
	return types.Int(len(a.items))
}

// Iterator passes over the items in order.
func (a *rawArray) Iterator() traits.Iterator {
	a.scan()
	return &valueIterator{n: len(a.items), at: a.at}
}

// Contains tells whether an item equals value.
func (a *rawArray) Contains(value ref.Val) ref.Val {
	a.scan()
	for i := range a.items {
		if types.Equal(a.at(i), value) == types.True {
			return types.True
		}
	}
	return types.False
}

// Equal compares item by item; arrays of the same bytes are equal at sight.
func (a *rawArray) Equal(other ref.Val) ref.Val {
	if b, ok := other.(*rawArray); ok {
		if bytes.Equal(a.raw, b.raw) {
			return types.True
		}
		return a.whole().Equal(b.whole())
	}
	return a.whole().Equal(other)
}

// Add concatenates.
func (a *rawArray) Add(other ref.Val) ref.Val {
	list, ok := a.whole().(traits.Lister)
	if !ok {
		return a.whole()
	}
	return list.Add(other)
}

func (a *rawArray) whole() ref.Val {
	if a.decoded == nil {
		a.decoded = decode(a.raw)
	}
	return a.decoded
}
