package delivery

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// verdict sums up what a write did to its events.
type verdict struct {
	accepted, refused int
	retry             []int         // indices of events that failed for the time being
	retryErr          error         // why the first of them did
	after             time.Duration // longest delay asked for
	refuseErr         error         // why the first refused event was
	pauseErr          error         // why the sink has to pause
	held              []int         // indices of events that wait for the sink as a whole
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
	if e.cancelled {
		// The write was told to give up: what it did not get done is no failure.
		// It stays in the queue, which is all there is to put back.
		return e.acceptRest(b, failed, whole, now)
	}
	if whole != nil {
		if class, _ := sinks.Classify(whole); class == sinks.ClassPoison && len(b.entries) > 1 {
			e.bisect(b, whole, now)
			return nil
		}
	}
	v, err := e.judge(b, failed, whole, now)
	if err != nil {
		return err
	}
	e.conclude(b, &v, now)
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

func (e *engine) acceptRest(b *batch, failed map[int]error, whole error, now time.Time) error {
	for i := range b.entries {
		if failure(i, failed, whole) == nil {
			e.accept(b, i, now)
		}
	}
	return nil
}

// judge deals with every event of the batch that is accepted or refused, and
// collects the others.
func (e *engine) judge(b *batch, failed map[int]error, whole error, now time.Time) (verdict, error) {
	v := verdict{whole: whole != nil, retry: e.retries[:0], held: e.helds[:0]}
	for i := range b.entries {
		err := failure(i, failed, whole)
		if err == nil {
			v.accepted++
			e.accept(b, i, now)
			continue
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
			v.held = append(v.held, i)
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
	e.retries, e.helds = v.retry, v.held
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

// keep puts events that were neither accepted nor refused where they wait for
// another write.
func (e *engine) keep(b *batch, v *verdict, sinkWide bool, now time.Time) {
	// An event that fails on its own is set aside even when its failure may be
	// the whole sink's: the next probe is then of another object, and tells.
	alone := len(b.entries) == 1 && v.after == 0
	if sinkWide && !alone {
		v.held = append(v.held, v.retry...)
		slices.Sort(v.held)
		e.putBack(b, v.held, now)
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
	if len(v.retry) > 0 && !sinkWide {
		e.lastError, e.lastErrorTime = excerpt(v.retryErr), now
		e.log.repeat("events failed and wait for a retry of their own", v.retryErr)
	}
	e.putBack(b, v.held, now)
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
