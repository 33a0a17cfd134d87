package delivery

import (
	"errors"
	"fmt"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// strikes is how many fruitless retries of detached objects in a row make
// further ones wait, as the failures of a whole sink do.
const strikes = 8

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

// failure is why the i-th event failed; not failed: it was accepted.
func failure(i int, failed map[int]error, whole error) (err error, isFailed bool) {
	if whole != nil {
		return whole, true
	}
	err, isFailed = failed[i]
	if isFailed && err == nil {
		err = errors.New("the sink gave no reason")
	}
	return err, isFailed
}

func (e *engine) acceptRest(b *batch, failed map[int]error, whole error, now time.Time) error {
	for i := range b.entries {
		if _, isFailed := failure(i, failed, whole); !isFailed {
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
		err, isFailed := failure(i, failed, whole)
		if !isFailed {
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

// conclude decides what the failures mean for the sink as a whole.
func (e *engine) conclude(b *batch, v *verdict, now time.Time) {
	e.metrics.failed(v)
	if v.accepted > 0 {
		e.fruitful++
		e.fruitless, e.retryHold, e.panics = 0, time.Time{}, 0
		e.lastSuccess = now
		b.lane.grow(e.cfg.Delivery.MaxEvents)
	}
	sinkWide := len(v.retry) > 0 && (v.after > 0 || v.accepted == 0 && !e.suspects(b, v.retry, now))
	if !sinkWide && v.pauseErr == nil && e.tripped() == nil && v.accepted+v.refused > 0 {
		if e.circuit.answered(b.ticket, now, e.cfg.Delivery.MaxEvents) {
			e.log.recovered()
			e.note.urgent = true
		}
	}

	// An event that fails on its own is set aside even when its failure may be
	// the whole sink's: the next probe is then of another object, and tells.
	alone := len(b.entries) == 1 && v.after == 0
	if sinkWide && !alone {
		v.held = append(v.held, v.retry...)
	} else {
		failedAt := e.fruitful
		if v.accepted > 0 {
			failedAt-- // others of its batch were accepted: that tells enough
		}
		for _, i := range v.retry {
			en := b.entries[i]
			en.failed(now)
			e.detach(b, i, v.whole, now, en.tries, failedAt)
		}
	}
	e.putBack(b, v.held, now)

	if sinkWide {
		e.fail(b.ticket, now, v.after, v.retryErr)
	} else if len(v.retry) > 0 {
		e.log.repeat("events failed and wait for a retry of their own", v.retryErr)
		e.lastError, e.lastErrorTime = excerpt(v.retryErr), now
	}
	if v.pauseErr == nil {
		v.pauseErr = e.tripped()
	}
	if v.pauseErr != nil {
		e.pause(b.ticket, now, v.pauseErr)
	}
}

// suspects reports whether these events, none of a batch accepted, failed
// before while others were accepted: then it is likely them and not the sink.
// Even so, many such failures in a row slow down the retries.
func (e *engine) suspects(b *batch, indices []int, now time.Time) bool {
	for _, i := range indices {
		o := b.object(i)
		if o == nil || !o.suspect(e.fruitful) {
			return false
		}
	}
	if e.fruitless++; e.fruitless >= strikes {
		e.retryHold = now.Add(e.cfg.Retry.delay(e.fruitless - strikes + 1))
	}
	return true
}

// accept records that the sink has the i-th event.
func (e *engine) accept(b *batch, i int, now time.Time) {
	en := b.entries[i]
	e.acks = append(e.acks, en.item.Position)
	e.metrics.delivered(en.event.Type)
	e.delivered++
	e.note.forget(en)
	if o := b.object(i); o != nil {
		b.lane.detached.done(o, now)
	}
	e.release(en)
}

// refuse counts the sink's refusal of the i-th event, and sets it aside for
// another try or for good.
func (e *engine) refuse(b *batch, i int, cause error, whole bool, now time.Time) error {
	en := b.entries[i]
	isPanic := isPanic(cause)
	if isPanic && en.refusals == 0 {
		e.panics++
	}
	if isPanic && e.tripped() != nil {
		e.detach(b, i, whole, now, 1, e.fruitful) // the sink is at fault, not its events
		return nil
	}
	en.failed(now)
	en.refusals++
	e.lastError, e.lastErrorTime = excerpt(cause), now
	if en.refusals < e.cfg.Retry.PoisonAttempts {
		e.detach(b, i, whole, now, en.refusals, e.fruitful)
		e.log.repeat("an event was refused and will be tried again", cause)
		return nil
	}
	reason := letterRefused
	if isPanic {
		reason = letterPanic
	}
	o := b.object(i)
	if err := e.deadLetter(en, reason, cause); err != nil {
		return err
	}
	if o != nil {
		b.lane.detached.done(o, now)
	}
	return nil
}

// detach lets the i-th event of a batch wait for a try of its own, and its
// object's later events behind it. attempt counts its failures.
func (e *engine) detach(b *batch, i int, alone bool, now time.Time, attempt int, failedAt int64) {
	en := b.entries[i]
	e.setAside(en)
	due := now.Add(e.cfg.Retry.delay(attempt))
	if o := b.object(i); o != nil {
		if !o.suspect(e.fruitful) {
			o.failedAt = failedAt
		}
		o.alone = alone
		b.lane.detached.wait(o, due)
	} else {
		b.lane.detached.add(en, due, alone, failedAt)
	}
	e.metrics.retries.Inc()
	e.note.remember(en, due, alone)
}

// putBack returns events to where they were taken from, to go first.
func (e *engine) putBack(b *batch, indices []int, now time.Time) {
	e.metrics.retries.Add(float64(len(indices)))
	if len(b.objects) > 0 {
		for _, i := range indices {
			b.lane.detached.wait(b.objects[i], now)
		}
		return
	}
	back := e.back[:0]
	for _, i := range indices {
		back = append(back, b.entries[i])
	}
	b.lane.pending.unshift(back)
	clear(back)
	e.back = back[:0]
}

// bisect puts a batch back that was refused as a whole, to be tried in halves
// until the refused events stand alone.
func (e *engine) bisect(b *batch, cause error, now time.Time) {
	e.metrics.errors.WithLabelValues(errorClass(cause)).Inc()
	e.lastError, e.lastErrorTime = excerpt(cause), now
	b.lane.cut = len(b.entries) / 2
	all := e.helds[:0]
	for i := range b.entries {
		all = append(all, i)
	}
	e.putBack(b, all, now)
	e.helds = all
	e.log.repeat("a batch was refused, looking for the event", cause)
}

// grow doubles the size of batches again after a search for a refused event.
func (l *lane) grow(full int) {
	if l.cut *= 2; l.cut >= full {
		l.cut = 0
	}
}

// fail and pause tell the circuit and whoever watches.

func (e *engine) fail(t ticket, now time.Time, after time.Duration, cause error) {
	changed := e.circuit.fail(t, now, after, excerpt(cause))
	e.lastError, e.lastErrorTime = excerpt(cause), now
	e.note.urgent = true
	if changed {
		e.log.backingOff(cause, e.circuit.until.Sub(now))
		return
	}
	e.log.repeat("the sink still fails", cause)
}

func (e *engine) pause(t ticket, now time.Time, cause error) {
	changed := e.circuit.pause(t, now, excerpt(cause))
	e.lastError, e.lastErrorTime = excerpt(cause), now
	e.note.urgent = true
	if changed {
		e.log.paused(cause, e.circuit.until.Sub(now))
		return
	}
	e.log.repeat("the sink is still paused", cause)
}
