// Package samples makes events for checks of sinks.
package samples

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

// Recreated makes the life of an object and of the next one under its name: added,
// updated and deleted under one uid, added and updated under another.
func Recreated(object int) []*event.Event {
	out := make([]*event.Event, 5)
	for i := range out {
		e := Event(i, object)
		switch i {
		case 0, 3:
			e.Type = event.Added
		case 2:
			e.Type = event.Deleted
		default:
			e.Type = event.Updated
		}
		if i > 2 {
			e.UID = fmt.Sprintf("00000000-0000-4000-9000-%012d", object)
		}
		e.ID = event.ID("cluster-uid", e.Type, e.Resource, "", e.UID, e.ResourceVersion)
		out[i] = e
	}
	return out
}

// odd are JSON values that the API server can serve and that destinations choke on: NUL,
// half of a surrogate pair, numbers beyond every machine's, depth, line separators.
var odd = []string{
	`"a\u0000b"`, `"\ud800"`, `"\udc00\ud800"`, `1e400`, `-1e-400`, `123456789012345678901234567890`, `0.1e1`,
	`"\u2028\u2029"`, `{"":{"":null}}`, strings.Repeat("[", 500) + strings.Repeat("]", 500), `{"a":1,"a":2}`, `"\r\n"`,
}

// Odd makes an event for each value of which a destination may find that it is odd.
func Odd() []*event.Event {
	out := make([]*event.Event, len(odd))
	for i, value := range odd {
		out[i] = Event(i, i)
		out[i].Object = json.RawMessage(`{"data":` + value + `}`)
	}
	return out
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
