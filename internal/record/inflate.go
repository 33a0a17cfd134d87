package record

import (
	"encoding/json"
	"fmt"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Inflater turns stored records back into events. It is safe for concurrent use.
type Inflater struct {
	Cluster      string                // name of the cluster, part of every event
	Dictionaries *compact.Dictionaries // what the bodies were compressed with
}

// Event decodes the record stored under sequence, with the parts that flags ask
// for. The event owns its bodies: payload may be reused.
func (in *Inflater) Event(sequence uint64, flags Flags, payload []byte) (*event.Event, error) {
	r, err := Decode(payload)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", sequence, err)
	}
	e := &r.Event
	e.Sequence = sequence
	e.Cluster = in.Cluster
	e.Selection = flags.Selection()
	e.Replay = flags&Replay != 0
	if flags&Object != 0 {
		if e.Object, err = in.inflate(r.Object); err != nil {
			return nil, fmt.Errorf("event %d: object: %w", sequence, err)
		}
	}
	if flags&OldObject != 0 {
		if e.OldObject, err = in.inflate(r.OldObject); err != nil {
			return nil, fmt.Errorf("event %d: old object: %w", sequence, err)
		}
	}
	if flags&Patch != 0 && len(r.Patch) > 0 {
		e.Patch = append(json.RawMessage(nil), r.Patch...)
	}
	return e, nil
}

func (in *Inflater) inflate(b compact.Body) (json.RawMessage, error) {
	if len(b.Data) == 0 {
		return nil, nil
	}
	return in.Dictionaries.Inflate(nil, b)
}
