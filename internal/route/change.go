package route

import (
	"time"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Change is one observed change, as a Router is asked about it.
type Change struct {
	Type     event.Type
	Resource event.Resource
	Cluster  string
	Time     time.Time // when it was observed

	New *compact.Object // state after; nil on Deleted
	Old *compact.Object // recorded state before; nil on Added and Sync, the last known state on Deleted

	Watches []Hit // the watches it concerns
}

// Hit is a watch that a change concerns, and how the object stands to its selector.
type Hit struct {
	Watch     string
	Selection event.Selection
}

// object is the state that an event of this change carries as `object`.
func (c *Change) object() *compact.Object {
	if c.New == nil {
		return c.Old
	}
	return c.New
}

// oldObject is the state that an event of this change carries as `oldObject`.
func (c *Change) oldObject() *compact.Object {
	if c.Type == event.Updated {
		return c.Old
	}
	return nil
}

// Payload is the set of an event's parts that a route asks for.
type Payload uint8

// The parts of an event.
const (
	PayloadObject Payload = 1 << iota
	PayloadOldObject
	PayloadPatch
)

// Target is a sink that gets the event.
type Target struct {
	Sink      string
	Payload   Payload // union over the sink's routes that match
	Selection event.Selection
	Routes    string // the sink's routes that match, in their order, separated by commas
}

// mergeSelections says how an object stands to several watches of one receiver.
// Whoever sees it through one watch before and after sees an ordinary change;
// so does one to whom it enters through one watch and leaves through another.
func mergeSelections(a, b event.Selection) event.Selection {
	switch {
	case a == b:
		return a
	case a == event.Unknown && b != event.Inside, b == event.Unknown && a != event.Inside:
		return event.Unknown
	default:
		return event.Inside
	}
}
