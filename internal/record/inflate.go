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
	// Patch returns what is left of a patch. before and after are the edited objects
	// that it leads between, nil if one of them is not recorded. It is not ok if
	// nothing of the patch may be seen.
	Patch(patch, before, after []byte) (left []byte, ok bool)
}

// Inflater turns stored records back into events. It is safe for concurrent use.
type Inflater struct {
	Cluster      string                // name of the cluster, part of every event
	Dictionaries *compact.Dictionaries // what the bodies were compressed with

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
	e := &r.Event
	e.Sequence = sequence
	e.Cluster = in.Cluster
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
