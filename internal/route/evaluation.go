package route

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/compact"
)

// evaluation caches one change's decoded state for all routes. It is used by one
// goroutine at a time.
type evaluation struct {
	change    *Change
	object    celjson.Document
	oldObject celjson.Document

	metadata, event, changedBy, resource view

	// targets holds the position of each sink of the router among the targets,
	// counted from 1; 0 means no target.
	targets []int
}

var _ cel.Activation = (*evaluation)(nil)

func newEvaluation(views *views) *evaluation {
	e := &evaluation{}
	e.metadata = view{of: views.metadata, eval: e}
	e.event = view{of: views.event, eval: e}
	e.changedBy = view{of: views.changedBy, eval: e}
	e.resource = view{of: views.resource, eval: e}
	return e
}

func (e *evaluation) reset(c *Change, sinks int) {
	if len(e.targets) != sinks {
		e.targets = make([]int, sinks)
	}
	clear(e.targets)
	e.change = c
	e.object.Reset(c.object())
	e.oldObject.Reset(c.oldObject())
}

func (e *evaluation) release() {
	e.change = nil
	e.object.Release()
	e.oldObject.Release()
}

// lastChange returns who changed the object, the zero value if that is unknown.
func (e *evaluation) lastChange() compact.LastChange {
	if !e.change.Changed {
		return compact.LastChange{}
	}
	return e.change.New.LastChange()
}

// ResolveName returns a variable.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case "object":
		return e.object.Value(), true
	case "oldObject":
		return e.oldObject.Value(), true
	case "metadata":
		return &e.metadata, true
	case "event":
		return &e.event, true
	case "resource":
		return &e.resource, true
	}
	return nil, false
}

// Parent returns nil.
func (e *evaluation) Parent() cel.Activation { return nil }

// views are the types of the typed variables. They describe the state in `object`: the
// last known one of a deleted object.
type views struct {
	metadata, event, changedBy, resource *viewType
}

func newViews() *views {
	changedBy := newViewType("watcherd.ChangedBy", map[string]viewField{
		"manager":     {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Manager) }},
		"operation":   {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Operation) }},
		"subresource": {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Subresource) }},
		"time": {types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.lastChange().Time
			return types.Timestamp{Time: t}, !t.IsZero()
		}},
	})
	return &views{
		changedBy: changedBy,
		metadata:  newViewType("watcherd.Metadata", metadataFields()),
		event: newViewType("watcherd.Event", map[string]viewField{
			"type":    {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Type), true }},
			"cluster": {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Cluster), true }},
			"time":    {types.TimestampType, func(e *evaluation) (ref.Val, bool) { return types.Timestamp{Time: e.change.Time}, true }},
			"changedBy": {changedBy.celType, func(e *evaluation) (ref.Val, bool) {
				return &e.changedBy, e.lastChange().Manager != ""
			}},
		}),
		resource: newViewType("watcherd.Resource", map[string]viewField{
			"group":    {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Group), true }},
			"version":  {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Version), true }},
			"resource": {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Resource), true }},
			"kind":     {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Kind), true }},
		}),
	}
}

// byName returns the types by name, for the type provider.
func (v *views) byName() map[string]*viewType {
	m := make(map[string]*viewType, 4)
	for _, t := range []*viewType{v.metadata, v.event, v.changedBy, v.resource} {
		m[t.celType.TypeName()] = t
	}
	return m
}

// metadataFields returns the typed fields of `metadata`. Unlike in `object.metadata`,
// times are timestamps, and an unset field is "", 0 or empty instead of an error. has()
// reports whether it is set. Reading an unset deletionTimestamp is an error.
func metadataFields() map[string]viewField {
	texts := types.NewMapType(types.StringType, types.StringType)
	return map[string]viewField{
		"name":            {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.object.Source().GetName()) }},
		"namespace":       {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.object.Source().GetNamespace()) }},
		"uid":             {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(string(e.object.Source().GetUID())) }},
		"resourceVersion": {types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.object.Source().GetResourceVersion()) }},
		"labels":          {texts, func(e *evaluation) (ref.Val, bool) { return e.object.Labels() }},
		"generation": {types.IntType, func(e *evaluation) (ref.Val, bool) {
			n := e.object.Source().GetGeneration()
			return types.Int(n), n != 0
		}},
		"creationTimestamp": {types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.Source().GetCreationTimestamp()
			return types.Timestamp{Time: t.Time}, !t.IsZero()
		}},
		"deletionTimestamp": {types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.Source().GetDeletionTimestamp()
			if t == nil {
				return nil, false
			}
			return types.Timestamp{Time: t.Time}, true
		}},
		"annotations":     {texts, fromBody("annotations", types.NewStringStringMap(types.DefaultTypeAdapter, nil))},
		"ownerReferences": {types.NewListType(types.NewMapType(types.StringType, types.DynType)), fromBody("ownerReferences", types.NewStringList(types.DefaultTypeAdapter, nil))},
		"finalizers":      {types.NewListType(types.StringType), fromBody("finalizers", types.NewStringList(types.DefaultTypeAdapter, nil))},
		"generateName":    {types.StringType, fromBody("generateName", types.String(""))},
	}
}

// fromBody returns a reader of a metadata field that is only in the object's JSON.
func fromBody(field string, none ref.Val) func(e *evaluation) (ref.Val, bool) {
	return func(e *evaluation) (ref.Val, bool) {
		v, found := e.object.Metadata(field)
		switch {
		case types.IsError(v):
			return v, false
		case !found || v == types.NullValue:
			return none, false
		}
		return v, true
	}
}

// viewType is the type of a variable with known fields: metadata, event and resource. A
// misspelled field is an error at load. Fields are read from the evaluation one by one.
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

// viewField is a field of a viewType. read returns its value, nil if it cannot be read,
// and the result of has().
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

// Get reads a field by name, for dynamically typed access.
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

// IsSet reports whether a field is set.
func (v *view) IsSet(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := v.of.fields[string(name)]
	return types.Bool(ok && f.IsSet(v.eval))
}

// AggregateSize returns 1: a view holds a few short values.
func (v *view) AggregateSize(types.AggregateSizer) uint32 { return 1 }

// Equal compares identity: an evaluation has one value of each type.
func (v *view) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(v)) }

// ConvertToNative fails: a view has no native form.
func (v *view) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("%s does not convert to %s", v.of.celType.TypeName(), t)
}

// ConvertToType converts to the type only.
func (v *view) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return v.of.celType
	}
	return types.NewErr("%s does not convert to %s", v.of.celType.TypeName(), t.TypeName())
}

// Type returns the view's type.
func (v *view) Type() ref.Type { return v.of.celType }

// Value returns the evaluation, from which the fields are read.
func (v *view) Value() any { return v.eval }

// viewProvider adds the view types to a CEL environment.
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

// NewValue creates a message. Expressions cannot create views.
func (p *viewProvider) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := p.views[name]; ok {
		return types.NewErr("expressions cannot create %s", name)
	}
	return p.Provider.NewValue(name, fields)
}
