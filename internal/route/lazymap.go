package route

import (
	"bytes"
	"errors"
	"math"
	"reflect"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// sizeUnit is how many bytes of text CEL counts as one element of a value's size.
const sizeUnit = 10

// mapSource is where a lazyMap finds its members. An error takes the value's place
// in find and whole; the value of what is not found, if not an error, means nothing.
type mapSource interface {
	find(key string) (value ref.Val, found bool)
	keys() ([]string, error)
	count() (int, error)
	whole() ref.Val // the same map, decoded
	json() []byte   // the same map as sent; nil if it is not at hand
	rawSize() int   // bytes of JSON, or more
}

// lazyMap is a CEL map with text as keys. It answers from its source what can be
// answered by key, and decodes the whole only for what needs the whole.
type lazyMap struct{ mapSource }

var (
	_ traits.Mapper              = (*lazyMap)(nil)
	_ types.AggregateSizeVisitor = (*lazyMap)(nil)
)

// Find returns the member of a key and whether there is one.
func (m *lazyMap) Find(key ref.Val) (ref.Val, bool) {
	s, ok := key.(types.String)
	if !ok {
		return nil, false // no key of another type is in the map
	}
	return m.find(string(s))
}

// Get is Find with an error for what is not there.
func (m *lazyMap) Get(key ref.Val) ref.Val {
	v, found := m.Find(key)
	if !found && !types.IsError(v) {
		return types.NewErr("no such key: %v", key)
	}
	return v
}

// Contains tells whether there is such a key.
func (m *lazyMap) Contains(key ref.Val) ref.Val {
	v, found := m.Find(key)
	if types.IsError(v) {
		return v
	}
	return types.Bool(found)
}

// Size is the number of keys.
func (m *lazyMap) Size() ref.Val {
	n, err := m.count()
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Int(n)
}

// Iterator passes over the keys in the order of the document.
func (m *lazyMap) Iterator() traits.Iterator {
	keys, err := m.keys()
	if err != nil {
		failure := types.WrapErr(err)
		return &valueIterator{n: 1, at: func(int) ref.Val { return failure }}
	}
	return &valueIterator{n: len(keys), at: func(i int) ref.Val { return types.String(keys[i]) }}
}

// Equal compares member by member; objects of the same bytes are equal at sight.
func (m *lazyMap) Equal(other ref.Val) ref.Val {
	if o, ok := other.(*lazyMap); ok {
		if raw := m.json(); raw != nil && bytes.Equal(raw, o.json()) {
			return types.True
		}
		return m.whole().Equal(o.whole())
	}
	return m.whole().Equal(other)
}

// AggregateSize is for the memory limit, which would else decode what it measures.
func (m *lazyMap) AggregateSize(types.AggregateSizer) uint32 { return elements(m.rawSize()) }

// elements is a size in bytes as CEL counts it.
func elements(size int) uint32 { return uint32(min(size/sizeUnit+1, math.MaxInt32)) }

// ConvertToNative decodes.
func (m *lazyMap) ConvertToNative(t reflect.Type) (any, error) { return m.whole().ConvertToNative(t) }

// ConvertToType decodes.
func (m *lazyMap) ConvertToType(t ref.Type) ref.Val { return m.whole().ConvertToType(t) }

// Type is map.
func (m *lazyMap) Type() ref.Type { return types.MapType }

// Value decodes.
func (m *lazyMap) Value() any { return m.whole().Value() }

// valueIterator passes over n values.
type valueIterator struct {
	next, n int
	at      func(i int) ref.Val
}

var _ traits.Iterator = (*valueIterator)(nil)

// HasNext tells whether Next has another value.
func (it *valueIterator) HasNext() ref.Val { return types.Bool(it.next < it.n) }

// Next returns the next value.
func (it *valueIterator) Next() ref.Val {
	if it.next >= it.n {
		return nil
	}
	it.next++
	return it.at(it.next - 1)
}

var errIterator = errors.New("an iterator is no value")

// ConvertToNative fails: expressions never see an iterator.
func (it *valueIterator) ConvertToNative(reflect.Type) (any, error) { return nil, errIterator }

// ConvertToType fails: expressions never see an iterator.
func (it *valueIterator) ConvertToType(ref.Type) ref.Val { return types.WrapErr(errIterator) }

// Equal fails: expressions never see an iterator.
func (it *valueIterator) Equal(ref.Val) ref.Val { return types.WrapErr(errIterator) }

// Type is iterator.
func (it *valueIterator) Type() ref.Type { return types.IteratorType }

// Value is nothing.
func (it *valueIterator) Value() any { return nil }
