package route

import (
	"time"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Change is an observed change, the input of a Router.
type Change struct {
	ID       string // of the event
	Type     event.Type
	Resource event.Resource
	Cluster  string
	Time     time.Time // of the observation

	New *compact.Object // state after; nil on Deleted
	Old *compact.Object // recorded state before; nil on Added and Sync, the last known state on Deleted

	// Changed means that a change of the object led to the event, and New has its author,
	// unless it is ChangedBy.
	Changed   bool
	ChangedBy *event.ChangedBy

	// Uncounted means that a metric does not count the change: it is delivered to some
	// sinks, not to all that routes lead to.
	Uncounted bool

	// Lasted are the routes with For whose match the event reports, which no other route takes;
	// nil: it is a change.
	Lasted []string

	Watches []Hit // watches that cover the object before or after

	// Matches has, after a call of Route, those of the routes with For that take the change.
	Matches []MatchState
}

// MatchState is whether an object matches a route with For.
type MatchState struct {
	Route string
	Match bool
}

// Hit is a watch of a change and the object's relation to its selection.
type Hit struct {
	Watch     string
	Selection event.Selection
}

// object returns the state that the event carries as `object`.
func (c *Change) object() *compact.Object {
	if c.New == nil {
		return c.Old
	}
	return c.New
}

// oldObject returns the state that the event carries as `oldObject`.
func (c *Change) oldObject() *compact.Object {
	if c.Type == event.Updated {
		return c.Old
	}
	return nil
}

// mergeSelections combines an object's relations to the selections of several watches
// of one receiver. An object that one watch covers before and after is Inside for the
// receiver. So is an object that enters one watch and leaves another.
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
