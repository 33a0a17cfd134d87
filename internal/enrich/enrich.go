package enrich

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Bounds of what is added to one event.
const (
	maxChain = 10       // controllers
	maxRef   = 2 << 10  // bytes, of the reference to one
	maxMap   = 32 << 10 // bytes of the involved object's labels, and of its annotations
)

// copied is the annotation of kubectl with a copy of the whole object, which is no metadata.
const copied = "kubectl.kubernetes.io/last-applied-configuration"

// Cache is the objects of one resource, as one informer holds them.
type Cache struct {
	Resource event.Resource
	Edits    uint64 // the fingerprint of the edits of its objects
	// Store returns the informer's store, nil while there is none. Its objects are of type
	// *compact.Object.
	Store func() cache.Store
}

// Enricher looks things up in caches. It is safe for concurrent use.
type Enricher struct {
	caches     atomic.Pointer[map[schema.GroupKind][]Cache]
	incomplete atomic.Uint64
}

// Use replaces the caches. Of one kind the first that has an object counts.
func (e *Enricher) Use(caches []Cache) {
	index := map[schema.GroupKind][]Cache{}
	for _, c := range caches {
		kind := schema.GroupKind{Group: c.Resource.Group, Kind: c.Resource.Kind}
		index[kind] = append(index[kind], c)
	}
	e.caches.Store(&index)
}

// Incomplete returns how many events were marked as incomplete.
func (e *Enricher) Incomplete() uint64 { return e.incomplete.Load() }

// Enrich adds to a record of an object what want asks for.
func (e *Enricher) Enrich(r *record.Record, o *compact.Object, want record.Flags) error {
	if want&(record.Owner|record.InvolvedObject) == 0 {
		return nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return err
	}
	var out record.Enrichment
	if want&record.Owner != 0 {
		chain, complete := e.chain(raw, r.Event.Namespace)
		out.Incomplete = !complete
		if len(chain) > 0 {
			if out.Owner, err = record.MetadataOf("", nil, nil, chain); err != nil {
				return err
			}
		}
	}
	if want&record.InvolvedObject != 0 {
		complete, err := e.involved(&out, &r.Event, raw)
		if err != nil {
			return err
		}
		out.Incomplete = out.Incomplete || !complete
	}
	if out.Incomplete {
		e.incomplete.Add(1)
	}
	if out.Incomplete || out.Owner != nil || out.Involved != nil {
		r.Enrichment = &out
	}
	return nil
}

// ref is a reference to an object, in an owner reference or in a Kubernetes Event.
type ref struct {
	event.Ref
	Namespace  string `json:"namespace"`
	Controller bool   `json:"controller"`
}

func (r *ref) kind() schema.GroupKind {
	group, _, ok := strings.Cut(r.APIVersion, "/")
	if !ok {
		group = ""
	}
	return schema.GroupKind{Group: group, Kind: r.Kind}
}

// isNode reports whether the object is a Node: nothing controls it, and in references
// its uid is its name at times.
func (r *ref) isNode() bool { return r.kind() == schema.GroupKind{Kind: "Node"} }

// chain follows the controllers of an object from the direct one on.
func (e *Enricher) chain(raw []byte, namespace string) (chain []event.Ref, complete bool) {
	for {
		next, ok := controller(raw)
		switch {
		case !ok:
			return chain, true
		case len(chain) == maxChain, len(next.APIVersion)+len(next.Kind)+len(next.Name)+len(next.UID) > maxRef:
			return chain, false
		}
		chain = append(chain, next.Ref)
		if next.isNode() {
			return chain, true
		}
		_, o := e.find(&next, namespace)
		if o == nil {
			return chain, false
		}
		var err error
		if raw, err = o.AppendJSON(nil); err != nil {
			return chain, false
		}
	}
}

// controller returns the owner reference of an object's controller. ok is false if there
// is none.
func controller(raw []byte) (r ref, ok bool) {
	list, found := rawjson.Lookup(raw, ownerReferences)
	var refs []ref
	if !found || json.Unmarshal(list, &refs) != nil {
		return r, false
	}
	i := slices.IndexFunc(refs, func(r ref) bool { return r.Controller })
	if i < 0 {
		return r, false
	}
	return refs[i], true
}

// involved adds the object that an Event of Kubernetes is about. Other objects are about
// none.
func (e *Enricher) involved(out *record.Enrichment, about *event.Event, raw []byte) (complete bool, err error) {
	var path rawjson.Path
	switch (schema.GroupKind{Group: about.Resource.Group, Kind: about.Resource.Kind}) {
	case schema.GroupKind{Kind: "Event"}:
		path = involvedObject
	case schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}:
		path = regarding
	default:
		return true, nil
	}
	var r ref
	found, ok := rawjson.Lookup(raw, path)
	if ok {
		ok = json.Unmarshal(found, &r) == nil
	}
	// The API server lets an Event with an eventTime name any namespace.
	if !ok || r.Namespace != "" && r.Namespace != about.Namespace {
		return false, nil
	}
	c, o := e.find(&r, r.Namespace)
	if o == nil {
		return false, nil
	}
	if raw, err = o.AppendJSON(nil); err != nil {
		return false, err
	}
	chain, complete := e.chain(raw, o.GetNamespace())
	object := func(path rawjson.Path) json.RawMessage {
		value, ok := rawjson.Lookup(raw, path)
		if ok && bytes.Contains(value, []byte(copied)) {
			var members map[string]json.RawMessage
			ok = json.Unmarshal(value, &members) == nil
			delete(members, copied)
			value, _ = json.Marshal(members) // of valid JSON
		}
		switch {
		case !ok || value[0] != '{' || string(value) == "{}":
			return nil
		case len(value) > maxMap:
			complete = false
			return nil
		}
		return value
	}
	i := &record.Involved{Resource: c.Resource, Namespace: o.GetNamespace(), Name: o.GetName(), Edits: c.Edits}
	if i.Object, err = record.MetadataOf(string(o.GetUID()), object(labels), object(annotations), chain); err != nil {
		return false, err
	}
	out.Involved = i
	return complete, nil
}

// find returns the cached object that is referred to and its cache, nil if it is not
// cached.
func (e *Enricher) find(r *ref, namespace string) (*Cache, *compact.Object) {
	index := e.caches.Load()
	if index == nil {
		return nil, nil
	}
	for i, c := range (*index)[r.kind()] {
		store := c.Store()
		if store == nil {
			continue
		}
		found, ok, err := store.GetByKey(namespace + "/" + r.Name)
		if !ok && err == nil {
			found, ok, err = store.GetByKey(r.Name) // in no namespace
		}
		o, compacted := found.(*compact.Object)
		if err != nil || !ok || !compacted || o.GetName() != r.Name { // a name with a slash would be a key of another namespace
			continue
		}
		// In a namespace a name alone is no reference to what is in none.
		alike := (r.UID == "" || r.isNode()) && (r.Namespace == "" || o.GetNamespace() != "")
		if alike || r.UID == string(o.GetUID()) {
			return &(*index)[r.kind()][i], o
		}
	}
	return nil, nil
}

var (
	ownerReferences = rawjson.MustParsePath("metadata.ownerReferences")
	labels          = rawjson.MustParsePath("metadata.labels")
	annotations     = rawjson.MustParsePath("metadata.annotations")
	involvedObject  = rawjson.MustParsePath("involvedObject")
	regarding       = rawjson.MustParsePath("regarding")
)
