package celjson

import (
	"fmt"
	"reflect"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
)

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

// ConvertToNative returns the *resource.Quantity.
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

// Type returns kubernetes.Quantity.
func (q quantity) Type() ref.Type { return quantityType() }

// Value returns the *resource.Quantity.
func (q quantity) Value() any { return q.Quantity }
