package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Config are the settings of a [Worker]. The zero value of an optional field means its
// default.
type Config struct {
	Name  string // the sink's name, in status and metrics
	Queue Queue

	// Open makes the sink. Run calls it, again after a failure, and never while a
	// sink it made is open. The worker closes the sink.
	Open func(ctx context.Context) (sinks.Sink, error)

	// Previous is Closed of the last worker of this queue: the sink is opened after
	// it. nil: there is none.
	Previous <-chan struct{}

	// Decode makes the event of an item; an error makes the item a dead letter. It is
	// called from one goroutine at a time, also again for one item, and may keep the
	// payload.
	Decode func(item store.Item) (*event.Event, error)
	// Render sets the body of a decoded event, which is not shared: as the sink's `body`
	// asks for. Not send: the event leaves the queue without. An error makes it a dead
	// letter. nil: events are sent encoded. It is called from one goroutine at a time, and
	// again for a copy that was cut.
	Render func(ev *event.Event) (send bool, err error)
	// Decoding changes with the results of Decode: unwritten events are then decoded
	// again. nil: it never does.
	Decoding func() uint64
	// Hidden changes when Decode hides more than before. Earlier texts of errors may
	// quote it, and are withheld. nil: it never does.
	Hidden func() uint64

	// Fingerprint identifies the configuration of the sink. A schedule of retries
	// from another one is dropped, so that a changed sink is tried at once. Optional.
	Fingerprint string

	Format   sinks.Format   // for the size of events; default sinks.CloudEvents
	Delivery sinks.Delivery // batching and lanes; zero fields mean 1, 1 MiB, no wait, 1
	Retry    Retry
	Rate     Rate     // default no bound
	Oversize Oversize // default OversizeDeadLetter

	Heartbeat Heartbeat // default none

	// Hold returns nil when a write may begin, or the context's error; with a context that is done it does not wait. A write
	// that is under way when none may begin is cancelled. nil: at any time.
	Hold func(context.Context) error

	Paused bool // begin as after [Worker.Pause]

	DrainTimeout time.Duration // bounds writes in flight after Run's ctx is done; default 10 s
	CloseTimeout time.Duration // bounds cancelled writes and Close; default 5 s

	Logger     *slog.Logger          // optional; carries the sink's name
	Registerer prometheus.Registerer // optional
}

// Retry is the schedule of retries.
type Retry struct {
	Initial time.Duration // largest delay after a first failure; default 500 ms
	Max     time.Duration // largest delay after any failure; default 5 min

	// PoisonAttempts is the number of refusals after which an event becomes a dead
	// letter; default 3. Refusals of a whole batch do not count.
	PoisonAttempts int

	// A paused sink is probed after 2 s, then after four times the last delay, up to about
	// ProbeInterval (default 5 min).
	ProbeInterval time.Duration
}

const (
	maxAsked   = 5 * time.Minute // caps the delay that a receiver asks for
	firstProbe = 2 * time.Second // of a paused sink
)

// Oversize is the policy for an event larger than the sink's limit.
type Oversize string

// The policies. OversizeTruncate marks the event as truncated and removes oldObject, then
// patch, then the object except its metadata, then the object, then the summary, then owner and
// involvedObject, until the event fits; one that never fits becomes a dead letter.
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
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
}

func (r *Retry) setDefaults() {
	setDefault(&r.Initial, 500*time.Millisecond)
	setDefault(&r.Max, 5*time.Minute)
	r.Max = max(r.Max, r.Initial)
	setDefault(&r.PoisonAttempts, 3)
	setDefault(&r.ProbeInterval, 5*time.Minute)
}

// setDefault replaces a zero or negative value.
func setDefault[T int | time.Duration | sinks.Format | Oversize](v *T, def T) {
	var zero T
	if *v <= zero {
		*v = def
	}
}

// The bounds of reading ahead. Decoded events of at most two batches a lane come on top.
const (
	readAheadBytes = 4 << 20 // of payloads in memory
	readBytes      = 1 << 20 // of payloads in one Read
	readItems      = 512     // items in one Read
	maxSetAside    = 1 << 16 // positions of events behind failing objects
	fetchItems     = 1 << 11 // of those, events read again and not yet written
)

// delay returns the wait after the attempt-th failure in a row, counted from 1: a random
// share of a ceiling that doubles from Initial to Max, at least half of Initial.
func (r *Retry) delay(attempt int) time.Duration {
	ceiling := r.Initial
	for ; attempt > 1 && ceiling < r.Max; attempt-- {
		if ceiling > r.Max/2 {
			ceiling = r.Max
			break
		}
		ceiling *= 2
	}
	floor := r.Initial / 2
	return floor + rand.N(max(ceiling-floor, 1))
}

// asked returns the delay that a receiver asked for, capped, with some jitter for other
// senders with the same answer.
func asked(d time.Duration) time.Duration {
	d = min(d, maxAsked)
	return d + rand.N(max(d/10, 1))
}

// probe returns the wait of a paused sink before its n-th probe, counted from 1: four
// times the last wait, up to about ProbeInterval. A cause that passes, such as a
// roll-out, is noticed soon.
func (r *Retry) probe(n int) time.Duration {
	d := firstProbe
	for ; n > 1 && d < r.ProbeInterval; n-- {
		d = min(d, r.ProbeInterval/4) * 4
	}
	if d < r.ProbeInterval {
		return d
	}
	return r.spread()
}

func (r *Retry) spread() time.Duration {
	d := r.ProbeInterval / 5
	return r.ProbeInterval - d + rand.N(max(2*d, 1))
}

// longest returns the longest delay after any failure. A longer one in a note comes
// from a wrong clock.
func (r *Retry) longest() time.Duration {
	return max(r.Max, maxAsked+maxAsked/10)
}
