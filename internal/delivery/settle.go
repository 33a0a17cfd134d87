package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// verdict sums up the outcome of a write. It ignores events that follow a failed one of
// their object.
type verdict struct {
	accepted, refused int
	failed            []failed      // neither accepted nor refused
	retryErr          error         // of the first of them to retry
	pauseErr          error         // of the first of them that asks the sink to pause
	after             time.Duration // longest delay asked for
	refuseErr         error         // of the first refused event
	haltErr           error         // pauses the sink for any outcome of the events
	whole             bool          // one error for all events
}

// failed is the failure of one event of a batch.
type failed struct {
	index int
	class sinks.Class
	after time.Duration // the delay asked for
	err   error
}

func (e *engine) settle(b *batch, now time.Time) error {
	if b.beat {
		e.settleBeat(b)
		return nil
	}
	l := b.lane
	l.busy = false
	e.inFlight--
	e.inFlightEvents -= len(b.entries)
	e.circuit.end(b.ticket)
	e.metrics.written(b)

	named, whole := reasons(b)
	e.meetPanic(whole)
	if class, _ := sinks.Classify(whole); class == sinks.ClassPoison && len(b.entries) > 1 && !e.cancelled {
		e.bisect(b, whole, now)
		return nil
	}
	v, err := e.judge(b, named, whole, now)
	if err != nil || e.cancelled {
		return err // the rest stays in the store's queue
	}
	e.conclude(b, &v, now)
	e.putBack(b, now)
	return nil
}

// reasons returns the errors of failed events by index, or one error for all. A
// BatchError with an invalid index, or joined with others, is an error for all.
func reasons(b *batch) (failed map[int]error, whole error) {
	if b.err == nil {
		return nil, nil
	}
	named := batchError(b.err)
	if named == nil {
		return nil, b.err
	}
	for i := range named.Failed {
		if i < 0 || i >= len(b.entries) {
			return nil, fmt.Errorf("the sink reported event %d of a batch of %d: %s", i, len(b.entries), b.err.Error())
		}
	}
	return named.Failed, nil
}

// batchError returns the BatchError that err is or wraps alone; nil: there is none. Of several errors the others
// may concern the events that it does not name.
func batchError(err error) *sinks.BatchError {
	for ; err != nil; err = errors.Unwrap(err) {
		if named, ok := err.(*sinks.BatchError); ok { //nolint:errorlint // errors.As looks into joined errors
			return named
		}
	}
	return nil
}

// failure returns the error of the i-th event; nil: it was accepted.
func failure(i int, failed map[int]error, whole error) error {
	if whole != nil {
		return whole
	}
	err, named := failed[i]
	if named && err == nil {
		return errors.New("the sink gave no reason")
	}
	return err
}

// judge settles the accepted and refused events of the batch, and collects those to
// retry.
//
// After a failed event the object's later ones count as not written, even if the sink
// accepted them: they are repeated after it, and leave the receiver with the latest
// state.
func (e *engine) judge(b *batch, named map[int]error, whole error, now time.Time) (verdict, error) {
	v := verdict{whole: whole != nil, failed: e.retries[:0]}
	clear(e.failing)
	if len(named) == len(b.entries) && !e.cancelled {
		e.foresee(b, named)
	}
	for i, en := range b.entries {
		if _, behind := e.failing[en.item.Lane]; behind {
			continue
		}
		err := failure(i, named, whole)
		if err == nil {
			v.accepted++
			e.accept(b, i)
			continue
		}
		e.failing[en.item.Lane] = struct{}{}
		if e.cancelled {
			continue // a cancelled write is not a failure
		}
		class, after := sinks.Classify(err)
		if class == sinks.ClassPoison || class == sinks.ClassPause && e.blamed(b, i, v.whole) {
			if err := e.refuse(b, i, err, &v, now); err != nil {
				return v, err
			}
			continue
		}
		v.failed = append(v.failed, failed{i, class, after, err})
		v.after = max(v.after, after)
		switch {
		case class == sinks.ClassPause && v.pauseErr == nil:
			v.pauseErr = err
		case class == sinks.ClassRetry && v.retryErr == nil:
			v.retryErr = err
		}
	}
	e.retries = v.failed
	return v, nil
}

// blamed reports whether an error of [sinks.ClassPause] concerns the i-th event alone: the
// event failed before, others were accepted since, and the sink flows. It then counts as
// a refusal.
func (e *engine) blamed(b *batch, i int, whole bool) bool {
	if whole && len(b.entries) > 1 {
		return false
	}
	o := b.object(i)
	return e.circuit.phase == flowing && o != nil && o.suspect(e.fruitful)
}

// conclude applies the outcome of the write to the whole sink.
func (e *engine) conclude(b *batch, v *verdict, now time.Time) {
	e.metrics.failed(v)
	if v.accepted > 0 {
		e.fruitful = max(e.fruitful, b.number)
		e.fruitless, e.retryHold = 0, time.Time{}
		e.panics = 0
		clear(e.refused)
		clear(e.heard)
		e.lastSuccess = now
		b.lane.grow(b.from, e.cfg.Delivery.MaxEvents)
	}
	// A failure is the whole sink's unless others were accepted, in this write or since
	// an earlier failure of the events.
	sinkWide := len(v.failed) > 0 && v.accepted == 0 && !e.suspects(b, v.failed)
	e.keep(b, v, sinkWide, now)

	if v.haltErr == nil {
		v.haltErr = e.tripped()
	}
	switch {
	case v.haltErr != nil:
		e.pause(b.ticket, now, v.haltErr, true)
	case sinkWide && v.pauseErr != nil:
		e.pause(b.ticket, now, v.pauseErr, false)
	case sinkWide:
		e.fail(b.ticket, now, v.after, v.retryErr)
	case v.accepted+v.refused > 0:
		if outage := e.circuit.answered(b.ticket, now, e.cfg.Delivery.MaxEvents); outage > 0 {
			e.log.Info("the sink answers again", "after", outage.Round(time.Millisecond))
			e.note.urgent = true
		}
	case len(v.failed) > 0:
		e.strike(now)
	}
}

// keep schedules retries of events that failed on their own. putBack requeues all others.
func (e *engine) keep(b *batch, v *verdict, sinkWide bool, now time.Time) {
	// A single event is detached even when the failure may be the whole sink's: the
	// next probe then has another object, and shows which it is.
	if len(v.failed) == 0 || sinkWide && len(b.entries) > 1 {
		return
	}
	failedAt := e.sent
	if v.accepted > 0 {
		failedAt = b.number - 1 // others of its batch were accepted
	}
	for _, f := range v.failed {
		en := b.entries[f.index]
		en.failed(now)
		delay := e.cfg.Retry.delay(en.tries)
		switch {
		case f.class == sinks.ClassPause:
			delay = e.cfg.Retry.delay(1) // the schedule of probes is the sink's
		case f.after > 0:
			delay = asked(f.after)
		}
		e.detach(b, f.index, v.whole, now.Add(delay), failedAt, f.err)
	}
	if !sinkWide {
		err := v.failed[0].err
		e.lastError, e.lastErrorTime = excerpt(err), now
		e.log.repeat("events failed; retrying each later", err)
	}
}

// suspects reports whether all these events failed before while others were accepted:
// the cause is then likely the events, not the sink.
func (e *engine) suspects(b *batch, fs []failed) bool {
	for _, f := range fs {
		if o := b.object(f.index); o == nil || !o.suspect(e.fruitful) {
			return false
		}
	}
	return true
}
