package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient"
)

type sink struct {
	config  Config
	name    string
	dir     string
	format  sinks.Format
	subject subject
	stream  *JetStream // nil for core NATS
	log     *slog.Logger
	metrics *metrics
	sent    natsclient.Sent

	connecting *solo.Runner
	current    atomic.Pointer[session] // nil before the first connection
	seen       atomic.Bool             // the stream has been there
	warnings   wire.Warnings
	unclear    atomic.Int64 // Unix nanoseconds: events observed until then may have been published before
}

// maxWaits bounds one Write: it takes at most this many times the timeout.
const maxWaits = 3

var (
	_ sinks.Sink    = (*sink)(nil)
	_ sinks.Limited = (*sink)(nil)
)

// Limits are the server's and the stream's, less what headers take.
func (s *sink) Limits() sinks.Limits {
	const headers = 2 << 10
	limits := sinks.Limits{MaxBatch: maxPending / 4}
	c := s.current.Load()
	if c == nil {
		return limits
	}
	size := c.payload.Load()
	if own := c.limit.Load(); own != nil && !own.old() {
		size = min(size, own.bytes)
	}
	if size > 0 {
		limits.MaxEventBytes = int(max(size-headers, 1))
	}
	return limits
}

// Write publishes the batch and waits until the stream, or the server, has it.
func (s *sink) Write(ctx context.Context, batch []*event.Event) (err error) {
	defer func() { err = s.sent.Error(err) }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Everything that asks the connection may have to wait for its lock.
	caller := ctx
	known := s.current.Load()
	if known != nil {
		stop := known.line.CutWhen(caller)
		defer stop()
	}
	ctx, cancelWaits := context.WithTimeoutCause(ctx, maxWaits*s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancelWaits()
	c, err := s.session(ctx)
	if err != nil {
		return err
	}
	if c != known {
		stop := c.line.CutWhen(caller)
		defer stop()
	}
	if s.stream != nil {
		if err := s.check(ctx, c); err != nil {
			return err
		}
	}
	hearing, cancel := c.alarm.hear(ctx)
	defer cancel()
	p := &publication{caller: caller, sink: s, session: c, batch: batch, messages: s.messages(batch)}
	p.keys = make([]string, len(batch))
	for i, e := range batch {
		p.keys[i] = e.PartitionKey()
	}
	if s.stream == nil {
		err = p.core(hearing)
	} else {
		err = p.stream(hearing)
	}
	if err != nil {
		c.checked.Store(false)
		s.unclear.Store(time.Now().UnixNano())
	}
	return err
}

// publication is one batch in flight.
type publication struct {
	caller   context.Context //nolint:containedctx // of Write
	sink     *sink
	session  *session
	batch    []*event.Event
	messages []*client.Msg
	keys     []string // of the events' objects

	failed halves.Failures

	asked     bool  // about the stream, by explain
	streamErr error // the answer
}

// stream publishes in rounds, each with at most one event of an object: while
// one is under way no later one is, so that none can overtake it by its failure.
func (p *publication) stream(ctx context.Context) error {
	waiting := make([]int, len(p.batch))
	for i := range waiting {
		waiting[i] = i
	}
	for len(waiting) > 0 {
		round, later := p.failed.Round(waiting, p.keys)
		if err := p.round(ctx, round); err != nil {
			// Not the fault of single events: the rest would fail too.
			for _, i := range later {
				p.failed.Set(i, sinks.Held(err))
			}
			return p.failed.Err()
		}
		waiting = later
	}
	return p.failed.Err()
}

// round publishes events of different objects together and waits for all
// acknowledgements. It returns an error that makes continuing pointless; every
// failure is recorded.
func (p *publication) round(ctx context.Context, indexes []int) (stop error) {
	futures := make(map[int]jetstream.PubAckFuture, len(indexes))
	for _, i := range indexes {
		// Write's context may look for its end only when it is asked, which one made of it is not.
		for _, c := range []context.Context{p.caller, ctx} {
			if stop == nil && c.Err() != nil {
				stop = context.Cause(c) //nolint:contextcheck // ctx is made of the caller's
			}
		}
		if stop != nil {
			p.failed.Add(i, p.keys[i], sinks.Held(stop))
			continue
		}
		future, err := p.publish(i)
		if err != nil {
			p.failed.Add(i, p.keys[i], err)
			stop = severe(err)
			continue
		}
		futures[i] = future
	}
	for _, i := range indexes {
		future := futures[i]
		if future == nil {
			continue
		}
		err := p.wait(ctx, i, future)
		if err == nil {
			continue
		}
		p.failed.Add(i, p.keys[i], err)
		if stop == nil {
			stop = severe(err)
		}
	}
	return stop
}

// severe returns err unless it blames the one event alone.
func severe(err error) error {
	if class, _ := sinks.Classify(err); class == sinks.ClassPoison {
		return nil
	}
	return err
}

func (p *publication) publish(i int) (jetstream.PubAckFuture, error) {
	m := p.messages[i]
	if err := checkMessage(m); err != nil {
		return nil, err
	}
	future, err := p.session.js.PublishMsgAsync(m)
	if err != nil {
		return nil, classify(fmt.Errorf("publish to %s: %w", m.Subject, err))
	}
	return future, nil
}

// wait returns when the stream has acknowledged the message of the i-th event or
// will not.
func (p *publication) wait(ctx context.Context, i int, future jetstream.PubAckFuture) error {
	subject := future.Msg().Subject
	select {
	case ack := <-future.Ok():
		if ack.Stream != p.sink.stream.Stream {
			return p.explain(ctx, subject, fmt.Errorf("publish to %s: it is stream %.100q that acknowledges", subject, ack.Stream))
		}
		if ack.Duplicate {
			p.sink.duplicate(p.batch[i], subject)
		}
		return nil
	case err := <-future.Err():
		err = fmt.Errorf("publish to %s: %w", subject, err)
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			return p.explain(ctx, subject, err)
		}
		return classify(err)
	case <-ctx.Done():
		return fmt.Errorf("publish to %s: %w", subject, context.Cause(ctx))
	}
}

// duplicate counts an event that the stream had stored already. After a restart and
// after a failed Write that is a redelivery. Of an event that was observed later,
// something else has published the same delivery.
func (s *sink) duplicate(e *event.Event, subject string) {
	s.metrics.duplicates.Inc()
	if e.Replay || e.Time.UnixNano() <= s.unclear.Load() {
		return
	}
	s.metrics.unexpected.Inc()
	s.warnings.Once("", "the stream had stored an event that this sink had not published; another installation uses the same sink name and subject: rename the sink",
		"stream", s.stream.Stream, "subject", subject, "event", e.ID)
}

// core publishes everything and asks the server for a sign of life, which it
// gives after it has processed what came before.
func (p *publication) core(ctx context.Context) error {
	conn := p.session.conn
	reconnects, before := conn.Stats().Reconnects, conn.LastError()
	for i, m := range p.messages {
		if p.failed.Hold(i, p.keys[i]) {
			continue
		}
		err := checkMessage(m)
		if err == nil {
			err = conn.PublishMsg(m)
		}
		if err == nil {
			continue
		}
		err = classify(fmt.Errorf("publish to %s: %w", m.Subject, err))
		if severe(err) != nil {
			return err // nothing of the batch is known to have arrived
		}
		p.failed.Add(i, p.keys[i], err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.sink.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	if err := conn.FlushWithContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return classify(fmt.Errorf("publish: %w", err))
	}
	// A refusal was read before the sign of life, and is recognized by the error's
	// identity; a new connection has nothing of what was written to the old one.
	if err := conn.LastError(); err != before && errors.Is(err, client.ErrPermissionViolation) { //nolint:errorlint // identity is meant
		return classify(fmt.Errorf("publish: %w", err))
	}
	if conn.Stats().Reconnects != reconnects {
		return fmt.Errorf("publish: %w", client.ErrDisconnected)
	}
	return p.failed.Err()
}

func (s *sink) Close(ctx context.Context) error {
	err := s.connecting.Last(ctx, func() error {
		c := s.current.Load()
		if c == nil {
			return nil
		}
		// This ends the JetStream publisher too; cleaning that up by itself leaks its
		// goroutine when it has only just been started.
		stop := c.line.CutWhen(ctx)
		defer stop()
		c.conn.Close()
		s.metrics.connected.Set(0)
		select {
		case <-c.closed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return fmt.Errorf("close NATS sink: %w", err)
	}
	return nil
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	connected   prometheus.Gauge
	disconnects prometheus.Counter
	duplicates  prometheus.Counter
	unexpected  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "nats")
	m := &metrics{
		connected:   r.Gauge("connected", "Whether the sink is connected to a server."),
		disconnects: r.Counter("disconnects_total", "Connections that were lost."),
		duplicates:  r.Counter("duplicates_total", "Events that the stream had stored already."),
		unexpected:  r.Counter("unexpected_duplicates_total", "Events that the stream had stored already although this sink had not published them before."),
	}
	return m, r.Err()
}
