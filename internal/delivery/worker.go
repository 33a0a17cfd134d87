package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Worker delivers one sink's queue. Make it with New, give it a goroutine with
// Run, once. Status and Resume may be called from any goroutine at any time.
type Worker struct {
	cfg     Config
	started atomic.Bool
	resume  chan struct{} // holds at most one wish
	skips   chan skipRequest
	ended   chan struct{} // closed when the engine takes no more requests
	closed  chan struct{} // see Closed
	left    bool          // of Run: a Write was left behind

	mu       sync.Mutex
	status   Status    // guarded by mu
	failures *failures // guarded by mu; of the last Run
	metrics  *metrics  // set by Run before anybody uses it
}

// New returns a worker that does nothing yet.
func New(cfg Config) *Worker {
	cfg.setDefaults()
	return &Worker{
		cfg:    cfg,
		resume: make(chan struct{}, 1),
		skips:  make(chan skipRequest),
		ended:  make(chan struct{}),
		closed: make(chan struct{}),
		status: Status{Name: cfg.Name, State: Stopped, Since: time.Now()},
	}
}

// Resume has the sink tried now, whatever it waits for.
func (w *Worker) Resume() {
	select {
	case w.resume <- struct{}{}:
	default: // one is under way
	}
}

// Run opens the sink and delivers until ctx is done. It then stops reading,
// gives writes in flight DrainTimeout to finish, cancels what is left, closes
// the sink and returns nil; what was not accepted stays in the queue.
//
// An error means that the store failed, or that Run was called twice or the
// metrics cannot be registered. Failures of the sink are never a reason to
// return: they are in the status, the metrics and the log. A Write or a Close
// that does not return though its context is done for CloseTimeout is logged
// and left behind, with its goroutine; see [Worker.Closed].
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

// Closed is closed when Run has returned and no Write of the sink is in progress.
// Until then nobody else may deliver the queue: a Write that was left behind could
// put an older event after a newer one of its object.
func (w *Worker) Closed() <-chan struct{} { return w.closed }

func (w *Worker) lastStatus() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// deliver is Run from the opening of the sink to its closing.
func (w *Worker) deliver(ctx context.Context) error {
	log := newJournal(w.cfg.Logger)
	sink := w.open(ctx, log)
	if sink == nil {
		return nil
	}
	defer close(w.ended)
	e := newEngine(&w.cfg, sink, w.metrics, log, newNote(w.cfg.Queue, w.cfg.Fingerprint))
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
//  1. the reader, so that nothing new comes in;
//  2. writes in flight: they may finish, are then cancelled, and are accounted
//     for, so that what was accepted is acknowledged;
//  3. the lanes, which have nothing left to write;
//  4. the sink, which no Write uses any more.
func (w *Worker) run(ctx context.Context, e *engine) error {
	// Writes outlive ctx for as long as draining may take.
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
