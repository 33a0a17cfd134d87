package delivery

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Config is everything a [Worker] is made of. The zero value of an optional
// field means its default.
type Config struct {
	Name  string // the sink's name, in status and metrics
	Queue Queue

	// Open makes the sink. It is called from Run, again after a failure, and
	// never while a sink it made is still open. The sink is closed by the worker.
	Open func(ctx context.Context) (sinks.Sink, error)

	// Previous is Closed of the last worker of this queue in the process: the sink is
	// opened after it. nil: there was none.
	Previous <-chan struct{}

	// Decode makes the event of an item; an error makes the item a dead letter.
	// It is called from one goroutine at a time, may keep the item's payload,
	// and may be called again for an item that has to be read again.
	Decode func(item store.Item) (*event.Event, error)
	// Decoding changes when Decode would make something else of an item: what was
	// decoded before and not written yet is then decoded again. nil: it never does.
	Decoding func() uint64
	// Hidden changes when Decode hides something that it showed before. The texts of
	// errors until then may quote it, and are not shown any more. nil: it never does.
	Hidden func() uint64

	// Fingerprint tells this configuration of the sink from an earlier one: a
	// schedule of retries that another fingerprint left in the queue is not kept,
	// because whoever changed the sink wants to see it tried. Optional.
	Fingerprint string

	Format   sinks.Format   // for the size of events; default sinks.CloudEvents
	Delivery sinks.Delivery // batching and lanes; zero fields mean 1, 1 MiB, no wait, 1
	Retry    Retry
	Oversize Oversize // what becomes of events larger than the sink's limit; default OversizeDeadLetter

	DrainTimeout time.Duration // how long writes in flight may go on after Run's ctx is done; default 10 s
	CloseTimeout time.Duration // how long cancelled writes and Close may take; default 5 s

	Logger     *slog.Logger          // optional; carries the sink's name
	Registerer prometheus.Registerer // optional
}

// Retry says how failures are tried again.
type Retry struct {
	Initial time.Duration // largest delay after a first failure; default 500 ms
	Max     time.Duration // largest delay of all; default 5 min

	// AfterMax caps the delay that a receiver asks for; default 5 min.
	AfterMax time.Duration

	// PoisonAttempts is how often an event is refused before it becomes a dead
	// letter; default 3. Refusals of a batch as a whole don't count.
	PoisonAttempts int

	// A sink that is paused is tried after ProbeFirst (default 2 s), then after
	// four times as long each, up to about every ProbeInterval (default 5 min).
	ProbeFirst    time.Duration
	ProbeInterval time.Duration
}

// Oversize is what becomes of an event larger than the sink's limit.
type Oversize string

// The policies. OversizeTruncate marks the event as truncated and leaves out
// oldObject, then patch, then all of the object but its metadata, then the object, then the
// summary, until the event fits; one that never fits becomes a dead letter.
const (
	OversizeDeadLetter Oversize = "deadLetter"
	OversizeTruncate   Oversize = "truncate"
)

func (c *Config) setDefaults() {
	setDefault(&c.Format, sinks.CloudEvents)
	setDefault(&c.Oversize, OversizeDeadLetter)
	c.Delivery.MaxEvents = max(c.Delivery.MaxEvents, 1)
	c.Delivery.Concurrency = max(c.Delivery.Concurrency, 1)
	setDefault(&c.Delivery.MaxBytes, 1<<20)
	setDefault(&c.DrainTimeout, 10*time.Second)
	setDefault(&c.CloseTimeout, 5*time.Second)
	c.Retry.setDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
}

func (r *Retry) setDefaults() {
	setDefault(&r.Initial, 500*time.Millisecond)
	setDefault(&r.Max, 5*time.Minute)
	r.Max = max(r.Max, r.Initial)
	setDefault(&r.AfterMax, 5*time.Minute)
	setDefault(&r.PoisonAttempts, 3)
	setDefault(&r.ProbeFirst, 2*time.Second)
	setDefault(&r.ProbeInterval, 5*time.Minute)
}

// setDefault replaces a value that is not set, or makes no sense as a limit.
func setDefault[T int | time.Duration | sinks.Format | Oversize](v *T, def T) {
	var zero T
	if *v <= zero {
		*v = def
	}
}

// Reading ahead. Decoded events come on top: those of at most two batches a
// lane.
const (
	readAheadBytes = 4 << 20 // of payloads in memory
	readBytes      = 1 << 20 // of payloads in one Read
	readItems      = 512     // items in one Read
	maxSetAside    = 1 << 16 // events waiting behind failing objects, as positions
	fetchItems     = 1 << 11 // of those, events read again and not written yet
)

// readAhead is how many items are held in memory.
func (c *Config) readAhead() int {
	return min(max(2*c.Delivery.MaxEvents*c.Delivery.Concurrency, 2*readItems), 1<<14)
}
