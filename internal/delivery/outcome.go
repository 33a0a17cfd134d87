package delivery

import (
	"slices"
	"time"
)

// strikes is how many retries of detached objects in a row, with nothing
// accepted in between, make further ones wait: as often as not it is the sink
// after all.
const strikes = 8

// strike counts a fruitless retry of detached objects.
func (e *engine) strike(now time.Time) {
	if e.fruitless++; e.fruitless >= strikes {
		e.retryHold = now.Add(e.cfg.Retry.delay(e.fruitless - strikes + 1))
	}
}

// accept records that the sink has the i-th event.
func (e *engine) accept(b *batch, i int) {
	en := b.entries[i]
	e.acks = append(e.acks, en.item.Position)
	e.metrics.delivered(en.event.Type)
	e.delivered++
	e.note.forget(en)
	e.release(en)
	b.leave(i)
}

// refuse counts the sink's refusal of the i-th event, and sets it aside for
// another try or for good.
func (e *engine) refuse(b *batch, i int, cause error, whole bool, now time.Time) error {
	en := b.entries[i]
	isPanic := isPanic(cause)
	if isPanic && en.refusals == 0 {
		e.panics++
	}
	if isPanic && e.broken() {
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
	if err := e.deadLetter(en, reason, cause); err != nil {
		return err
	}
	b.leave(i)
	return nil
}

// detach lets the i-th event of a batch wait for a try of its own, and its
// object's later events behind it. attempt counts its failures.
func (e *engine) detach(b *batch, i int, alone bool, now time.Time, attempt int, failedAt int64) {
	en := b.entries[i]
	due := now.Add(e.cfg.Retry.delay(attempt))
	if o := b.object(i); o != nil {
		if !o.suspect(e.fruitful) {
			o.failedAt = failedAt
		}
		o.alone, o.due = alone, due
	} else {
		e.setAside(en)
		b.lane.detached.add(en, due, alone, failedAt)
		b.entries[i] = nil
		e.metrics.retries.Inc()
	}
	e.note.remember(en, due, alone)
}

// putBack returns what is left of a batch to where it was taken from, to go
// first. What follows a detached event of its object is found to do so there.
func (e *engine) putBack(b *batch, now time.Time) {
	if len(b.objects) > 0 {
		e.putBackObjects(b, now)
		return
	}
	back := e.back[:0]
	for _, en := range b.entries {
		if en == nil {
			continue
		}
		e.metrics.retries.Inc()
		back = append(back, en)
	}
	b.lane.pending.unshift(back...)
	clear(back)
	e.back = back[:0]
}

func (e *engine) putBackObjects(b *batch, now time.Time) {
	for i, en := range slices.Backward(b.entries) {
		o := b.objects[i]
		if en != nil {
			e.metrics.retries.Inc()
			e.setAside(en)
			o.queue.unshift(en)
		}
		if i == 0 || b.objects[i-1] != o {
			if o.due.Before(now) {
				o.due = now
			}
			b.lane.detached.back(o)
		}
	}
}

// bisect puts a batch back that was refused as a whole, to be tried in halves
// until the refused events stand alone.
func (e *engine) bisect(b *batch, cause error, now time.Time) {
	e.metrics.errors.WithLabelValues(errorClass(cause)).Inc()
	e.lastError, e.lastErrorTime = excerpt(cause), now
	b.lane.cut = len(b.entries) / 2
	e.putBack(b, now)
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
	e.log.repeat(stillFails, cause)
}

func (e *engine) pause(t ticket, now time.Time, cause error) {
	changed := e.circuit.pause(t, now, excerpt(cause))
	e.lastError, e.lastErrorTime = excerpt(cause), now
	e.note.urgent = true
	if changed {
		e.log.paused(cause, e.circuit.until.Sub(now))
		return
	}
	e.log.repeat(stillPaused, cause)
}
