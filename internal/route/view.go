package route

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// viewType is the type of a variable whose fields are known beforehand, so that a
// misspelt one is found at load: metadata, event and resource. Its fields are read
// off the evaluation one by one.
type viewType struct {
	celType *types.Type
	fields  map[string]*types.FieldType
}

func newViewType(name string, fields map[string]viewField) *viewType {
	t := &viewType{celType: types.NewObjectType(name), fields: make(map[string]*types.FieldType, len(fields))}
	for field, f := range fields {
		t.fields[field] = &types.FieldType{
			Type: f.celType,
			IsSet: func(target any) bool {
				e, ok := target.(*evaluation)
				if !ok {
					return false
				}
				_, set := f.read(e)
				return set
			},
			GetFrom: func(target any) (any, error) {
				e, ok := target.(*evaluation)
				if !ok {
					return nil, fmt.Errorf("%T has no field %s", target, field)
				}
				v, _ := f.read(e)
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

// viewField is a field of a viewType. read returns its value, nil if there is none,
// and what has() says of it.
type viewField struct {
	celType *types.Type
	read    func(e *evaluation) (value ref.Val, set bool)
}

// view is a variable of a viewType.
type view struct {
	of   *viewType
	eval *evaluation
}

var (
	_ traits.Indexer     = (*view)(nil)
	_ traits.FieldTester = (*view)(nil)
)

// Get reads a field by name, for expressions that have lost sight of the type.
func (v *view) Get(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := v.of.fields[string(name)]
	if !ok {
		return types.NewErr("no such field: %s", name)
	}
	value, err := f.GetFrom(v.eval)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(value)
}

// IsSet tells whether the object has a field.
func (v *view) IsSet(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := v.of.fields[string(name)]
	return types.Bool(ok && f.IsSet(v.eval))
}

// AggregateSize is that of no more than a few short values.
func (v *view) AggregateSize(types.AggregateSizer) uint32 { return 1 }

// Equal is identity: there is one value of each type in an evaluation.
func (v *view) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(v)) }

// ConvertToNative fails: a view has no native form.
func (v *view) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s has no form as %s", v.of.celType.TypeName(), t)
}

// ConvertToType converts to its type only.
func (v *view) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return v.of.celType
	}
	return types.NewErr("%s does not convert to %s", v.of.celType.TypeName(), t.TypeName())
}

// Type is the view's own.
func (v *view) Type() ref.Type { return v.of.celType }

// Value is the evaluation, which the fields read from.
func (v *view) Value() any { return v.eval }

// viewProvider adds view types to what a CEL environment knows.
type viewProvider struct {
	types.Provider
	views map[string]*viewType
}

// FindStructType finds a type by name.
func (p *viewProvider) FindStructType(name string) (*types.Type, bool) {
	if v, ok := p.views[name]; ok {
		return types.NewTypeTypeWithParam(v.celType), true
	}
	return p.Provider.FindStructType(name)
}

// FindStructFieldNames lists a type's fields.
func (p *viewProvider) FindStructFieldNames(name string) ([]string, bool) {
	if v, ok := p.views[name]; ok {
		return slices.Sorted(maps.Keys(v.fields)), true
	}
	return p.Provider.FindStructFieldNames(name)
}

// FindStructFieldType finds a field of a type.
func (p *viewProvider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if v, ok := p.views[name]; ok {
		f, ok := v.fields[field]
		return f, ok
	}
	return p.Provider.FindStructFieldType(name, field)
}

// NewValue makes a message; expressions cannot make views.
func (p *viewProvider) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := p.views[name]; ok {
		return types.NewErr("%s cannot be made by an expression", name)
	}
	return p.Provider.NewValue(name, fields)
}
