package delivery

import (
	"encoding/json"

	"github.com/watcherd/watcherd/pkg/event"
)

// frame exceeds the size of the member names and fixed-length values of an encoded event
// in any format.
const frame = 896

// estimate returns an upper bound of the event's encoded size, at most a few hundred
// bytes above it. It relies on the API server's names being plain ASCII.
func estimate(ev *event.Event) int {
	if ev.Body != nil {
		return len(ev.Body)
	}
	n := frame + len(ev.Object) + len(ev.OldObject) + len(ev.Patch)
	n += len(ev.ID) + len(ev.Cluster) + len(ev.ResourceVersion) + len(ev.Resource.Kind) + 2*len(ev.UID)
	// In the data, and in the subject.
	n += 2 * (len(ev.Resource.Group) + len(ev.Resource.Version) + len(ev.Resource.Resource) + len(ev.Namespace) + len(ev.Name))
	n += 2 * len(ev.Summary) // quotes in it are escaped
	if c := ev.ChangedBy; c != nil {
		const escaped = 6 // bytes at most for one of a name that a client chose
		n += 128 + escaped*len(c.Manager)
	}
	n += ev.EnrichmentSize()
	if g := ev.Gap; g != nil {
		n += len(g.Watch) + len(g.FromResourceVersion) + len(g.ToResourceVersion) + len(g.Cause)
	}
	return n
}

// shrink limits an event to half its size for the next attempt, if the policy truncates
// events. It reports whether the event can become that small.
func (e *engine) shrink(en *entry) bool {
	if e.cfg.Oversize != OversizeTruncate {
		return false
	}
	limit := e.measure(en.event) / 2
	if _, ok := truncate(en.event, func(ev *event.Event) bool { return e.remeasure(ev) <= limit }); !ok {
		return false
	}
	en.limit = limit
	return true
}

// truncate reduces a copy of the event step by step until it fits. It first removes
// parts that are available elsewhere.
func truncate(ev *event.Event, fits func(*event.Event) bool) (smaller *event.Event, ok bool) {
	c := *ev // an event may be shared
	c.Truncated = true
	for _, cut := range [...]func(){
		func() { c.OldObject = nil },
		func() { c.Patch = nil },
		func() { c.Object = bare(c.Object) },
		func() { c.Object = nil },
		func() { c.Summary = "" },
		func() { c.Owner, c.InvolvedObject = nil, nil },
	} {
		if cut(); fits(&c) {
			return &c, true
		}
	}
	return nil, false
}

// bare returns the apiVersion, kind and metadata of an object.
func bare(object json.RawMessage) json.RawMessage {
	var kept struct {
		APIVersion json.RawMessage `json:"apiVersion,omitempty"`
		Kind       json.RawMessage `json:"kind,omitempty"`
		Metadata   json.RawMessage `json:"metadata,omitempty"`
	}
	if json.Unmarshal(object, &kept) != nil {
		return nil
	}
	out, err := json.Marshal(kept)
	if err != nil {
		return nil
	}
	return out
}
