package sinktest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
)

// Events makes n events of the given number of objects, in turn: additions first,
// then updates. They carry deterministic ids and sequences from 1 on.
func Events(n, objects int) []*event.Event { return samples.Events(n, objects) }

// Event makes the i-th event, of the given object.
func Event(i, object int) *event.Event { return samples.Event(i, object) }

// Recreated makes the life of an object and of the next one under its name: added,
// updated and deleted under one uid, added and updated under another.
func Recreated(object int) []*event.Event { return samples.Recreated(object) }

// Odd makes an event for each value of which a destination may find that it is odd.
func Odd() []*event.Event { return samples.Odd() }

// Large makes an event whose object holds about size bytes of text.
func Large(i, object, size int) *event.Event { return samples.Large(i, object, size) }

// IDs are the ids of events.
func IDs(events []*event.Event) []string { return samples.IDs(events) }

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
