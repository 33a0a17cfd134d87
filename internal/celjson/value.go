package celjson

import (
	"bytes"
	"reflect"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"sigs.k8s.io/json"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// wrap converts a JSON value to a CEL value. Integers that fit are int, other numbers
// double, as in Kubernetes. Objects and arrays stay undecoded: an expression usually
// reads two or three fields, and decoding a pod costs more than routing it.
func wrap(raw []byte) ref.Val {
	switch c := raw[0]; c {
	case '{':
		return &lazyMap{&Object{raw: raw}}
	case '[':
		return &array{raw: raw}
	case '"':
		return types.String(rawjson.Unquote(raw))
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

func decode(raw []byte) ref.Val {
	var v any
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &v); err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// array is a JSON array as a CEL list. It decodes items one by one.
type array struct {
	raw     []byte
	items   []item
	scanned bool
	list    traits.Lister
	decoded ref.Val
}

type item struct {
	raw []byte
	val ref.Val
}

var (
	_ traits.Lister              = (*array)(nil)
	_ types.AggregateSizeVisitor = (*array)(nil)
)

func (a *array) scan() {
	if a.scanned {
		return
	}
	a.scanned = true
	for raw := range rawjson.Items(a.raw) {
		a.items = append(a.items, item{raw: raw})
	}
}

func (a *array) at(i int) ref.Val {
	it := &a.items[i]
	if it.val == nil {
		it.val = wrap(it.raw)
	}
	return it.val
}

func (a *array) Get(index ref.Val) ref.Val {
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

func (a *array) Size() ref.Val {
	a.scan()
	return types.Int(len(a.items))
}

func (a *array) Iterator() traits.Iterator {
	a.scan()
	return &valueIterator{n: len(a.items), at: a.at}
}

func (a *array) Contains(value ref.Val) ref.Val {
	a.scan()
	for i := range a.items {
		if types.Equal(a.at(i), value) == types.True {
			return types.True
		}
	}
	return types.False
}

// Equal compares the bytes first, then item by item, of which lists are decoded: each level of lists in lists would be read again
// for those within.
func (a *array) Equal(other ref.Val) ref.Val {
	b, ok := other.(*array)
	if !ok {
		return a.whole().Equal(other)
	}
	if bytes.Equal(a.raw, b.raw) {
		return types.True
	}
	if a.Size() != b.Size() {
		return types.False
	}
	for i := range a.items {
		if !bytes.Equal(a.items[i].raw, b.items[i].raw) && types.Equal(all(a.at(i)), all(b.at(i))) != types.True {
			return types.False
		}
	}
	return types.True
}

// all returns a value, with all that is in it if it is a list.
func all(v ref.Val) ref.Val {
	a, ok := v.(*array)
	if !ok {
		return v
	}
	if a.decoded == nil {
		a.decoded = decode(a.raw)
	}
	return a.decoded
}

func (a *array) Add(other ref.Val) ref.Val { return a.whole().Add(other) }

// whole is CEL's own list of the items, which stay lazy.
func (a *array) whole() traits.Lister {
	if a.list == nil {
		a.scan()
		items := make([]ref.Val, len(a.items))
		for i := range items {
			items[i] = a.at(i)
		}
		a.list = types.NewRefValList(types.DefaultTypeAdapter, items)
	}
	return a.list
}

// AggregateSize lets the memory limit measure the list without decoding it.
func (a *array) AggregateSize(types.AggregateSizer) uint32   { return elements(len(a.raw)) }
func (a *array) ConvertToNative(t reflect.Type) (any, error) { return a.whole().ConvertToNative(t) }
func (a *array) ConvertToType(t ref.Type) ref.Val            { return a.whole().ConvertToType(t) }
func (a *array) Type() ref.Type                              { return types.ListType }
func (a *array) Value() any                                  { return a.whole().Value() }

// String is what errors of functions quote.
func (a *array) String() string { return "a list" }
