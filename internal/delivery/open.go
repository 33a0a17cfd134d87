package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// open opens the sink, with retries on the schedule of a failing or paused sink. It
// returns nil when ctx is done first.
func (w *Worker) open(ctx context.Context, log *journal) sinks.Sink {
	w.publish(Status{State: Opening})
	if !w.follow(ctx, log) {
		return nil
	}
	c := circuit{retry: &w.cfg.Retry}
	for {
		sink, err := w.openOnce(ctx)
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
func (w *Worker) follow(ctx context.Context, log *journal) bool {
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

// openOnce calls Open. A panic becomes an error.
func (w *Worker) openOnce(ctx context.Context) (sink sinks.Sink, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: debug.Stack(), hash: stackHash()}
		}
	}()
	sink, err = w.cfg.Open(ctx)
	if err == nil && sink == nil {
		err = errors.New("no sink and no error")
	}
	return sink, err
}

// close closes the sink within CloseTimeout and a second.
func (e *engine) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.CloseTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- &panicError{value: v, stack: debug.Stack(), hash: stackHash()}
			}
		}()
		done <- e.sink.Close(ctx)
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
		e.log.Warn("closing the sink", "error", err)
	}
}
