package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

type sink struct {
	config   Config
	name     string
	dir      string
	format   sinks.Format
	topic    topic
	log      *slog.Logger
	metrics  *metrics
	closing  *solo.Runner
	reading  *solo.Runner
	turn     chan struct{} // holds a token while a Write has records in the client
	warnings wire.Warnings
	sent     post.Sent

	clientMu sync.Mutex // guards what follows
	client   *kgo.Client
	closed   bool
	leaving  sync.WaitGroup // clients that drop closes

	mu     sync.Mutex // guards what follows
	topics map[string]*topicState
}

const (
	// maxWaits bounds one Write: it takes at most this many times the timeout.
	maxWaits = 3

	// idle is how long a connection without requests lives; brokers end it after ten minutes.
	idle = 5 * time.Minute

	// requestRetries is how often a request about a topic is sent again within the timeout.
	requestRetries = 2

	// metadataAge is the least time between two questions for the leaders of partitions.
	metadataAge = 250 * time.Millisecond

	// grace is how long a cancelled Write waits for the client to give its records back.
	grace = time.Second
)

var (
	_ sinks.Sink    = (*sink)(nil)
	_ sinks.Limited = (*sink)(nil)
)

// Limits are those of the topic if the sink writes to one and has looked at it, less what key and headers take. Of several, each refuses what is
// too large for it: others may take it.
func (s *sink) Limits() sinks.Limits {
	const headers = 4 << 10
	limit := int(s.config.MaxMessageBytes)
	if name := s.topic.Sample(""); name == s.topic.Sample("x") {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.checkedLocked(name) {
			limit = s.topics[name].limit
		}
	}
	return sinks.Limits{MaxEventBytes: max(limit-headers, 1), MaxBatch: maxBuffered / 16}
}

// Write writes the batch and waits until the brokers have acknowledged it.
func (s *sink) Write(ctx context.Context, batch []*event.Event) (err error) {
	defer func() { err = s.hide(err) }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, maxWaits*s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	if !s.connected() {
		if err := s.readable(); err != nil {
			return err
		}
	}
	c, err := s.producer()
	if err != nil {
		return err
	}
	w := &write{caller: caller, sink: s, client: c, batch: batch, records: s.records(batch)}
	w.run(ctx)
	if w.failed.Any() && barren(ctx, c) {
		s.drop(c)
	}
	return w.failed.Err()
}

// connected reports whether the client was made, for which every secret had to be readable.
func (s *sink) connected() bool {
	s.clientMu.Lock()
	defer s.clientMu.Unlock()
	return s.client != nil
}

// write is one batch in flight.
type write struct {
	caller  context.Context //nolint:containedctx // of Write
	sink    *sink
	client  *kgo.Client
	batch   []*event.Event
	records []kgo.Record

	failed  halves.Failures
	topics  map[string]error  // what check returned
	limits  map[string]int    // of the topics that can be written to
	indexes map[string]*index // of the topics whose state was asked for
}

// run takes the batch to its end. What is not in failed is accepted then.
//
// Nothing overtakes an earlier event of its object, even if brokers lose the state of the producer: the
// events go out in chunks, each at most one record batch for a partition, and a chunk only when the
// one before it is settled. Writes take turns, as the client flushes for all of them.
func (w *write) run(ctx context.Context) {
	due := w.due(ctx)
	select {
	case w.sink.turn <- struct{}{}:
		defer func() { <-w.sink.turn }()
	case <-ctx.Done():
		for _, i := range due {
			w.fail(i, w.sink.classify(ctx, fmt.Errorf("wait for another write: %w", ctx.Err())))
		}
		return
	}
	for len(due) > 0 {
		var chunk []int
		chunk, due = w.chunk(ctx, due)
		for _, i := range w.produce(ctx, chunk) {
			// A broker refuses a record batch for one of its records, or for their sum: each goes alone now.
			if !w.skip(i) {
				w.produce(ctx, []int{i})
			}
		}
	}
}

// chunk takes events that fit into one record batch, and leaves out those whose object had a failure.
func (w *write) chunk(ctx context.Context, due []int) (chunk, rest []int) {
	size := 0
	for at, i := range due {
		if w.skip(i) {
			continue
		}
		r := &w.records[i]
		if err := w.usable(ctx, r.Topic); err != nil { // it failed in an earlier chunk
			w.fail(i, err)
			continue
		}
		size += sizeOf(r)
		if len(chunk) > 0 && size > w.limits[r.Topic] {
			return chunk, due[at:]
		}
		chunk = append(chunk, i)
	}
	return chunk, nil
}

// due returns the events to write, and settles the others.
func (w *write) due(ctx context.Context) []int {
	w.topics, w.limits, w.indexes = map[string]error{}, map[string]int{}, map[string]*index{}
	due := make([]int, 0, len(w.batch))
	latest := map[string]uint64{} // sequence that the batch writes in mode state, by key: the topic does not have it yet
	for i, e := range w.batch {
		r := &w.records[i]
		if w.sink.config.Mode == State && e.Type == event.Gap {
			w.sink.metrics.gaps.Inc()
			continue
		}
		if err := w.usable(ctx, r.Topic); err != nil {
			w.fail(i, err)
			continue
		}
		if w.skip(i) {
			continue
		}
		if err := checkSize(r, w.limits[r.Topic]); err != nil {
			w.fail(i, err)
			continue
		}
		if w.sink.config.Mode == State && e.Replay {
			old := e.Sequence < latest[string(r.Key)]
			if !old {
				var err error
				if old, err = w.superseded(ctx, r, e.Sequence); err != nil {
					w.fail(i, err)
					continue
				}
			}
			if old {
				w.sink.metrics.superseded.Inc()
				w.sink.log.Debug("event not written: the topic has a later state of its object", "topic", r.Topic, "event", e.ID)
				continue
			}
		}
		if w.sink.config.Mode == State {
			latest[string(r.Key)] = max(latest[string(r.Key)], e.Sequence)
		}
		due = append(due, i)
	}
	return due
}

// usable reports why a topic cannot be written to. It asks once a Write.
func (w *write) usable(ctx context.Context, topic string) error {
	if _, ok := w.limits[topic]; ok {
		return nil
	}
	err, known := w.topics[topic]
	if !known {
		w.sink.mu.Lock()
		known = w.sink.checkedLocked(topic)
		w.sink.mu.Unlock()
		if !known {
			err = w.sink.check(ctx, w.client, topic)
		}
		w.topics[topic] = err
	}
	if err == nil {
		w.sink.mu.Lock()
		defer w.sink.mu.Unlock()
		w.limits[topic] = w.sink.topicLocked(topic).limit
	}
	return err
}

func (w *write) fail(i int, err error) { w.failed.Add(i, string(w.records[i].Key), err) }

func (w *write) skip(i int) bool {
	return w.failed.Any() && w.failed.Hold(i, string(w.records[i].Key))
}

// produce writes the events and waits for all acknowledgements. It returns those that a
// broker refused together with others; every other failure is recorded.
func (w *write) produce(ctx context.Context, due []int) (refused []int) {
	if len(due) == 0 {
		return nil
	}
	// Write's context may look for its end only when it is asked, which one made of it is not.
	if err := w.caller.Err(); err != nil {
		for _, i := range due {
			w.fail(i, w.sink.classify(w.caller, fmt.Errorf("write to topic %s: %w", w.records[i].Topic, err))) //nolint:contextcheck // ctx is made of it
		}
		return nil
	}
	f := &flight{left: len(due), errs: make([]error, len(due)), landed: make(chan struct{})}
	for at, i := range due {
		w.client.Produce(ctx, &w.records[i], func(_ *kgo.Record, err error) { f.land(at, err) })
	}
	flush, flushed := context.WithCancel(ctx)
	var flusher sync.WaitGroup
	flusher.Go(func() { _ = w.client.Flush(flush) }) // the records have the errors
	errs := f.wait(ctx)
	flushed()
	flusher.Wait()
	alone := len(due) == 1
	for at, i := range due {
		err := errs[at]
		if err == nil {
			w.written(i)
			continue
		}
		topic := w.records[i].Topic
		err = w.sink.classify(ctx, fmt.Errorf("write to topic %s: %w", topic, err))
		if class, _ := sinks.Classify(err); class == sinks.ClassPoison && !alone {
			refused = append(refused, i)
			continue
		}
		w.fail(i, w.explain(ctx, topic, err))
	}
	return refused
}

// explain looks at the topic of a failed record once a Write: the reason why it cannot be written
// to shows better there. Where the topic is in order, the failure stays as it is.
func (w *write) explain(ctx context.Context, topic string, err error) error {
	if class, _ := sinks.Classify(err); class == sinks.ClassPoison {
		return err
	}
	if _, done := w.limits[topic]; done {
		delete(w.limits, topic)
		delete(w.topics, topic)
		w.sink.mu.Lock()
		w.sink.topicLocked(topic).looked = time.Time{}
		w.sink.mu.Unlock()
		if class, _ := sinks.Classify(err); ctx.Err() == nil && class == sinks.ClassRetry {
			reason := w.sink.check(ctx, w.client, topic)
			w.topics[topic] = reason
			if reason == nil && errors.Is(err, errTopicGone) {
				w.sink.drop(w.client) // it knows another topic of that name
			}
		}
	}
	if reason := w.topics[topic]; reason != nil {
		return reason
	}
	return err
}

// written notes the sequence of an event where the state of its topic is known.
func (w *write) written(i int) {
	if w.sink.config.Mode != State {
		return
	}
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	if t := w.sink.topics[w.records[i].Topic]; t != nil && t.index != nil {
		t.index.add(w.records[i].Key, w.batch[i].Sequence)
	}
}

// flight waits for the records of one call of produce.
type flight struct {
	landed chan struct{} // closed when none is left

	mu   sync.Mutex // guards what follows
	left int
	errs []error
	over bool
}

// errInFlight is the failure of a record whose fate is not known.
var errInFlight = errors.New("not acknowledged")

// land takes the client's answer for a record, in the client's goroutine.
func (f *flight) land(at int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.errs[at] = err
	if err == nil {
		f.errs[at] = errAcknowledged
	}
	if f.left--; f.left == 0 {
		close(f.landed)
	}
}

// errTopicGone is the failure of a record whose topic was there when it was looked at.
var errTopicGone = errors.New("the topic or its partition is not there")

// errAcknowledged stands for success while others are in flight.
var errAcknowledged = errors.New("acknowledged")

// wait returns an error for each record, nil for one that is acknowledged.
func (f *flight) wait(ctx context.Context) []error {
	select {
	case <-f.landed:
	case <-ctx.Done():
		// The client gives back what is cancelled, in flight too.
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-f.landed:
		case <-late.C:
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for at, err := range f.errs {
		switch {
		case err == errAcknowledged: //nolint:errorlint // identity is meant
			f.errs[at] = nil
		case err == nil:
			f.errs[at] = fmt.Errorf("%w: %w", errInFlight, context.Cause(ctx))
		case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries):
			f.errs[at] = fmt.Errorf("%w: %w", wire.ErrNoAnswer, err)
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
			f.errs[at] = errTopicGone
		}
	}
	return f.errs
}

func (s *sink) Close(ctx context.Context) error {
	s.clientMu.Lock()
	c := s.client
	s.client, s.closed = nil, true
	s.clientMu.Unlock()
	err := s.closing.Last(ctx, func() error {
		if c != nil {
			c.Close()
		}
		s.leaving.Wait()
		return nil
	})
	if err != nil {
		return fmt.Errorf("close Kafka sink: %w", err)
	}
	return nil
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	connections prometheus.Gauge
	disconnects prometheus.Counter
	superseded  prometheus.Counter
	gaps        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "kafka")
	m := &metrics{
		connections: r.Gauge("connections", "Open connections to brokers."),
		disconnects: r.Counter("disconnects_total", "Connections to brokers that ended."),
		superseded:  r.Counter("superseded_total", "Events that mode state did not write, since the topic has a later state of their object."),
		gaps:        r.Counter("gaps_skipped_total", "Gap records, which mode state does not write."),
	}
	return m, r.Err()
}
