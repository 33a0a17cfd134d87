package record

import (
	"encoding/json"
	"fmt"

	"github.com/watcherd/watcherd/pkg/event"
)

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
		if raw, err = edit.Object(nil, raw); err != nil {
			return o, err
		}
	}
	err = json.Unmarshal(raw, &o)
	return o, err
}
