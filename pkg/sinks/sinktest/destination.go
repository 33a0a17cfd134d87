package sinktest

import (
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks"
)

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
