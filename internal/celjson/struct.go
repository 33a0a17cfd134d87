package celjson

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/internal/celexpr"
)

// StructType is the type of a variable with known fields, such as metadata and event. A
// misspelled field is an error at load. Fields are read from a value of T one by one.
type StructType struct {
	Type   *types.Type
	fields map[string]*types.FieldType
}

// Field is a field of a StructType. Read returns its value, nil if it cannot be read,
// and the result of has().
type Field[T any] struct {
	Type *types.Type
	Read func(T) (value ref.Val, set bool)
}

// OrNone is a value that was looked up, and whether it is set: none, and not, if it was not
// found or is null.
func OrNone(v ref.Val, found bool, none ref.Val) (ref.Val, bool) {
	switch {
	case types.IsError(v):
		return v, false
	case !found || v == types.NullValue:
		return none, false
	}
	return v, true
}

// NewStructType makes the type of that name.
func NewStructType[T any](name string, fields map[string]Field[T]) *StructType {
	t := &StructType{Type: types.NewObjectType(name), fields: make(map[string]*types.FieldType, len(fields))}
	for field, f := range fields {
		t.fields[field] = &types.FieldType{
			Type: f.Type,
			IsSet: func(target any) bool {
				e, ok := target.(T)
				if !ok {
					return false
				}
				_, set := f.Read(e)
				return set
			},
			GetFrom: func(target any) (any, error) {
				e, ok := target.(T)
				if !ok {
					return nil, fmt.Errorf("%T has no field %s", target, field)
				}
				v, _ := f.Read(e)
				if err, failed := v.(*types.Err); failed {
					return nil, err
				}
				if v == nil {
					return nil, fmt.Errorf("%s%s", noSuchKey, field)
				}
				return v, nil
			},
		}
	}
	return t
}

func (t *StructType) field(name types.String) (f *types.FieldType, ok bool) {
	if len(name) > celexpr.MaxKey { // see there
		return nil, false
	}
	f, ok = t.fields[string(name)]
	return f, ok
}

// New returns the value that is read from target, a T.
func (t *StructType) New(target any) *Struct { return &Struct{of: t, target: target} }

// noSuchKey is the prefix of errors of a missing key or field.
const noSuchKey = "no such key: "

// Struct is a value of a StructType.
type Struct struct {
	of     *StructType
	target any
}

var (
	_ traits.Indexer     = (*Struct)(nil)
	_ traits.FieldTester = (*Struct)(nil)
)

// Get reads a field by name, for dynamically typed access.
func (v *Struct) Get(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := v.of.field(name)
	if !ok {
		return types.NewErr("no such field: %.64s", string(name))
	}
	value, err := f.GetFrom(v.target)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(value)
}

// IsSet reports whether a field is set.
func (v *Struct) IsSet(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := v.of.field(name)
	return types.Bool(ok && f.IsSet(v.target))
}

// AggregateSize returns 1: the fields of a struct are counted when they are read.
func (v *Struct) AggregateSize(types.AggregateSizer) uint32 { return 1 }

// Equal compares identity.
func (v *Struct) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(v)) }

// ConvertToNative fails: a struct has no native form.
func (v *Struct) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s does not convert to %s", v.of.Type.TypeName(), t)
}

// ConvertToType converts to the type only.
func (v *Struct) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return v.of.Type
	}
	return types.NewErr("%s does not convert to %s", v.of.Type.TypeName(), t.TypeName())
}

// Type returns the struct's type.
func (v *Struct) Type() ref.Type { return v.of.Type }

// Value returns what the fields are read from.
func (v *Struct) Value() any { return v.target }

// structProvider adds struct types to those of a CEL environment.
type structProvider struct {
	types.Provider
	structs map[string]*StructType
}

// WithStructs returns the provider of a CEL environment with struct types added.
func WithStructs(p types.Provider, structs ...*StructType) types.Provider {
	byName := make(map[string]*StructType, len(structs))
	for _, t := range structs {
		byName[t.Type.TypeName()] = t
	}
	return &structProvider{p, byName}
}

func (p *structProvider) FindStructType(name string) (*types.Type, bool) {
	if v, ok := p.structs[name]; ok {
		return types.NewTypeTypeWithParam(v.Type), true
	}
	return p.Provider.FindStructType(name)
}

func (p *structProvider) FindStructFieldNames(name string) ([]string, bool) {
	if v, ok := p.structs[name]; ok {
		return slices.Sorted(maps.Keys(v.fields)), true
	}
	return p.Provider.FindStructFieldNames(name)
}

func (p *structProvider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if v, ok := p.structs[name]; ok {
		f, ok := v.fields[field]
		return f, ok
	}
	return p.Provider.FindStructFieldType(name, field)
}

// NewValue creates a message. Expressions cannot create structs.
func (p *structProvider) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := p.structs[name]; ok {
		return types.NewErr("expressions cannot create %s", name)
	}
	return p.Provider.NewValue(name, fields)
}
