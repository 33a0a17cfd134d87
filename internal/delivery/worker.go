package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Worker delivers one sink's queue. Call Run once; the other methods may be called from
// any goroutine at any time.
type Worker struct {
	cfg     Config
	started atomic.Bool
	resume  chan struct{} // holds at most one request
	pause   chan struct{} // the same

	onRequest atomic.Bool // Pause holds
	open      atomic.Bool // the sink was opened; requests reach the engine, or ended is closed
	skips     chan skipRequest
	ended     chan struct{} // closed when the engine takes no more requests
	closed    chan struct{} // see Closed
	left      bool          // used by Run only; an Open or a Write was abandoned

	mu       sync.Mutex
	status   Status    // guarded by mu
	failures *failures // guarded by mu; of the last Run
	metrics  *metrics  // guarded by mu for others than Run, which sets it
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
// metrics and the log. An Open, Write, Limits or Close that does not return within CloseTimeout of its
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

// Closed is closed when Run has returned and no Open, Write or Limits of the sink is in progress. Until
// then no other worker may deliver the queue: an abandoned Write could deliver an older
// event after a newer one of its object.
func (w *Worker) Closed() <-chan struct{} { return w.closed }

func (w *Worker) lastStatus() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *Worker) deliver(ctx context.Context) error {
	log := newLimitedLogger(w.cfg.Logger)
	sink := w.openSink(ctx, log)
	if sink == nil {
		return nil
	}
	w.open.Store(true)
	defer close(w.ended)
	e := newEngine(&w.cfg, &w.onRequest, sink, w.metrics, log, newNote(w.cfg.Queue, w.cfg.Fingerprint))
	w.mu.Lock()
	w.failures = e.failures
	w.mu.Unlock()
	if err := e.restore(time.Now()); err != nil {
		w.cfg.close(ctx, e.sink)
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
	if e.limiter != nil {
		lanes.Go(e.limiter.answerAll)
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
	if answered := e.limiter.end(e.cfg.CloseTimeout); e.inFlight > 0 || !answered {
		e.log.Error("calls of the sink did not return after they were cancelled; it stays open until they do", "writes", e.inFlight, "limits", !answered)
		w.left = true
		go func() { // the next worker of the sink waits for it
			lanes.Wait()
			w.cfg.close(ctx, e.sink)
			close(w.closed)
		}()
		return err
	}
	lanes.Wait()
	w.cfg.close(ctx, e.sink)
	return err
}

// openSink opens the sink, with retries on the schedule of a failing or paused sink. It
// returns nil when ctx is done first.
func (w *Worker) openSink(ctx context.Context, log *limitedLogger) sinks.Sink {
	w.publish(Status{State: Opening})
	if !w.follow(ctx, log) {
		return nil
	}
	c := circuit{retry: &w.cfg.Retry}
	for {
		sink, err := w.openOnce(ctx, log)
		if err == nil {
			if c.attempts > 0 {
				log.Info("the sink is open", "attempts", c.attempts+1)
			}
			return sink
		}
		if ctx.Err() != nil {
			return nil
		}
		w.metrics.errors.WithLabelValues(classOpen).Inc()
		err = fmt.Errorf("open the sink: %w", err)
		now := time.Now()
		class, after := sinks.Classify(err)
		switch {
		case class == sinks.ClassPause && c.pause(c.start(), now, excerpt(err)):
			log.paused(err, c.until.Sub(now))
		case class != sinks.ClassPause && c.fail(c.start(), now, after, excerpt(err)):
			log.backingOff(err, c.until.Sub(now))
		default:
			log.repeat("the sink still cannot be opened", err)
		}
		if !w.retryOpen(ctx, &c, Status{LastError: excerpt(err), LastErrorTime: now, hidden: w.cfg.hiddenNow()}) {
			return nil
		}
	}
}

// retryOpen waits for the next attempt to open the sink: while Pause holds, for Resume.
// It returns false if ctx is done first.
func (w *Worker) retryOpen(ctx context.Context, c *circuit, s Status) bool {
	timer := time.NewTimer(time.Until(c.until))
	defer timer.Stop()
	for {
		due := timer.C
		s.State, s.Reason, s.Attempts, s.NextAttempt = c.phase.state(), c.reason, c.attempts, c.until
		if w.onRequest.Load() {
			due = nil
			s.State, s.Reason, s.Attempts, s.NextAttempt = Paused, reasonOnRequest, 0, time.Time{}
		}
		w.publish(s)
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-w.pause:
		case <-w.resume:
			if !w.onRequest.Load() {
				return true
			}
		}
	}
}

// follow waits for the last worker's writes; false if ctx is done first.
func (w *Worker) follow(ctx context.Context, log *limitedLogger) bool {
	if w.cfg.Previous == nil {
		return true
	}
	select {
	case <-w.cfg.Previous:
		return true
	default:
	}
	const reason = "a write of the sink's last configuration has not returned"
	log.Warn("the sink waits until a write of its last configuration returns")
	w.publish(Status{State: Opening, Reason: reason})
	select {
	case <-w.cfg.Previous:
		return true
	case <-ctx.Done():
		return false
	}
}

// openOnce opens the sink. An Open that does not return within CloseTimeout of the end of ctx is abandoned: a sink
// that it returns later is closed.
func (w *Worker) openOnce(ctx context.Context, log *limitedLogger) (sinks.Sink, error) {
	var sink sinks.Sink
	done := make(chan error, 1)
	go func() { done <- w.callOpen(ctx, &sink) }()
	select {
	case err := <-done:
		return sink, err
	case <-ctx.Done():
	}
	timer := time.NewTimer(w.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return sink, err
	case <-timer.C:
	}
	log.Error("the sink is still being opened after that was cancelled; the next worker waits until that has ended")
	w.left = true
	go func() {
		if <-done == nil {
			w.cfg.close(ctx, sink)
		}
		close(w.closed)
	}()
	return nil, ctx.Err()
}

func (w *Worker) callOpen(ctx context.Context, sink *sinks.Sink) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: debug.Stack(), hash: stackHash()}
		}
	}()
	if *sink, err = w.cfg.Open(ctx); err == nil && *sink == nil {
		err = errors.New("no sink and no error")
	}
	lookAt(err)
	return err
}

// close closes a sink within CloseTimeout and a second.
func (c *Config) close(ctx context.Context, sink sinks.Sink) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.CloseTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- &panicError{value: v, stack: debug.Stack(), hash: stackHash()}
			}
		}()
		done <- sink.Close(ctx)
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		// A cancelled Close has a moment to return its error.
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		select {
		case err = <-done:
		case <-timer.C:
			err = errors.New("it did not return and was abandoned")
		}
	}
	if err != nil {
		c.Logger.Warn("closing the sink", "error", err)
	}
}
