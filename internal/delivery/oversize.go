package delivery

import "github.com/watcherd/watcherd/pkg/event"

// frame is more than the member names and the fixed-length values of an encoded
// event take in any format.
const frame = 768

// estimate is an upper bound of the event's encoded size for the plain ASCII
// that the API server's names consist of, a few hundred bytes above it at most.
func estimate(ev *event.Event) int {
	n := frame + len(ev.Object) + len(ev.OldObject) + len(ev.Patch)
	n += len(ev.ID) + len(ev.Cluster) + len(ev.ResourceVersion) + len(ev.Resource.Kind) + 2*len(ev.UID)
	// In the data, and in the subject.
	n += 2 * (len(ev.Resource.Group) + len(ev.Resource.Version) + len(ev.Resource.Resource) + len(ev.Namespace) + len(ev.Name))
	if g := ev.Gap; g != nil {
		n += len(g.Watch) + len(g.Resource) + len(g.FromResourceVersion) + len(g.ToResourceVersion) + len(g.Cause)
	}
	return n
}

// truncations make an event smaller step by step: what can be had elsewhere
// goes first. Each returns a copy; an event may be shared.
var truncations = [...]func(*event.Event) *event.Event{
	func(ev *event.Event) *event.Event { c := *ev; c.OldObject = nil; return &c },
	func(ev *event.Event) *event.Event { c := *ev; c.Patch = nil; return &c },
	func(ev *event.Event) *event.Event { c := *ev; c.Object = nil; return &c },
}
