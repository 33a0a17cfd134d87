package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Worker delivers one sink's queue. Call Run once; the other methods may be called from
// any goroutine at any time.
type Worker struct {
	cfg     Config
	started atomic.Bool
	resume  chan struct{} // holds at most one request
	pause   chan struct{} // the same

	onRequest atomic.Bool // Pause holds
	skips     chan skipRequest
	ended     chan struct{} // closed when the engine takes no more requests
	closed    chan struct{} // see Closed
	left      bool          // used by Run only; a Write was abandoned

	mu       sync.Mutex
	status   Status    // guarded by mu
	failures *failures // guarded by mu; of the last Run
	metrics  *metrics  // set by Run before its first use
}

// New returns a worker. Run starts it.
func New(cfg Config) *Worker {
	cfg.setDefaults()
	w := &Worker{
		cfg:    cfg,
		resume: make(chan struct{}, 1),
		pause:  make(chan struct{}, 1),
		skips:  make(chan skipRequest),
		ended:  make(chan struct{}),
		closed: make(chan struct{}),
		status: Status{Name: cfg.Name, State: Stopped, Since: time.Now()},
	}
	w.onRequest.Store(cfg.Paused)
	return w
}

// Resume ends a Pause and forces an attempt now.
func (w *Worker) Resume() {
	w.request(false)
	w.Retry()
}

// Retry forces an attempt now, unless Pause holds.
func (w *Worker) Retry() {
	select {
	case w.resume <- struct{}{}:
	default: // one is pending
	}
}

// Run opens the sink and delivers until ctx is done. It then stops reading, gives writes
// in flight DrainTimeout to finish, cancels the rest, closes the sink and returns nil.
// Events that were not accepted stay in the queue.
//
// An error means that the store failed, that Run was called twice, or that the metrics
// cannot be registered. Failures of the sink do not end Run: they are in the status, the
// metrics and the log. A Write or Close that does not return within CloseTimeout of its
// cancellation is logged and abandoned, with its goroutine; see [Worker.Closed].
func (w *Worker) Run(ctx context.Context) (err error) {
	if !w.started.CompareAndSwap(false, true) {
		return errors.New("delivery: Run was called before")
	}
	defer func() {
		if !w.left {
			close(w.closed)
		}
	}()
	m, err := newMetrics(&w.cfg)
	if err != nil {
		return fmt.Errorf("delivery: register the metrics of sink %s: %w", w.cfg.Name, err)
	}
	defer m.group.Close()
	w.mu.Lock()
	w.metrics = m
	set(m.onRequest, w.onRequest.Load())
	w.mu.Unlock()
	defer func() {
		s := w.lastStatus()
		s.State, s.NextAttempt, s.InFlight, s.Blocked, s.Stalled = Stopped, time.Time{}, 0, 0, false
		if err != nil {
			s.Reason = excerpt(err)
		}
		w.publish(s)
	}()
	if err := w.deliver(ctx); err != nil {
		return fmt.Errorf("delivery to sink %s: %w", w.cfg.Name, err)
	}
	return nil
}

// Closed is closed when Run has returned and no Write of the sink is in progress. Until
// then no other worker may deliver the queue: an abandoned Write could deliver an older
// event after a newer one of its object.
func (w *Worker) Closed() <-chan struct{} { return w.closed }

func (w *Worker) lastStatus() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *Worker) deliver(ctx context.Context) error {
	log := newJournal(w.cfg.Logger)
	sink := w.open(ctx, log)
	if sink == nil {
		return nil
	}
	defer close(w.ended)
	e := newEngine(&w.cfg, &w.onRequest, sink, w.metrics, log, newNote(w.cfg.Queue, w.cfg.Fingerprint))
	w.mu.Lock()
	w.failures = e.failures
	w.mu.Unlock()
	if err := e.restore(time.Now()); err != nil {
		e.close(ctx)
		return err
	}
	return w.run(ctx, e)
}

// run starts the lanes and the reader, and ends them in this order:
//
//  1. the reader, so that no events are added;
//  2. writes in flight: they may finish, are then cancelled, and are settled, so that
//     accepted events are acknowledged;
//  3. the lanes, which are idle;
//  4. the sink, which no Write uses.
func (w *Worker) run(ctx context.Context, e *engine) error {
	// Writes outlive ctx while they drain.
	writing, cancelWrites := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWrites()
	var lanes sync.WaitGroup
	for _, l := range e.lanes {
		lanes.Go(func() { e.writeAll(writing, l) })
	}
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	chunks := make(chan chunk)
	var reader sync.WaitGroup
	reader.Go(func() { read(reading, e.cfg.Queue, chunks) })

	err := e.loop(ctx, w, chunks)

	stopReading()
	reader.Wait()
	err = e.drain(w, cancelWrites, err)
	for _, l := range e.lanes {
		close(l.work)
	}
	if e.inFlight > 0 {
		e.log.Error("writes did not return after they were cancelled; the sink stays open until they do", "writes", e.inFlight)
		w.left = true
		go func() { // the next worker of the sink waits for it
			lanes.Wait()
			e.close(ctx)
			close(w.closed)
		}()
		return err
	}
	lanes.Wait()
	e.close(ctx)
	return err
}
