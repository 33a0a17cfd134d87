package sinktest

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// bench holds a destination, the sinks open at it and what they said.
type bench struct {
	t    *testing.T
	dest Destination
	said *Log
	reg  *prometheus.Registry // one, as in a program that replaces a sink
}

// newBench starts a destination. Everything left of the sinks at the end of the
// test fails it.
func newBench(t *testing.T, start func(t *testing.T) Destination) *bench {
	t.Helper()
	before := goleak.IgnoreCurrent()
	b := &bench{t: t, dest: start(t), said: &Log{}, reg: prometheus.NewRegistry()}
	t.Cleanup(func() {
		b.checkSecrets(b.said.String())
		if b.dest.Stop != nil {
			b.dest.Stop()
		}
		if err := goleak.Find(before); err != nil {
			t.Errorf("the sink left goroutines: %v", err)
		}
	})
	return b
}

// open opens a sink that is closed at the end of the test, unless it was before.
func (b *bench) open() *opened {
	b.t.Helper()
	config := b.dest.Config()
	if err := config.Validate(); err != nil {
		b.t.Fatalf("the block is not valid: %v", err)
	}
	o := sinks.Options{
		Name: "under-test", Cluster: "test",
		Format: b.dest.Format, BatchMode: b.dest.BatchMode,
		Logger:     slog.New(slog.NewTextHandler(b.said, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: b.reg,
		Stdout:     io.Discard,
		Dir:        b.t.TempDir(),
	}
	if b.dest.Options != nil {
		b.dest.Options(&o)
	}
	sink, err := config.Open(b.t.Context(), o)
	if err != nil {
		b.t.Fatalf("open: %v", err)
	}
	s := &opened{bench: b, Sink: sink}
	b.t.Cleanup(s.close)
	return s
}

// checkSecrets fails the test if text holds a secret.
func (b *bench) checkSecrets(text string) {
	b.t.Helper()
	for _, secret := range b.dest.Secrets {
		if i := strings.Index(text, secret); i >= 0 {
			b.t.Errorf("a secret shows up in: %s", text[max(0, i-200):min(len(text), i+len(secret)+100)])
		}
	}
}

type opened struct {
	*bench
	sinks.Sink
	closed bool
}

func (s *opened) close() {
	if err := s.closeWithin(patience); err != nil {
		s.t.Errorf("close: %v", err)
	}
}

// closeWithin closes the sink, once.
func (s *opened) closeWithin(d time.Duration) error {
	if s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return s.Close(ctx)
}

// write writes a batch and checks that the sink did not touch it.
func (s *opened) write(ctx context.Context, batch []*event.Event) error {
	s.t.Helper()
	before := digest(batch)
	own := append([]*event.Event(nil), batch...)
	err := s.Write(ctx, own)
	clear(own) // a sink that kept the slice will notice
	if digest(batch) != before {
		s.t.Error("the sink changed an event")
	}
	if err != nil {
		s.checkSecrets(fmt.Sprintf("%v %+v %#v", err, err, err))
	}
	return err
}

// mustWrite writes a batch that must be accepted.
func (s *opened) mustWrite(batch []*event.Event) {
	s.t.Helper()
	if err := s.write(s.t.Context(), batch); err != nil {
		s.t.Fatalf("write %d events: %v", len(batch), err)
	}
}

// deliver does what the worker does: it writes until every event is accepted or
// is known as poison, in order per object. Poison is returned.
func (s *opened) deliver(events []*event.Event) (poison []string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for len(events) > 0 {
		err := s.write(s.t.Context(), events)
		if err == nil {
			return poison
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d events were not delivered in time: %v", len(events), err)
		}
		events, poison = s.settle(events, err, poison)
	}
	return poison
}

// settle sorts out a failed write: what is to be written again, and what never.
func (s *opened) settle(events []*event.Event, err error, poison []string) (again []*event.Event, _ []string) {
	s.t.Helper()
	failed := failures(events, err)
	blocked := map[string]bool{}
	for i, e := range events {
		why, bad := failed[i]
		if !bad {
			if blocked[e.PartitionKey()] {
				s.t.Errorf("event %d was accepted although an earlier one of its object failed", e.Sequence)
			}
			continue
		}
		if class, _ := sinks.Classify(why); class != sinks.ClassPoison {
			blocked[e.PartitionKey()] = true
			again = append(again, e)
			continue
		}
		if len(failed) == 1 || !sameForAll(failed, len(events)) {
			poison = append(poison, e.ID)
			continue
		}
		// The whole batch was refused: take it apart, as the worker does.
		for _, single := range events {
			if err := s.write(s.t.Context(), []*event.Event{single}); err != nil {
				poison = append(poison, single.ID)
			}
		}
		return nil, poison
	}
	return again, poison
}

// failures are the failed events of a write and why.
func failures(events []*event.Event, err error) map[int]error {
	if batch, ok := err.(*sinks.BatchError); ok { //nolint:errorlint // the contract wants it bare or wrapped; here either
		return batch.Failed
	}
	failed := map[int]error{}
	for i := range events {
		failed[i] = err
	}
	return failed
}

func sameForAll(failed map[int]error, n int) bool {
	if len(failed) != n {
		return false
	}
	for _, err := range failed {
		if err != failed[0] { //nolint:errorlint // identity is meant
			return false
		}
	}
	return true
}

func digest(batch []*event.Event) uint64 {
	h := fnv.New64a()
	for _, e := range batch {
		rest := *e
		for _, raw := range []*json.RawMessage{&rest.Object, &rest.OldObject, &rest.Patch} {
			h.Write(*raw)
			*raw = nil
		}
		fmt.Fprintf(h, "%+v", rest)
	}
	return h.Sum64()
}

// Destination is the real thing a kind delivers to, with the means to disturb it.
// Functions that are nil say that the kind cannot be disturbed so; the checks that
// need them are skipped.
type Destination struct {
	// Config returns the kind's block for this destination. It is called once for
	// each sink that is opened, so two sinks at once have the same target.
	Config func() sinks.Config

	// Format and BatchMode are handed to Open.
	Format    sinks.Format
	BatchMode bool

	// Options changes what else is handed to Open.
	Options func(o *sinks.Options)

	// Received returns the ids of the events the destination has accepted, in its
	// order. An event that came twice is in it twice.
	Received func(t *testing.T) []string

	// Break makes the destination fail every attempt in a way that must be retried,
	// accepting nothing; Repair ends that, and ends Hang and Reject too.
	Break  func(t *testing.T)
	Repair func(t *testing.T)

	// Hang makes the destination stop answering, so that a Write blocks. Best is to stop
	// a real server's process (SIGSTOP), which stops reading too.
	Hang func(t *testing.T)

	// Restart ends the destination without warning, as kill -9 does, and starts it
	// again with what it has accepted, at the same address.
	Restart func(t *testing.T)

	// Idempotent means that the destination keeps one copy of an event that is written
	// again, in any batch.
	Idempotent bool

	// Refuse makes the destination fail in a way that must pause the sink.
	Refuse func(t *testing.T)

	// Reject makes the destination refuse the event with that id for good (as
	// poison, or together with its batch) and accept others.
	Reject func(t *testing.T, id string)

	// Secrets are values the configuration leads to. They must show up in no error
	// and no log line. A destination does well to echo them in its failures.
	Secrets []string

	// Stop ends the destination. It is called after the last sink was closed.
	Stop func()
}
