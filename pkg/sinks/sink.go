package sinks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
)

// Sink delivers events to one destination.
type Sink interface {
	// Write delivers the batch, which is never empty, in order. It returns nil
	// only when the destination has durably accepted every event.
	//
	// A *[BatchError], which may be wrapped, names the events that failed; all others were accepted. Any
	// other error, also one that joins a BatchError with others, means that no event is known to be accepted. The error's class
	// ([Classify]) decides what happens next; an error without one is retried.
	//
	// A batch may hold several events of one object (those with one
	// [event.Event.PartitionKey]). When one fails, a sink does not deliver the
	// later ones of its object, and names them too ([Held]). One that cannot help
	// it need not: all of them come again behind the failed one, so that the
	// destination ends with the latest state.
	//
	// Write is called from up to `concurrency` goroutines at once, each with
	// events of other objects. It must return soon after ctx is done; events that
	// were then not accepted come again. It must not keep the slice or the events
	// after returning.
	Write(ctx context.Context, batch []*event.Event) error

	// Close releases everything the sink holds and returns when its goroutines
	// are gone, or with an error when ctx ends first. It is called once, after the
	// last Write has returned.
	Close(ctx context.Context) error
}

// Limits is what a destination can take. The worker never hands Write more.
type Limits struct {
	MaxEventBytes int // largest encoded event in bytes; 0: no limit. A larger one follows the onOversize setting.
	MaxBatch      int // most events in one Write; 0: no limit
}

// Limited is implemented by sinks whose destination has limits. Limits is called
// before each batch, by one goroutine at a time and also during Writes. It returns at once, since
// all batches of the sink wait for it. Its result may change, for instance when a server reports its own.
type Limited interface {
	Limits() Limits
}

// Config is the decoded block of one kind, holding the kind's defaults when it
// comes from [Kinds]. Its fields carry json tags in camelCase.
type Config interface {
	// Validate reports every problem of the block at once, joined, each preferably
	// a *[FieldError] so that the loader can point at the line. It is pure: no
	// file, environment or network access.
	Validate() error

	// Defaults are the delivery settings of the kind where the config has none.
	Defaults() Delivery

	// Open makes the sink. It may read local files and secrets but must not need
	// the destination to be up: that is Write's business. It keeps nothing of the
	// Config that the caller may change, and starts no goroutine that Close
	// doesn't end.
	Open(ctx context.Context, o Options) (Sink, error)
}

// HeartbeatTaker is implemented by the Config of a kind for whose receivers heartbeats are of use:
// events of type [event.Heartbeat] among the others, of the object RESOURCE heartbeats.watcherd.dev and
// named after the sink. Their sequences do not rise while there are no events.
type HeartbeatTaker interface{ TakesHeartbeats() bool }

// Sequential is implemented by the Config of a kind whose sinks rely on batches of one lane: each batch is of events behind
// those of the last one, failed ones apart. A `concurrency` above 1 is a fault of the configuration then.
type Sequential interface{ Sequential() }

// Kinds maps a kind's name, which is its key in the configuration, to a
// constructor of its Config with all defaults set.
type Kinds map[string]func() Config

// Options is what a sink gets in addition to its own Config.
type Options struct {
	Name       string                // the sink's name in the configuration
	Cluster    string                // the cluster's name
	Format     Format                // encoding asked for; a kind that cannot do it fails in Open
	BatchMode  bool                  // the user set batch.maxEvents above 1: batches may go out as one message
	Join       Join                  // nil unless the sink's `body` is made of all events of a message
	Logger     *slog.Logger          // never nil
	Registerer prometheus.Registerer // for the kind's own metrics; never nil; already carries the sink label
	Stdout     io.Writer             // the process's standard output, for kinds that write there
	Dir        string                // folder that relative paths of the config are relative to

	// MaySend, if it is set, returns an error while nothing may be sent: another replica may deliver. The context of a Write ends
	// then, too, but a process that was stopped for long finds that out later than its next system call. Kinds whose
	// receivers do not recognize repeated events ask it at each write to a connection.
	MaySend func() error
}

// Join makes the body of one message for all these events, and its media type. A kind that
// puts several events into one message calls it where it is set; its error is the error
// of the Write, and so is a nil body. Others need not: each event has a body of its own ([event.Event.Body]).
type Join func(events []*event.Event) (body []byte, contentType string, err error)

// Delivery is how events are passed to a sink: the `batch` and `concurrency` of the
// configuration.
type Delivery struct {
	MaxEvents   int           // events in one Write; 0: 1
	MaxBytes    int           // bytes of encoded events in one Write, about; 0: 1 MiB
	MaxWait     time.Duration // how long an incomplete batch waits for more events; 0: not at all
	Concurrency int           // lanes by object; 0: 1
}

// Format is how an event is encoded.
type Format string

// The formats of the `format` key.
const (
	CloudEvents       Format = "cloudevents"        // structured mode, the default
	CloudEventsBinary Format = "cloudevents-binary" // attributes as headers, data as body
	JSON              Format = "json"               // data plus type, id, time, sequence and cluster
)

// Metrics makes and registers the metrics of a kind. One that is registered already
// continues: a sink that is opened again continues its series.
//
// A kind never unregisters. The program deletes the series of a sink that is removed
// or changed.
type Metrics struct {
	reg    prometheus.Registerer
	prefix string
	err    error
}

// NewMetrics returns the metrics of a kind; their names begin with watcherd_<kind>_sink_.
func NewMetrics(reg prometheus.Registerer, kind string) *Metrics {
	return &Metrics{reg: reg, prefix: "watcherd_" + kind + "_sink_"}
}

// Counter registers a counter.
func (m *Metrics) Counter(name, help string) prometheus.Counter {
	return register(m, prometheus.NewCounter(prometheus.CounterOpts{Name: m.prefix + name, Help: help}))
}

// CounterVec registers a counter with a label.
func (m *Metrics) CounterVec(name, help, label string) *prometheus.CounterVec {
	return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, []string{label}))
}

// Gauge registers a gauge.
func (m *Metrics) Gauge(name, help string) prometheus.Gauge {
	return register(m, prometheus.NewGauge(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}))
}

// Err returns every error of the registrations, joined.
func (m *Metrics) Err() error { return m.err }

func register[C prometheus.Collector](m *Metrics, c C) C {
	err := m.reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("register metric: %w", err))
	}
	return c
}
