package body

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/event"
)

// activation is the variables of one evaluation.
type activation struct {
	first  *message
	events ref.Val
}

var _ cel.Activation = (*activation)(nil)

func (a *activation) set(events []*event.Event) {
	list := make([]ref.Val, len(events))
	for i, e := range events {
		m := &message{Event: e}
		if i == 0 {
			a.first = m
		}
		list[i] = eventType.New(m)
	}
	a.events = types.NewRefValList(types.DefaultTypeAdapter, list)
}

func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "events":
		return a.events, true
	case "event":
		return eventType.New(a.first), true
	case "object":
		return a.first.object(), true
	case "oldObject":
		return a.first.oldObject(), true
	case "patch":
		return a.first.patch(), true
	case "metadata":
		return metadataType.New(a.first.metadata()), true
	case "resource":
		return resourceType.New(&a.first.Resource), true
	}
	return nil, false
}

func (a *activation) Parent() cel.Activation { return nil }

// message is an event as expressions read it.
type message struct {
	*event.Event
	state, old, change, data ref.Val // caches of object, oldObject, patch and dataValue
}

// AppendJSON is the form of the event as a whole.
func (m *message) AppendJSON(dst []byte) []byte { return event.AppendCloudEvent(dst, m.Event) }

func (m *message) object() ref.Val    { return cached(&m.state, m.Object) }
func (m *message) oldObject() ref.Val { return cached(&m.old, m.OldObject) }
func (m *message) patch() ref.Val     { return cached(&m.change, m.Patch) }

// cached is the value of JSON, made once: a lazy value decodes each of its parts once.
func cached(v *ref.Val, raw []byte) ref.Val {
	if *v == nil {
		*v = celjson.Value(raw)
	}
	return *v
}

func (m *message) metadata() *metadata {
	md := &metadata{message: m}
	if o, ok := m.object().(traits.Mapper); ok {
		if v, found := o.Find(types.String("metadata")); found {
			md.members, _ = v.(traits.Mapper)
		}
	}
	return md
}

func (m *message) dataValue() ref.Val {
	if m.data == nil {
		m.data = celjson.Value(event.AppendData(nil, m.Event))
	}
	return m.data
}

// match is never nil.
func (m *message) match() *event.For {
	if m.For == nil {
		return &event.For{}
	}
	return m.For
}

// changedBy is never nil.
func (m *message) changedBy() *event.ChangedBy {
	if m.ChangedBy == nil {
		return &event.ChangedBy{}
	}
	return m.ChangedBy
}

// owner is never nil.
func owner(o *event.Owner) *event.Owner {
	if o == nil {
		return &event.Owner{}
	}
	return o
}

// involved is never nil.
func (m *message) involved() *event.InvolvedObject {
	if m.InvolvedObject == nil {
		return &event.InvolvedObject{}
	}
	return m.InvolvedObject
}

type eventField = celjson.Field[*message]

func field[T any](t *types.Type, read func(of T) (value ref.Val, set bool)) celjson.Field[T] {
	return celjson.Field[T]{Type: t, Read: read}
}

func textField[T any](read func(of T) string) celjson.Field[T] {
	return field(types.StringType, func(of T) (ref.Val, bool) { return celjson.Text(read(of)) })
}

func eventFlag(read func(m *message) bool) eventField {
	return field(types.BoolType, func(m *message) (ref.Val, bool) { return types.Bool(read(m)), read(m) })
}

func eventJSON(read func(m *message) ref.Val) eventField {
	return field(types.DynType, func(m *message) (ref.Val, bool) {
		v := read(m)
		return v, v != types.NullValue
	})
}

var eventType = celjson.NewStructType("watcherd.Event", map[string]eventField{
	"id":              textField(func(m *message) string { return m.ID }),
	"type":            textField(func(m *message) string { return string(m.Type) }),
	"cluster":         textField(func(m *message) string { return m.Cluster }),
	"source":          textField(func(m *message) string { return m.Source() }),
	"subject":         textField(func(m *message) string { return m.Subject() }),
	"partitionkey":    textField(func(m *message) string { return m.PartitionKey() }),
	"namespace":       textField(func(m *message) string { return m.Namespace }),
	"name":            textField(func(m *message) string { return m.Name }),
	"uid":             textField(func(m *message) string { return m.UID }),
	"resourceVersion": textField(func(m *message) string { return m.ResourceVersion }),
	"summary":         textField(func(m *message) string { return m.Summary }),
	"selection":       textField(func(m *message) string { return string(m.Selection) }),

	"enrichment": textField(func(m *message) string {
		if m.Incomplete {
			return event.Incomplete
		}
		return ""
	}),

	"patchOmitted":      eventFlag(func(m *message) bool { return m.PatchOmitted }),
	"finalStateUnknown": eventFlag(func(m *message) bool { return m.FinalStateUnknown }),
	"replay":            eventFlag(func(m *message) bool { return m.Replay }),
	"repair":            eventFlag(func(m *message) bool { return m.Repair }),
	"truncated":         eventFlag(func(m *message) bool { return m.Truncated }),

	"object":    eventJSON(func(m *message) ref.Val { return m.object() }),
	"oldObject": eventJSON(func(m *message) ref.Val { return m.oldObject() }),
	"patch":     eventJSON(func(m *message) ref.Val { return m.patch() }),
	"data":      eventJSON(func(m *message) ref.Val { return m.dataValue() }),

	"time":      field(types.TimestampType, func(m *message) (ref.Val, bool) { return types.Timestamp{Time: m.Time}, true }),
	"unixNano":  field(types.IntType, func(m *message) (ref.Val, bool) { return types.Int(m.Time.UnixNano()), true }),
	"coalesced": field(types.IntType, func(m *message) (ref.Val, bool) { return types.Int(m.Coalesced), m.Coalesced > 0 }),
	"for":       field(forType.Type, func(m *message) (ref.Val, bool) { return forType.New(m.match()), m.For != nil }),
	"sequence":  field(types.IntType, func(m *message) (ref.Val, bool) { return types.Int(m.Sequence), true }),
	"resource":  field(resourceType.Type, func(m *message) (ref.Val, bool) { return resourceType.New(&m.Resource), true }),
	"metadata":  field(metadataType.Type, func(m *message) (ref.Val, bool) { return metadataType.New(m.metadata()), m.Gap == nil }),
	"changedBy": field(changedByType.Type, func(m *message) (ref.Val, bool) { return changedByType.New(m.changedBy()), m.ChangedBy != nil }),

	"owner": field(ownerType.Type, func(m *message) (ref.Val, bool) { return ownerType.New(owner(m.Owner)), m.Owner != nil }),
	"involvedObject": field(involvedType.Type, func(m *message) (ref.Val, bool) {
		return involvedType.New(m.involved()), m.InvolvedObject != nil
	}),
})

var ownerType = celjson.NewStructType("watcherd.Owner", map[string]celjson.Field[*event.Owner]{
	"apiVersion": textField(func(o *event.Owner) string { return o.APIVersion }),
	"kind":       textField(func(o *event.Owner) string { return o.Kind }),
	"name":       textField(func(o *event.Owner) string { return o.Name }),
	"uid":        textField(func(o *event.Owner) string { return o.UID }),
	"chain": field(types.NewListType(texts), func(o *event.Owner) (ref.Val, bool) {
		list := make([]map[string]string, len(o.Chain))
		for i, r := range o.Chain {
			list[i] = map[string]string{"apiVersion": r.APIVersion, "kind": r.Kind, "name": r.Name, "uid": r.UID}
		}
		return types.NewDynamicList(types.DefaultTypeAdapter, list), len(list) > 0
	}),
})

var involvedType = celjson.NewStructType("watcherd.InvolvedObject", map[string]celjson.Field[*event.InvolvedObject]{
	"apiVersion":  textField(func(o *event.InvolvedObject) string { return o.APIVersion }),
	"kind":        textField(func(o *event.InvolvedObject) string { return o.Kind }),
	"namespace":   textField(func(o *event.InvolvedObject) string { return o.Namespace }),
	"name":        textField(func(o *event.InvolvedObject) string { return o.Name }),
	"uid":         textField(func(o *event.InvolvedObject) string { return o.UID }),
	"labels":      textMap(func(o *event.InvolvedObject) map[string]string { return o.Labels }),
	"annotations": textMap(func(o *event.InvolvedObject) map[string]string { return o.Annotations }),
	"owner":       field(ownerType.Type, func(o *event.InvolvedObject) (ref.Val, bool) { return ownerType.New(owner(o.Owner)), o.Owner != nil }),
})

func textMap[T any](read func(of T) map[string]string) celjson.Field[T] {
	return field(texts, func(of T) (ref.Val, bool) {
		m := read(of)
		return types.NewStringStringMap(types.DefaultTypeAdapter, m), len(m) > 0
	})
}

var resourceType = celjson.NewStructType("watcherd.Resource", map[string]celjson.Field[*event.Resource]{
	"group":    field(types.StringType, func(r *event.Resource) (ref.Val, bool) { return types.String(r.Group), true }),
	"version":  field(types.StringType, func(r *event.Resource) (ref.Val, bool) { return types.String(r.Version), true }),
	"resource": field(types.StringType, func(r *event.Resource) (ref.Val, bool) { return types.String(r.Resource), true }),
	"kind":     field(types.StringType, func(r *event.Resource) (ref.Val, bool) { return types.String(r.Kind), true }),
})

var changedByType = celjson.NewStructType("watcherd.ChangedBy", map[string]celjson.Field[*event.ChangedBy]{
	"manager":     textField(func(c *event.ChangedBy) string { return c.Manager }),
	"operation":   textField(func(c *event.ChangedBy) string { return c.Operation }),
	"subresource": textField(func(c *event.ChangedBy) string { return c.Subresource }),
	"time": field(types.TimestampType, func(c *event.ChangedBy) (ref.Val, bool) {
		return types.Timestamp{Time: c.Time}, !c.Time.IsZero()
	}),
})

var forType = celjson.NewStructType("watcherd.For", map[string]celjson.Field[*event.For]{
	"since": field(types.TimestampType, func(f *event.For) (ref.Val, bool) {
		return types.Timestamp{Time: f.Since}, !f.Since.IsZero()
	}),
})

// metadata is the metadata of the event's object. What the event itself has is there
// without the object, too.
type metadata struct {
	*message
	members traits.Mapper // nil: there is no object
}

func (m *metadata) find(key string, none ref.Val) (ref.Val, bool) {
	if m.members == nil {
		return none, false
	}
	v, found := m.members.Find(types.String(key))
	return celjson.OrNone(v, found, none)
}

func metadataMember(t *types.Type, key string, none ref.Val) celjson.Field[*metadata] {
	return field(t, func(m *metadata) (ref.Val, bool) { return m.find(key, none) })
}

// metadataTime reads a time, none if it is not set.
func metadataTime(key string, none ref.Val) celjson.Field[*metadata] {
	return field(types.TimestampType, func(m *metadata) (ref.Val, bool) {
		v, found := m.find(key, nil)
		text, ok := v.(types.String)
		if !found || !ok {
			return none, false
		}
		return text.ConvertToType(types.TimestampType), true
	})
}

// metadataType has the fields of `metadata` in filters.
var metadataType = celjson.NewStructType("watcherd.Metadata", map[string]celjson.Field[*metadata]{
	"name":              textField(func(m *metadata) string { return m.Name }),
	"namespace":         textField(func(m *metadata) string { return m.Namespace }),
	"uid":               textField(func(m *metadata) string { return m.UID }),
	"resourceVersion":   textField(func(m *metadata) string { return m.ResourceVersion }),
	"generateName":      metadataMember(types.StringType, "generateName", types.String("")),
	"generation":        metadataMember(types.IntType, "generation", types.Int(0)),
	"labels":            metadataMember(texts, "labels", types.NewStringStringMap(types.DefaultTypeAdapter, nil)),
	"annotations":       metadataMember(texts, "annotations", types.NewStringStringMap(types.DefaultTypeAdapter, nil)),
	"finalizers":        metadataMember(types.NewListType(types.StringType), "finalizers", types.NewStringList(types.DefaultTypeAdapter, nil)),
	"ownerReferences":   metadataMember(types.NewListType(types.NewMapType(types.StringType, types.DynType)), "ownerReferences", types.NewStringList(types.DefaultTypeAdapter, nil)),
	"creationTimestamp": metadataTime("creationTimestamp", types.Timestamp{}),
	"deletionTimestamp": metadataTime("deletionTimestamp", nil),
})

var texts = types.NewMapType(types.StringType, types.StringType)
