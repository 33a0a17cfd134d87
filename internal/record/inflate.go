package record

import (
	"encoding/json"
	"fmt"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
)

const states = Object | OldObject

// Edit changes recorded content to what may be seen of it. It is safe for concurrent
// use, and changes nothing that it made itself.
type Edit interface {
	// Object appends what is left of an object's JSON.
	Object(dst, raw []byte) ([]byte, error)
	// Part appends what is left of a part of the object's metadata, which has the form of an object
	// and does not name it.
	Part(dst, raw []byte) ([]byte, error)
	// Patch returns what is left of a patch. before and after are the edited objects
	// that it leads between, nil if one of them is not recorded. It is not ok if
	// nothing of the patch may be seen.
	Patch(patch, before, after []byte) (left []byte, ok bool)
}

// Inflater turns stored records back into events. It is safe for concurrent use.
type Inflater struct {
	Cluster      string                // name of the cluster, part of every event
	Feed         string                // name of the feed, the same; empty: none
	ClusterUID   func() string         // empty while it is not known; nil: never known
	Dictionaries *compact.Dictionaries // what the bodies were compressed with
	RouteSets    RouteSets             // of flags; nil: there are none

	// Edit returns what is to be done with the content of a record before a sink,
	// or an onlooker (""), sees it; nil: nothing. A nil Edit does nothing ever.
	Edit func(r *Record, sink string) Edit
}

// Event decodes the record stored under sequence, with the parts that flags ask
// for, as the sink may see them. The event owns its bodies: payload may be reused.
func (in *Inflater) Event(sequence uint64, flags Flags, payload []byte, sink string) (*event.Event, error) {
	r, err := Decode(payload)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", sequence, err)
	}
	if err := in.route(r, flags, sink); err != nil {
		return nil, fmt.Errorf("event %d: %w", sequence, err)
	}
	e := &r.Event
	e.Sequence = sequence
	e.Cluster, e.Feed = in.Cluster, in.Feed
	if in.ClusterUID != nil {
		e.ClusterUID = in.ClusterUID()
	}
	e.Selection = flags.Selection()
	e.Replay = flags&Replay != 0
	e.PatchOmitted = r.PatchOmitted && flags&Patch != 0
	edit := in.edit(r, sink)
	if e.Type != event.Updated {
		flags &^= OldObject // it may be recorded, for the history
	}
	wanted := flags
	if flags&Summary != 0 && e.Type == event.Updated {
		wanted |= states
		if len(r.Object.Data) == 0 || len(r.OldObject.Data) == 0 {
			wanted |= Patch // the summary follows from it
		}
	}
	if flags&Summary != 0 && e.Resource.SelfDescribing(e.Type) {
		wanted |= Object // its summary is made of its reason and message
	}
	if edit != nil && wanted&Patch != 0 && len(r.Patch) > 0 {
		wanted |= states // the patch follows from them
	}
	if wanted&Object != 0 {
		if e.Object, err = in.inflate(r.Object, edit); err != nil {
			return nil, fmt.Errorf("event %d: object: %w", sequence, err)
		}
	}
	if wanted&OldObject != 0 {
		if e.OldObject, err = in.inflate(r.OldObject, edit); err != nil {
			return nil, fmt.Errorf("event %d: old object: %w", sequence, err)
		}
	}
	if wanted&Patch != 0 && len(r.Patch) > 0 {
		patch, ok := r.Patch, true
		if edit != nil {
			patch, ok = edit.Patch(patch, e.OldObject, e.Object)
		}
		if ok {
			e.Patch = append(json.RawMessage(nil), patch...)
		}
		e.PatchOmitted = !ok && flags&Patch != 0
	}
	if flags&Summary != 0 {
		e.Summary = summary.Of(e)
	}
	if err := in.enrich(e, r, flags, sink); err != nil {
		return nil, fmt.Errorf("event %d: %w", sequence, err)
	}
	if flags&Object == 0 {
		e.Object = nil
	}
	if flags&OldObject == 0 {
		e.OldObject = nil
	}
	if flags&Patch == 0 {
		e.Patch = nil
	}
	return e, nil
}

// route has a record name the routes that led to the sink, if the flags have their number.
func (in *Inflater) route(r *Record, flags Flags, sink string) error {
	n := flags.RouteSet()
	if n == 0 {
		return nil
	}
	if in.RouteSets != nil {
		if routes, ok := in.RouteSets.Routes(n); ok {
			r.Targets = []Target{{Sink: sink, Flags: flags, Routes: routes}}
			return nil
		}
	}
	return fmt.Errorf("the routes that led to sink %s are not known: the store has no set %d", sink, n)
}

// State returns one of the record's bodies as JSON, as the sink may see it; nil if the
// record lacks it.
func (in *Inflater) State(r *Record, b compact.Body, sink string) (json.RawMessage, error) {
	return in.inflate(b, in.edit(r, sink))
}

func (in *Inflater) edit(r *Record, sink string) Edit {
	if in.Edit == nil {
		return nil
	}
	return in.Edit(r, sink)
}

func (in *Inflater) inflate(b compact.Body, edit Edit) (json.RawMessage, error) {
	if len(b.Data) == 0 {
		return nil, nil
	}
	raw, err := in.Dictionaries.Inflate(nil, b)
	if err != nil || edit == nil {
		return raw, err
	}
	return edit.Object(make([]byte, 0, len(raw)), raw)
}

// Enrichment is what routes ask for about other objects, as it was when the event was
// recorded. Its parts have the form of objects, so that edits apply to them.
type Enrichment struct {
	// Owner has the chain of controllers of the event's object, from the direct one on, as
	// its metadata.ownerReferences, and nothing else; nil: there is none.
	Owner json.RawMessage `json:"owner,omitempty"`
	// Involved is the object that a Kubernetes Event is about.
	Involved *Involved `json:"involved,omitempty"`
	// Incomplete means that something of it was not known.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Involved is the metadata of the object that a Kubernetes Event is about.
type Involved struct {
	Resource  event.Resource  `json:"resource"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Edits     uint64          `json:"edits,omitempty"` // see Record.Edits
	Object    json.RawMessage `json:"object"`          // labels, annotations, and its chain of controllers as ownerReferences
}

// MetadataOf makes the JSON of an object with nothing but these members of its metadata.
func MetadataOf(uid string, labels, annotations json.RawMessage, chain []event.Ref) (json.RawMessage, error) {
	var o enriched
	o.Metadata.UID, o.Metadata.Labels, o.Metadata.Annotations = uid, labels, annotations
	if len(chain) > 0 {
		refs, err := json.Marshal(chain)
		if err != nil {
			return nil, err
		}
		o.Metadata.OwnerReferences = refs
	}
	return json.Marshal(o)
}

// enriched is the form of both parts. What is not of the expected type after an edit is
// left out.
type enriched struct {
	Metadata struct {
		UID             string          `json:"uid,omitempty"`
		Labels          json.RawMessage `json:"labels,omitempty"`
		Annotations     json.RawMessage `json:"annotations,omitempty"`
		OwnerReferences json.RawMessage `json:"ownerReferences,omitempty"`
	} `json:"metadata"`
}

func (o *enriched) owner() *event.Owner {
	var chain []event.Ref
	if json.Unmarshal(o.Metadata.OwnerReferences, &chain) != nil {
		return nil
	}
	return event.OwnerOf(chain)
}

func texts(raw json.RawMessage) (m map[string]string) {
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

// About returns the involved object as the content of a record of its own, for its edits;
// nil if there is none.
func (r *Record) About() *Record {
	if r.Enrichment == nil || r.Enrichment.Involved == nil {
		return nil
	}
	i := r.Enrichment.Involved
	return &Record{
		Event: event.Event{Resource: i.Resource, Namespace: i.Namespace, Name: i.Name},
		Edits: i.Edits, Patch: i.Object, Targets: r.Targets,
	}
}

// enrich adds to an event what flags ask for, as the sink may see it.
func (in *Inflater) enrich(e *event.Event, r *Record, flags Flags, sink string) error {
	if r.Enrichment == nil || flags&(Owner|InvolvedObject) == 0 {
		return nil
	}
	e.Incomplete = r.Enrichment.Incomplete
	if flags&Owner != 0 && r.Enrichment.Owner != nil {
		o, err := in.seen(r, r.Enrichment.Owner, sink)
		if err != nil {
			return fmt.Errorf("owner: %w", err)
		}
		e.Owner = o.owner()
	}
	about := r.About()
	if flags&InvolvedObject == 0 || about == nil {
		return nil
	}
	o, err := in.seen(about, about.Patch, sink)
	if err != nil {
		return fmt.Errorf("involved object: %w", err)
	}
	e.InvolvedObject = &event.InvolvedObject{
		APIVersion: about.Event.Resource.APIVersion(), Kind: about.Event.Resource.Kind,
		Namespace: about.Event.Namespace, Name: about.Event.Name, UID: o.Metadata.UID,
		Labels: texts(o.Metadata.Labels), Annotations: texts(o.Metadata.Annotations), Owner: o.owner(),
	}
	return nil
}

// seen decodes a part of the enrichment after the edits of the record that it is of.
func (in *Inflater) seen(r *Record, raw []byte, sink string) (o enriched, err error) {
	if edit := in.edit(r, sink); edit != nil {
		if raw, err = edit.Part(nil, raw); err != nil {
			return o, err
		}
	}
	err = json.Unmarshal(raw, &o)
	return o, err
}
