package delivery

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// engine is one Run of a worker with an open sink. All of it belongs to the goroutine of
// run; lanes only write and the reader only reads. A write is in flight from send to
// settle.
type engine struct {
	cfg     *Config
	sink    sinks.Sink
	limiter *limiter     // nil: the sink has no limits
	limits  sinks.Limits // its last answer
	metrics *metrics
	log     *limitedLogger
	note    *note

	circuit  circuit
	rate     rate
	nextBeat time.Time // when a heartbeat is due
	// onRequest is the worker's.
	onRequest *atomic.Bool
	lanes     []*lane
	turn      int
	results   chan *batch // buffered for all lanes, so that no lane waits

	held      int               // entries with a payload or an event in memory
	heldBytes int               // of their payloads
	away      map[uint64]*entry // by position: entries held as positions
	spare     []*entry

	fetched      int // entries read again and not yet written
	fetchedBytes int
	span         int // items in the next read of such entries

	inFlight       int // writes
	inFlightEvents int
	cancelled      bool // the context of writes is cancelled

	acks      []uint64  // accepted and not yet acknowledged
	sent      int64     // writes
	fruitful  int64     // number of the last write with an accepted event
	fruitless int       // retries in a row without an acceptance
	retryHold time.Time // failing objects wait until then

	// Since the last acceptance:
	panics  int                 // events that panicked
	refused map[uint64]struct{} // lanes of objects with a refused event
	heard   map[uint64]struct{} // the same, and those that panicked

	refusedErr error // of the last of them

	stacks   map[string]struct{}
	failures *failures

	hidden        uint64 // Config.Hidden when texts were last withheld
	lastError     string
	lastErrorTime time.Time
	lastSuccess   time.Time
	delivered     uint64
	deadLetters   uint64

	scratch []byte              // for measuring
	retries []failed            // for judge
	failing map[uint64]struct{} // lanes with a failed event in the batch being settled
	back    []*entry            // for putBack
}

func newEngine(cfg *Config, onRequest *atomic.Bool, sink sinks.Sink, m *metrics, log *limitedLogger, n *note) *engine {
	e := &engine{
		cfg: cfg, sink: sink, metrics: m, log: log, note: n,
		circuit: circuit{retry: &cfg.Retry, since: time.Now()},
		rate:    rate{Rate: cfg.Rate}, onRequest: onRequest,
		lanes:   make([]*lane, cfg.Delivery.Concurrency),
		results: make(chan *batch, cfg.Delivery.Concurrency),
		stacks:  map[string]struct{}{},
		failing: map[uint64]struct{}{},
		refused: map[uint64]struct{}{},
		heard:   map[uint64]struct{}{},
		away:    map[uint64]*entry{},
		span:    1,

		failures: &failures{byLane: map[uint64]*Failure{}},
	}
	if limited, ok := sink.(sinks.Limited); ok {
		e.limiter = newLimiter(limited)
	}
	e.hidden = cfg.hiddenNow()
	for i := range e.lanes {
		e.lanes[i] = newLane()
	}
	return e
}

// loop runs until ctx is done (nil) or the store fails.
func (e *engine) loop(ctx context.Context, w *Worker, chunks <-chan chunk) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		e.withhold()
		if err := e.step(ctx, now); err != nil {
			return err
		}
		w.publish(e.status(now))

		timer.Stop()
		if wake, ok := e.wake(); ok {
			timer.Reset(max(wake.Sub(now), 0))
		}
		more := chunks
		if e.full() {
			more = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case c := <-more:
			if c.err != nil {
				return c.err
			}
			e.admit(c.items, time.Now())
		case b := <-e.results:
			if err := e.settleAll(b); err != nil {
				return err
			}
		case <-w.pause:
		case <-w.resume:
			e.force(time.Now())
		case r := <-w.skips:
			e.withhold() // the reason of the letter
			r.answer(e.skip(r.sequence, time.Now()))
		case <-timer.C:
		}
	}
	return nil
}

// step does all work that is due. New batches are sent before the last ones are
// acknowledged, to keep the sink busy.
func (e *engine) step(ctx context.Context, now time.Time) error {
	e.beat(now)
	if !e.onRequest.Load() {
		if err := e.dispatch(ctx, now); err != nil {
			return err
		}
	}
	if err := e.acknowledge(); err != nil {
		return err
	}
	if e.circuit.phase == flowing {
		for _, l := range e.lanes {
			if l.busy {
				e.decodeAhead(l, e.cfg.Delivery.MaxEvents)
			}
		}
	}
	return e.note.flush(now, &e.circuit)
}

func (e *engine) settleAll(b *batch) error {
	now := time.Now()
	for {
		hidden := b.hidden
		if err := e.settle(b, now); err != nil {
			return err
		}
		e.hidden = min(e.hidden, hidden) // an answer to an older write is withheld too
		select {
		case b = <-e.results:
		default:
			return nil
		}
	}
}

func (e *engine) acknowledge() error {
	if len(e.acks) == 0 {
		return nil
	}
	if err := e.cfg.Queue.Ack(e.acks...); err != nil {
		return fmt.Errorf("acknowledge %d events: %w", len(e.acks), err)
	}
	e.acks = e.acks[:0]
	return nil
}

func (e *engine) full() bool {
	most := min(max(2*e.cfg.Delivery.MaxEvents*e.cfg.Delivery.Concurrency, 2*readItems), 1<<14)
	return e.held >= most || e.heldBytes >= readAheadBytes || e.stalled()
}

// stalled reports whether reading has stopped for the events behind failing objects.
func (e *engine) stalled() bool { return len(e.away) >= maxSetAside }

// admit adds read items to their lanes. Those of detached objects too: the lane may have
// earlier ones of the same object.
func (e *engine) admit(items []store.Item, now time.Time) {
	for i := range items {
		en := e.newEntry()
		en.item, en.arrived = items[i], now
		en.payload, en.held = len(items[i].Payload), true
		e.held++
		e.heldBytes += en.payload
		e.laneOf(en).pending.push(en)
	}
}

func (e *engine) laneOf(en *entry) *lane { return e.lanes[en.item.Lane%uint64(len(e.lanes))] }

func (e *engine) newEntry() *entry {
	if n := len(e.spare); n > 0 {
		en := e.spare[n-1]
		e.spare = e.spare[:n-1]
		return en
	}
	return &entry{}
}

func (e *engine) unhold(en *entry) {
	if en.held {
		en.held = false
		e.held--
		e.heldBytes -= en.payload
	}
}

func (e *engine) release(en *entry) {
	e.unhold(en)
	e.unfetch(en)
	if en.away {
		delete(e.away, en.item.Position)
	}
	*en = entry{}
	if len(e.spare) < readItems {
		e.spare = append(e.spare, en)
	}
}

// wake returns the time of the next step without an event; not ok: there is none.
func (e *engine) wake() (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if t, pending := e.note.due(); pending {
		sooner(t)
	}
	if e.circuit.probing || e.onRequest.Load() {
		return at, ok
	}
	if e.beats() {
		sooner(e.nextBeat)
	}
	worth := 1
	if e.circuit.phase == flowing {
		worth = e.worth()
	}
	next := latest(e.circuit.until, e.rate.next(worth))
	most := e.cfg.Delivery.MaxEvents
	if e.rate.Events > 0 {
		most = min(most, e.rate.Events) // not less, or a batch that waits for more would be due at once, again and again
	}
	for _, l := range e.lanes {
		if l.busy {
			continue
		}
		if t, ready := e.pendingReady(l, e.batchLimit(l, ordinary, most)); ready {
			sooner(latest(t, next))
		}
		if l.detached.free.Len() > 0 {
			sooner(next)
		}
		if l.detached.due.Len() > 0 {
			sooner(latest(l.detached.due.objects[0].due, e.retryHold, next))
		}
	}
	return at, ok
}

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

func (e *engine) force(now time.Time) {
	e.circuit.resume(now)
	e.retryHold, e.fruitless, e.panics = time.Time{}, 0, 0
	for _, l := range e.lanes {
		l.detached.force(now)
	}
}

// askLimits asks the sink for its limits; false if ctx is done before it answers.
func (e *engine) askLimits(ctx context.Context) bool {
	if e.limiter == nil {
		return true
	}
	answer, ok := e.limiter.ask(ctx)
	if answer.err != nil {
		e.log.repeat("the sink panicked in Limits", answer.err)
	}
	e.limits = answer.limits
	return ok
}

// limiter calls Limits of a sink on a goroutine of its own: one that does not return holds up the batches of
// its sink, but not the end of the worker. The engine's goroutine uses it.
type limiter struct {
	sink    sinks.Limited
	asks    chan struct{} // closed by the engine at the end
	answers chan limitsAnswer
	waiting bool // a call has not returned
}

type limitsAnswer struct {
	limits sinks.Limits
	err    error // a panic
}

func newLimiter(sink sinks.Limited) *limiter {
	return &limiter{sink: sink, asks: make(chan struct{}, 1), answers: make(chan limitsAnswer, 1)}
}

// answerAll is the limiter's goroutine.
func (m *limiter) answerAll() {
	for range m.asks {
		m.answers <- m.call()
	}
}

func (m *limiter) call() (a limitsAnswer) {
	defer func() {
		if v := recover(); v != nil {
			a.err = fmt.Errorf("%v", v)
		}
	}()
	a.limits = m.sink.Limits()
	return a
}

func (m *limiter) ask(ctx context.Context) (a limitsAnswer, ok bool) {
	if !m.waiting {
		m.waiting = true
		m.asks <- struct{}{}
	}
	select {
	case a = <-m.answers:
		m.waiting = false
		return a, true
	case <-ctx.Done():
		return a, false
	}
}

// end ends the goroutine, and reports whether a call that is in progress returns in time.
func (m *limiter) end(most time.Duration) bool {
	if m == nil {
		return true
	}
	close(m.asks)
	if !m.waiting {
		return true
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-m.answers:
		return true
	case <-timer.C:
		return false
	}
}
