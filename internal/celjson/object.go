package celjson

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Object is a JSON object. One pass on first use finds its members.
type Object struct {
	raw     []byte
	members []Member       // in the order sent
	index   map[string]int // of members by key, if they are many
	scanned bool
	longest int      // length of a key
	names   []string // the keys of the members, once they were asked for
	decoded ref.Val
}

// Member is a member of an Object.
type Member struct {
	key []byte
	raw []byte
	val ref.Val // wrapped raw; nil until read
}

// NewObject returns the object of valid JSON.
func NewObject(raw []byte) *Object { return &Object{raw: raw} }

// reset sets o to another object and reuses the memory.
func (o *Object) reset(raw []byte) {
	clear(o.members)
	*o = Object{raw: raw, members: o.members[:0]}
}

func (o *Object) scan() {
	if o.scanned {
		return
	}
	o.scanned = true
	if o.members == nil {
		o.members = make([]Member, 0, 8)
	}
	for key, value := range rawjson.Members(o.raw) {
		o.members = append(o.members, Member{key: key, raw: value})
		o.longest = max(o.longest, len(key))
	}
	if !o.unique() {
		o.keepLast()
	}
}

// maxLinear is the number of members up to which comparing keys is cheaper than an index.
const maxLinear = 16

// unique reports whether no key occurs twice, and indexes many members.
func (o *Object) unique() bool {
	if len(o.members) > maxLinear {
		o.index = make(map[string]int, len(o.members))
		for i, m := range o.members {
			o.index[string(m.key)] = i
		}
		return len(o.index) == len(o.members)
	}
	for i, m := range o.members {
		if slices.ContainsFunc(o.members[:i], func(other Member) bool { return bytes.Equal(m.key, other.key) }) {
			return false
		}
	}
	return true
}

// keepLast keeps the last member of each key, as JSON decoders do. API servers never send
// a key twice.
func (o *Object) keepLast() {
	last := make(map[string]int)
	for i, m := range o.members {
		last[string(m.key)] = i
	}
	kept := o.members[:0]
	for i, m := range o.members {
		if last[string(m.key)] == i {
			last[string(m.key)] = len(kept)
			kept = append(kept, m)
		}
	}
	o.members, o.index = kept, last
}

// Member returns the member of a key, nil if there is none. A nil Object has none.
func (o *Object) Member(key string) *Member {
	if o == nil {
		return nil
	}
	o.scan()
	if o.index != nil {
		if i, ok := o.index[key]; ok {
			return &o.members[i]
		}
		return nil
	}
	for i := range o.members {
		if string(o.members[i].key) == key {
			return &o.members[i]
		}
	}
	return nil
}

// JSON returns the member's value as sent, nil for a nil Member.
func (m *Member) JSON() []byte {
	if m == nil {
		return nil
	}
	return m.raw
}

func (m *Member) value() ref.Val {
	if m.val == nil {
		m.val = wrap(m.raw)
	}
	return m.val
}

// Object returns the member's value if it is an object, else nil.
func (m *Member) Object() *Object {
	if m == nil || m.raw[0] != '{' {
		return nil
	}
	if v, ok := m.value().(*lazyMap); ok {
		if o, ok := v.mapSource.(*Object); ok {
			return o
		}
	}
	return nil
}

func (o *Object) find(key string) (ref.Val, bool) {
	if o.scan(); len(key) > o.longest {
		return nil, false
	}
	if len(key) > celexpr.MaxKey {
		return celexpr.TooLong(len(key)), false
	}
	if m := o.Member(key); m != nil {
		return m.value(), true
	}
	return nil, false
}

func (o *Object) keys() ([]string, error) {
	o.scan()
	if o.names == nil {
		o.names = make([]string, len(o.members))
		for i, m := range o.members {
			o.names[i] = string(m.key)
		}
	}
	return o.names, nil
}

func (o *Object) count() (int, error) {
	o.scan()
	return len(o.members), nil
}

func (o *Object) whole() ref.Val {
	if o.decoded == nil {
		o.decoded = decode(o.raw)
	}
	return o.decoded
}

// JSON returns the object as sent, nil for a nil Object.
func (o *Object) JSON() []byte {
	if o == nil {
		return nil
	}
	return o.raw
}

func (o *Object) rawSize() int { return len(o.raw) }

// mapSource provides the members of a lazyMap. find and whole return errors as values.
// If found is false, a value that is not an error has no meaning.
type mapSource interface {
	find(key string) (value ref.Val, found bool)
	keys() ([]string, error) // made once: a loop that begins in each iteration of another one is charged for what it reads
	count() (int, error)
	whole() ref.Val // the map, decoded
	JSON() []byte   // the map as sent; nil if not available
	rawSize() int   // upper bound of the length of the JSON
}

// lazyMap is a CEL map with string keys. It reads single members from its source and
// decodes the map only for operations on the whole.
type lazyMap struct{ mapSource }

var (
	_ traits.Mapper              = (*lazyMap)(nil)
	_ types.AggregateSizeVisitor = (*lazyMap)(nil)
)

func (m *lazyMap) Find(key ref.Val) (ref.Val, bool) {
	s, ok := key.(types.String)
	if !ok {
		return nil, false // all keys are strings
	}
	return m.find(string(s))
}

func (m *lazyMap) Get(key ref.Val) ref.Val {
	v, found := m.Find(key)
	if !found && !types.IsError(v) {
		return types.NewErr("no such key: %v", key)
	}
	return v
}

func (m *lazyMap) Contains(key ref.Val) ref.Val {
	v, found := m.Find(key)
	if types.IsError(v) {
		return v
	}
	return types.Bool(found)
}

func (m *lazyMap) Size() ref.Val {
	n, err := m.count()
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Int(n)
}

func (m *lazyMap) Iterator() traits.Iterator {
	keys, err := m.keys()
	if err != nil {
		failure := types.WrapErr(err)
		return &valueIterator{n: 1, at: func(int) ref.Val { return failure }}
	}
	return &valueIterator{n: len(keys), at: func(i int) ref.Val { return types.String(keys[i]) }}
}

// Equal compares the bytes first, then member by member.
func (m *lazyMap) Equal(other ref.Val) ref.Val {
	if o, ok := other.(*lazyMap); ok {
		if raw := m.JSON(); raw != nil && bytes.Equal(raw, o.JSON()) {
			return types.True
		}
		return m.whole().Equal(o.whole())
	}
	return m.whole().Equal(other)
}

// AggregateSize lets the memory limit measure the map without decoding it.
func (m *lazyMap) AggregateSize(types.AggregateSizer) uint32 { return elements(m.rawSize()) }

func elements(size int) uint32 { return uint32(min(size/celexpr.SizeUnit+1, math.MaxInt32)) }

func (m *lazyMap) ConvertToNative(t reflect.Type) (any, error) { return m.whole().ConvertToNative(t) }

func (m *lazyMap) ConvertToType(t ref.Type) ref.Val { return m.whole().ConvertToType(t) }

func (m *lazyMap) Type() ref.Type { return types.MapType }

func (m *lazyMap) Value() any { return m.whole().Value() }

// String is what errors of functions quote.
func (m *lazyMap) String() string { return "a map" }

// valueIterator iterates over n values.
type valueIterator struct {
	next, n int
	at      func(i int) ref.Val
}

var _ traits.Iterator = (*valueIterator)(nil)

func (it *valueIterator) HasNext() ref.Val { return types.Bool(it.next < it.n) }

func (it *valueIterator) Next() ref.Val {
	if it.next >= it.n {
		return nil
	}
	it.next++
	return it.at(it.next - 1)
}

var errIterator = errors.New("an iterator is not a value")

// ConvertToNative fails, as ConvertToType and Equal: expressions do not see iterators.
func (it *valueIterator) ConvertToNative(reflect.Type) (any, error) { return nil, errIterator }

func (it *valueIterator) ConvertToType(ref.Type) ref.Val { return types.WrapErr(errIterator) }

func (it *valueIterator) Equal(ref.Val) ref.Val { return types.WrapErr(errIterator) }
func (it *valueIterator) Type() ref.Type        { return types.IteratorType }
func (it *valueIterator) Value() any            { return nil }
