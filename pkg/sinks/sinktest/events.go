package sinktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
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

// Open opens a sink as the daemon does, after its block is validated. It is closed at the end
// of the test.
func Open(t testing.TB, c sinks.Config, change ...func(*sinks.Options)) sinks.Sink {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	o := sinks.Options{Name: "test", Cluster: "test", Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Dir: t.TempDir()}
	for _, ch := range change {
		ch(&o)
	}
	s, err := c.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// WantClass checks the class of the error of a Write, and that it has the texts. Of a
// [sinks.BatchError] it checks every event's.
func WantClass(t testing.TB, err error, class sinks.Class, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; class %s is wanted", class)
	}
	all := []error{err}
	if b, ok := errors.AsType[*sinks.BatchError](err); ok {
		all = nil
		for _, err := range b.Failed {
			all = append(all, err)
		}
	}
	for _, err := range all {
		if got, _ := sinks.Classify(err); got != class {
			t.Errorf("class %s, want %s: %v", got, class, err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q is not in the error: %v", text, err)
			}
		}
	}
}

// Log collects log lines. It is safe for concurrent use.
type Log struct{ testkit.Log }

// Option has a sink log to l, debug lines too: a change for [Open].
func (l *Log) Option(o *sinks.Options) {
	o.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
