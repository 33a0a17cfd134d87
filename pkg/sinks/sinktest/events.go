package sinktest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// start is the time of the first event that Events makes.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Events makes n events of the given number of objects, in turn: additions first,
// then updates. They carry deterministic ids and sequences from 1 on.
func Events(n, objects int) []*event.Event {
	out := make([]*event.Event, n)
	for i := range out {
		out[i] = Event(i, i%objects)
	}
	return out
}

// Event makes the i-th event, of the given object.
func Event(i, object int) *event.Event {
	r := event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	e := &event.Event{
		Type:            event.Updated,
		Time:            start.Add(time.Duration(i) * time.Millisecond),
		Sequence:        uint64(i) + 1,
		Cluster:         "test",
		Resource:        r,
		Namespace:       "prod",
		Name:            fmt.Sprintf("web-%d", object),
		UID:             fmt.Sprintf("00000000-0000-4000-8000-%012d", object),
		ResourceVersion: fmt.Sprint(1000 + i),
	}
	if i == object {
		e.Type = event.Added
	}
	e.ID = event.ID("cluster-uid", e.Type, r, "", e.UID, e.ResourceVersion)
	e.Object = fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q,"namespace":"prod","uid":%q,"resourceVersion":%q},"spec":{"replicas":%d,"text":"äöü \"quoted\" <tag>"}}`,
		e.Name, e.UID, e.ResourceVersion, i)
	return e
}

// Large makes an event whose object holds about size bytes of text.
func Large(i, object, size int) *event.Event {
	e := Event(i, object)
	e.Object = json.RawMessage(`{"data":"` + strings.Repeat("x", size) + `"}`)
	return e
}

// IDs are the ids of events.
func IDs(events []*event.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.ID
	}
	return out
}
