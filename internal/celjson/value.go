package celjson

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/api/resource"
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

// decode decodes a value into maps and slices.
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

// Equal compares the bytes first, then item by item.
func (a *array) Equal(other ref.Val) ref.Val {
	if b, ok := other.(*array); ok {
		if bytes.Equal(a.raw, b.raw) {
			return types.True
		}
		return a.whole().Equal(b.whole())
	}
	return a.whole().Equal(other)
}

func (a *array) Add(other ref.Val) ref.Val {
	list, ok := a.whole().(traits.Lister)
	if !ok {
		return a.whole()
	}
	return list.Add(other)
}

func (a *array) whole() ref.Val {
	if a.decoded == nil {
		a.decoded = decode(a.raw)
	}
	return a.decoded
}

// AggregateSize lets the memory limit measure the list without decoding it.
func (a *array) AggregateSize(types.AggregateSizer) uint32   { return elements(len(a.raw)) }
func (a *array) ConvertToNative(t reflect.Type) (any, error) { return a.whole().ConvertToNative(t) }
func (a *array) ConvertToType(t ref.Type) ref.Val            { return a.whole().ConvertToType(t) }
func (a *array) Type() ref.Type                              { return types.ListType }
func (a *array) Value() any                                  { return a.whole().Value() }

// The cost limit does not count parsing, nor comparing.
const (
	maxQuantity = 64 // characters
	maxExponent = 3  // digits: a comparison computes all zeros of an amount
)

// QuantityOptions declares Kubernetes quantities with the names and semantics of
// Kubernetes' CEL: quantity("100Mi"), isQuantity(text), and on a
// quantity isLessThan, isGreaterThan, compareTo, isInteger, asInteger and
// asApproximateFloat. Equality compares amounts: quantity("1") == quantity("1000m").
func QuantityOptions() []cel.EnvOption {
	q := quantityType()
	unary := func(name, id string, arg, result *cel.Type, f func(ref.Val) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.Overload(id, []*cel.Type{arg}, result, cel.UnaryBinding(f)))
	}
	method := func(name string, result *cel.Type, f func(*resource.Quantity) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.MemberOverload("quantity_"+name, []*cel.Type{q}, result, cel.UnaryBinding(func(v ref.Val) ref.Val {
			self, ok := v.(quantity)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return f(self.Quantity)
		})))
	}
	compare := func(name string, result *cel.Type, f func(order int) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.MemberOverload("quantity_"+name, []*cel.Type{q, q}, result, cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			x, ok := a.(quantity)
			if !ok {
				return types.MaybeNoSuchOverloadErr(a)
			}
			y, ok := b.(quantity)
			if !ok {
				return types.MaybeNoSuchOverloadErr(b)
			}
			return f(x.Cmp(*y.Quantity))
		})))
	}
	return []cel.EnvOption{
		unary("quantity", "string_to_quantity", cel.StringType, q, func(v ref.Val) ref.Val {
			parsed, err := parseQuantity(v)
			if err != nil {
				return types.WrapErr(err)
			}
			return parsed
		}),
		unary("isQuantity", "is_quantity_string", cel.StringType, cel.BoolType, func(v ref.Val) ref.Val {
			_, err := parseQuantity(v)
			return types.Bool(err == nil)
		}),
		method("isInteger", cel.BoolType, func(v *resource.Quantity) ref.Val {
			_, ok := v.AsInt64()
			return types.Bool(ok)
		}),
		method("asInteger", cel.IntType, func(v *resource.Quantity) ref.Val {
			n, ok := v.AsInt64()
			if !ok {
				return types.NewErr("quantity %s is not a 64-bit integer", v)
			}
			return types.Int(n)
		}),
		method("asApproximateFloat", cel.DoubleType, func(v *resource.Quantity) ref.Val {
			return types.Double(v.AsApproximateFloat64())
		}),
		compare("isLessThan", cel.BoolType, func(order int) ref.Val { return types.Bool(order < 0) }),
		compare("isGreaterThan", cel.BoolType, func(order int) ref.Val { return types.Bool(order > 0) }),
		compare("compareTo", cel.IntType, func(order int) ref.Val { return types.Int(order) }),
	}
}

func quantityType() *cel.Type { return cel.OpaqueType("kubernetes.Quantity") }

// quantity is a Kubernetes quantity as a CEL value.
type quantity struct{ *resource.Quantity }

func parseQuantity(v ref.Val) (quantity, error) {
	s, ok := v.(types.String)
	if !ok {
		return quantity{}, fmt.Errorf("a quantity is parsed from a string, not %s", v.Type().TypeName())
	}
	if len(s) > maxQuantity {
		return quantity{}, fmt.Errorf("a quantity has at most %d characters", maxQuantity)
	}
	if i := strings.LastIndexAny(string(s), "eE"); i >= 0 && len(strings.TrimLeft(string(s[i+1:]), "+-0")) > maxExponent {
		return quantity{}, fmt.Errorf("quantity %q: the exponent has more than %d digits", string(s), maxExponent)
	}
	q, err := resource.ParseQuantity(string(s))
	if err != nil {
		return quantity{}, fmt.Errorf("quantity %q: %w", string(s), err)
	}
	return quantity{&q}, nil
}

func (q quantity) ConvertToNative(t reflect.Type) (any, error) {
	if reflect.TypeOf(q.Quantity).AssignableTo(t) {
		return q.Quantity, nil
	}
	return nil, fmt.Errorf("a quantity does not convert to %s", t)
}

// ConvertToType converts to its own type, to string and to type.
func (q quantity) ConvertToType(t ref.Type) ref.Val {
	switch t.TypeName() {
	case quantityType().TypeName():
		return q
	case types.TypeType.TypeName():
		return quantityType()
	}
	return types.NewErr("a quantity does not convert to %s", t.TypeName())
}

// Equal compares amounts.
func (q quantity) Equal(other ref.Val) ref.Val {
	o, ok := other.(quantity)
	return types.Bool(ok && q.Cmp(*o.Quantity) == 0)
}

func (q quantity) Type() ref.Type { return quantityType() }
func (q quantity) Value() any     { return q.Quantity }
