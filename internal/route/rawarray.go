package route

import (
	"bytes"
	"reflect"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

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

var (
	_ traits.Lister              = (*rawArray)(nil)
	_ types.AggregateSizeVisitor = (*rawArray)(nil)
)

func (a *rawArray) scan() {
	if a.scanned {
		return
	}
	a.scanned = true
	for raw := range rawjson.Items(a.raw) {
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

// AggregateSize is for the memory limit, which would else decode what it measures.
func (a *rawArray) AggregateSize(types.AggregateSizer) uint32 { return elements(len(a.raw)) }

// ConvertToNative decodes.
func (a *rawArray) ConvertToNative(t reflect.Type) (any, error) { return a.whole().ConvertToNative(t) }

// ConvertToType decodes.
func (a *rawArray) ConvertToType(t ref.Type) ref.Val { return a.whole().ConvertToType(t) }

// Type is list.
func (a *rawArray) Type() ref.Type { return types.ListType }

// Value decodes.
func (a *rawArray) Value() any { return a.whole().Value() }
