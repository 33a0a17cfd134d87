package route

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// views are the typed variables. What they hold of the object is that of `object`:
// the last known state in a deletion.
type views struct {
	metadata, event, resource *viewType
}

func newViews() *views {
	return &views{
		metadata: newViewType("watcherd.Metadata", metadataFields()),
		event: newViewType("watcherd.Event", map[string]viewField{
			"type":    {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Type), true }},
			"cluster": {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Cluster), true }},
			"time":    {types.TimestampType, func(e *evaluation) (ref.Val, bool) { return types.Timestamp{Time: e.change.Time}, true }},
		}),
		resource: newViewType("watcherd.Resource", map[string]viewField{
			"group":    {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Group), true }},
			"version":  {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Version), true }},
			"resource": {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Resource), true }},
			"kind":     {types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Kind), true }},
		}),
	}
}

// byName is what a type provider needs.
func (v *views) byName() map[string]*viewType {
	m := make(map[string]*viewType, 3)
	for _, t := range []*viewType{v.metadata, v.event, v.resource} {
		m[t.celType.TypeName()] = t
	}
	return m
}

// metadataFields have types, unlike `object.metadata`: times are timestamps, and
// what the object has none of is "" or 0 or empty rather than an error, though not
// to has(). Only a deletionTimestamp that is not set cannot be read.
func metadataFields() map[string]viewField {
	texts := types.NewMapType(types.StringType, types.StringType)
	return map[string]viewField{
		"name":            {types.StringType, func(e *evaluation) (ref.Val, bool) { return text(e.object.obj.GetName()) }},
		"namespace":       {types.StringType, func(e *evaluation) (ref.Val, bool) { return text(e.object.obj.GetNamespace()) }},
		"uid":             {types.StringType, func(e *evaluation) (ref.Val, bool) { return text(string(e.object.obj.GetUID())) }},
		"resourceVersion": {types.StringType, func(e *evaluation) (ref.Val, bool) { return text(e.object.obj.GetResourceVersion()) }},
		"labels":          {texts, func(e *evaluation) (ref.Val, bool) { return &e.object.labels, e.object.hasLabels() }},
		"generation": {types.IntType, func(e *evaluation) (ref.Val, bool) {
			n := e.object.obj.GetGeneration()
			return types.Int(n), n != 0
		}},
		"creationTimestamp": {types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.obj.GetCreationTimestamp()
			return types.Timestamp{Time: t.Time}, !t.IsZero()
		}},
		"deletionTimestamp": {types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.obj.GetDeletionTimestamp()
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

// fromBody reads a field of metadata from the object's JSON.
func fromBody(field string, none ref.Val) func(e *evaluation) (ref.Val, bool) {
	return func(e *evaluation) (ref.Val, bool) {
		v, found := e.object.field(field)
		switch {
		case types.IsError(v):
			return v, false
		case !found || v == types.NullValue:
			return none, false
		}
		return v, true
	}
}
