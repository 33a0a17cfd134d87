package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// verdict sums up what a write did to its events. Of an event that follows a
// failed one of its object it knows nothing.
type verdict struct {
	accepted, refused int
	retry             []int         // indices of events that failed for the time being
	retryErr          error         // why the first of them did
	after             time.Duration // longest delay asked for
	refuseErr         error         // why the first refused event was
	pauseErr          error         // why the sink has to pause
	whole             bool          // one error for all events: the sink named none
}

// settle takes in a batch that came back.
func (e *engine) settle(b *batch, now time.Time) error {
	l := b.lane
	l.busy = false
	e.inFlight--
	e.inFlightEvents -= len(b.entries)
	e.circuit.end(b.ticket)
	e.metrics.written(b)

	failed, whole := failures(b)
	e.meetPanic(whole)
	if class, _ := sinks.Classify(whole); class == sinks.ClassPoison && len(b.entries) > 1 && !e.cancelled {
		e.bisect(b, whole, now)
		return nil
	}
	v, err := e.judge(b, failed, whole, now)
	if err != nil || e.cancelled {
		return err // what is left stays in the queue of the outbox
	}
	e.conclude(b, &v, now)
	e.putBack(b, now)
	return nil
}

// failures returns why each event failed, by index, or the one reason for all.
// A BatchError that names events which were not there cannot be believed about
// the others either.
func failures(b *batch) (failed map[int]error, whole error) {
	if b.err == nil {
		return nil, nil
	}
	named, ok := errors.AsType[*sinks.BatchError](b.err)
	if !ok {
		return nil, b.err
	}
	for i := range named.Failed {
		if i < 0 || i >= len(b.entries) {
			return nil, fmt.Errorf("the sink reported event %d of a batch of %d: %s", i, len(b.entries), b.err.Error())
		}
	}
	return named.Failed, nil
}

// failure is why the i-th event failed; nil: it was accepted.
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

// judge deals with every event of the batch that is accepted or refused, and
// collects those to be tried again.
//
// After a failed event the object's later ones count as not written, whatever the
// sink says of them: written again after it, they leave the receiver with the
// latest state even if it has had them before.
func (e *engine) judge(b *batch, failed map[int]error, whole error, now time.Time) (verdict, error) {
	v := verdict{whole: whole != nil, retry: e.retries[:0]}
	clear(e.failing)
	for i, en := range b.entries {
		if _, behind := e.failing[en.item.Lane]; behind {
			continue
		}
		err := failure(i, failed, whole)
		if err == nil {
			v.accepted++
			e.accept(b, i)
			continue
		}
		e.failing[en.item.Lane] = struct{}{}
		if e.cancelled {
			continue // told to give up: what it did not get done is no failure
		}
		switch class, after := sinks.Classify(err); class {
		case sinks.ClassPoison:
			v.refused++
			if v.refuseErr == nil {
				v.refuseErr = err
			}
			if err := e.refuse(b, i, err, v.whole, now); err != nil {
				return v, err
			}
		case sinks.ClassPause:
			if v.pauseErr == nil {
				v.pauseErr = err
			}
		default:
			v.retry = append(v.retry, i)
			v.after = max(v.after, after)
			if v.retryErr == nil {
				v.retryErr = err
			}
		}
	}
	e.retries = v.retry
	return v, nil
}

// conclude decides what the write means for the sink as a whole.
func (e *engine) conclude(b *batch, v *verdict, now time.Time) {
	e.metrics.failed(v)
	if v.accepted > 0 {
		e.fruitful++
		e.fruitless, e.retryHold, e.panics = 0, time.Time{}, 0
		e.lastSuccess = now
		b.lane.grow(e.cfg.Delivery.MaxEvents)
	}
	sinkWide := len(v.retry) > 0 && (v.after > 0 || v.accepted == 0 && !e.suspects(b, v.retry))
	e.keep(b, v, sinkWide, now)

	pauseErr := v.pauseErr
	if pauseErr == nil {
		pauseErr = e.tripped()
	}
	switch {
	case sinkWide:
		e.fail(b.ticket, now, v.after, v.retryErr)
	case pauseErr == nil && v.accepted+v.refused > 0:
		if e.circuit.answered(b.ticket, now, e.cfg.Delivery.MaxEvents) {
			e.log.recovered()
			e.note.urgent = true
		}
	case len(v.retry) > 0:
		e.strike(now)
	}
	if pauseErr != nil {
		e.pause(b.ticket, now, pauseErr)
	}
}

// keep has events that failed on their own wait for a retry of their own. All
// others go back to where they were.
func (e *engine) keep(b *batch, v *verdict, sinkWide bool, now time.Time) {
	// An event that fails on its own is set aside even when its failure may be
	// the whole sink's: the next probe is then of another object, and tells.
	alone := len(b.entries) == 1 && v.after == 0
	if len(v.retry) == 0 || sinkWide && !alone {
		return
	}
	failedAt := e.fruitful
	if v.accepted > 0 {
		failedAt-- // others of its batch were accepted: that tells enough
	}
	for _, i := range v.retry {
		en := b.entries[i]
		en.failed(now)
		e.detach(b, i, v.whole, now, en.tries, failedAt)
	}
	if !sinkWide {
		e.lastError, e.lastErrorTime = excerpt(v.retryErr), now
		e.log.repeat("events failed and wait for a retry of their own", v.retryErr)
	}
}

// suspects reports whether all these events failed before while others were
// accepted: then it is likely them and not the sink.
func (e *engine) suspects(b *batch, indices []int) bool {
	for _, i := range indices {
		if o := b.object(i); o == nil || !o.suspect(e.fruitful) {
			return false
		}
	}
	return true
}
