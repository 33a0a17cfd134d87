package route

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/compact"
)

// evaluation caches one change's decoded state for all routes. It is used by one
// goroutine at a time.
type evaluation struct {
	change    *Change
	head      *Head // all that is known of the change; nil: the change has its objects
	object    celjson.Document
	oldObject celjson.Document

	churn *bool // whether the change is only churn; nil: not known yet

	metadata, event, changedBy, resource *celjson.Struct

	// targets holds the position of each sink of the router among the targets,
	// counted from 1; 0 means no target.
	targets []int
}

var _ cel.Activation = (*evaluation)(nil)

func newEvaluation(views *views) *evaluation {
	e := &evaluation{}
	e.metadata = views.metadata.New(e)
	e.event = views.event.New(e)
	e.changedBy = views.changedBy.New(e)
	e.resource = views.resource.New(e)
	return e
}

func (e *evaluation) reset(c *Change, sinks int) {
	if len(e.targets) != sinks {
		e.targets = make([]int, sinks)
	}
	clear(e.targets)
	e.change, e.churn = c, nil
	e.object.Reset(c.object())
	e.oldObject.Reset(c.oldObject())
}

func (e *evaluation) release() {
	e.change, e.head = nil, nil
	e.object.Release()
	e.oldObject.Release()
}

// lastChange returns who changed the object, the zero value if that is unknown.
func (e *evaluation) lastChange() compact.LastChange {
	if by := e.change.ChangedBy; by != nil {
		return compact.LastChange(*by)
	}
	if !e.change.Changed {
		return compact.LastChange{}
	}
	return e.change.New.ChangedBy(e.change.Old, e.change.Time)
}

// ResolveName returns a variable.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case "object":
		return e.object.Value(), true
	case "oldObject":
		return e.oldObject.Value(), true
	case "metadata":
		return e.metadata, true
	case "event":
		return e.event, true
	case "resource":
		return e.resource, true
	}
	return nil, false
}

// Parent returns nil.
func (e *evaluation) Parent() cel.Activation { return nil }

// views are the types of the typed variables. They describe the state in `object`: the
// last known one of a deleted object.
type views struct {
	metadata, event, changedBy, resource *celjson.StructType
}

func newViews() *views {
	changedBy := celjson.NewStructType("watcherd.ChangedBy", map[string]viewField{
		"manager":     field(types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Manager) }),
		"operation":   field(types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Operation) }),
		"subresource": field(types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.lastChange().Subresource) }),
		"time": field(types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.lastChange().Time
			return types.Timestamp{Time: t}, !t.IsZero()
		}),
	})
	return &views{
		changedBy: changedBy,
		metadata:  celjson.NewStructType("watcherd.Metadata", metadataFields()),
		event: celjson.NewStructType("watcherd.Event", map[string]viewField{
			"type":    field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Type), true }),
			"cluster": field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Cluster), true }),
			"time":    field(types.TimestampType, func(e *evaluation) (ref.Val, bool) { return types.Timestamp{Time: e.change.Time}, true }),
			"changedBy": field(changedBy.Type, func(e *evaluation) (ref.Val, bool) {
				return e.changedBy, e.lastChange().Manager != ""
			}),
		}),
		resource: celjson.NewStructType("watcherd.Resource", map[string]viewField{
			"group":    field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Group), true }),
			"version":  field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Version), true }),
			"resource": field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Resource), true }),
			"kind":     field(types.StringType, func(e *evaluation) (ref.Val, bool) { return types.String(e.change.Resource.Kind), true }),
		}),
	}
}

// viewField is a field of a typed variable.
type viewField = celjson.Field[*evaluation]

func field(t *types.Type, read func(e *evaluation) (value ref.Val, set bool)) viewField {
	return viewField{Type: t, Read: read}
}

// provider adds the types to those of an environment.
func (v *views) provider(of types.Provider) types.Provider {
	return celjson.WithStructs(of, v.metadata, v.event, v.changedBy, v.resource)
}

// metadataFields returns the typed fields of `metadata`. Unlike in `object.metadata`,
// times are timestamps, and an unset field is "", 0 or empty instead of an error. has()
// reports whether it is set. Reading an unset deletionTimestamp is an error.
func metadataFields() map[string]viewField {
	texts := types.NewMapType(types.StringType, types.StringType)
	return map[string]viewField{
		"name": field(types.StringType, func(e *evaluation) (ref.Val, bool) {
			if e.head != nil {
				return celjson.Text(e.head.Name)
			}
			return celjson.Text(e.object.Source().GetName())
		}),
		"namespace": field(types.StringType, func(e *evaluation) (ref.Val, bool) {
			if e.head != nil {
				return celjson.Text(e.head.Namespace)
			}
			return celjson.Text(e.object.Source().GetNamespace())
		}),
		"uid":             field(types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(string(e.object.Source().GetUID())) }),
		"resourceVersion": field(types.StringType, func(e *evaluation) (ref.Val, bool) { return celjson.Text(e.object.Source().GetResourceVersion()) }),
		"labels":          field(texts, func(e *evaluation) (ref.Val, bool) { return e.object.Labels() }),
		"generation": field(types.IntType, func(e *evaluation) (ref.Val, bool) {
			n := e.object.Source().GetGeneration()
			return types.Int(n), n != 0
		}),
		"creationTimestamp": field(types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.Source().GetCreationTimestamp()
			return types.Timestamp{Time: t.Time}, !t.IsZero()
		}),
		"deletionTimestamp": field(types.TimestampType, func(e *evaluation) (ref.Val, bool) {
			t := e.object.Source().GetDeletionTimestamp()
			if t == nil {
				return nil, false
			}
			return types.Timestamp{Time: t.Time}, true
		}),
		"annotations":     field(texts, fromBody("annotations", types.NewStringStringMap(types.DefaultTypeAdapter, nil))),
		"ownerReferences": field(types.NewListType(types.NewMapType(types.StringType, types.DynType)), fromBody("ownerReferences", types.NewStringList(types.DefaultTypeAdapter, nil))),
		"finalizers":      field(types.NewListType(types.StringType), fromBody("finalizers", types.NewStringList(types.DefaultTypeAdapter, nil))),
		"generateName":    field(types.StringType, fromBody("generateName", types.String(""))),
	}
}

// fromBody returns a reader of a metadata field that is only in the object's JSON.
func fromBody(field string, none ref.Val) func(e *evaluation) (ref.Val, bool) {
	return func(e *evaluation) (ref.Val, bool) {
		v, found := e.object.Metadata(field)
		return celjson.OrNone(v, found, none)
	}
}
