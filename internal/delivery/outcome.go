package delivery

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// strikes is the number of retries of detached objects in a row without an acceptance
// after which further ones wait: the cause may be the sink.
const strikes = 8

func (e *engine) strike(now time.Time) {
	if e.fruitless++; e.fruitless >= strikes {
		e.retryHold = now.Add(e.cfg.Retry.delay(e.fruitless - strikes + 1))
	}
}

func (e *engine) accept(b *batch, i int) {
	en := b.entries[i]
	e.acks = append(e.acks, en.item.Position)
	e.metrics.delivered(en.event.Type)
	e.delivered++
	e.forget(en)
	b.leave(i)
}

// An entry that leaves the queue leaves the note, the failures and the engine.
func (e *engine) forget(en *entry) {
	e.note.forget(en)
	e.failures.remove(en)
	e.release(en)
}

// refuse counts a refusal of the i-th event, and schedules a retry or makes it a dead
// letter.
func (e *engine) refuse(b *batch, i int, cause error, v *verdict, now time.Time) error {
	v.refused++
	if v.refuseErr == nil {
		v.refuseErr = cause
	}
	en, o := b.entries[i], b.object(i)
	if sinks.IsTooLarge(cause) && e.shrink(en) {
		e.detach(b, i, v.whole, now, e.sent, cause)
		return nil
	}
	suspect := o != nil && o.suspect(e.fruitful)
	if !suspect {
		e.doubt(en, cause)
		if e.tripped() != nil { // the sink is at fault, not its events
			en.met(now)
			e.detach(b, i, v.whole, now.Add(e.cfg.Retry.delay(1)), e.sent, cause)
			return nil //nolint:nilerr // conclude pauses the sink for it
		}
	}
	en.failed(now)
	en.refusals++
	e.lastError, e.lastErrorTime = excerpt(cause), now
	if en.refusals >= e.cfg.Retry.PoisonAttempts && (suspect || e.convicts(en, now)) {
		err := e.deadLetter(en, letterReason(cause), cause)
		if !errors.Is(err, store.ErrDeadLettersFull) {
			b.leave(i)
			return err
		}
		v.haltErr = err
	}
	delay := e.cfg.Retry.delay(en.refusals)
	if class, _ := sinks.Classify(cause); class == sinks.ClassPause {
		delay = e.cfg.Retry.spread() // a fix by an operator takes time
	}
	e.detach(b, i, v.whole, now.Add(delay), e.sent, cause)
	e.log.repeat("an event was refused; retrying later", cause)
	return nil
}

// detach schedules a retry of the i-th event of a batch. The later events of its object
// wait behind it.
func (e *engine) detach(b *batch, i int, alone bool, due time.Time, failedAt int64, cause error) {
	en, behind := b.entries[i], 0
	if o := b.object(i); o != nil {
		behind = o.queue.len()
	}
	e.failures.add(en, due, cause, behind)
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

// putBack requeues the rest of a batch, before all other events. takePending moves those
// behind a detached event of their object.
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

// bisect requeues a batch that was refused as a whole; it is sent in halves until the
// refused events are alone.
func (e *engine) bisect(b *batch, cause error, now time.Time) {
	e.metrics.errors.WithLabelValues(errorClass(cause)).Inc()
	e.lastError, e.lastErrorTime = excerpt(cause), now
	b.lane.cut[b.from] = len(b.entries) / 2
	e.putBack(b, now)
	e.log.repeat("a batch was refused; searching for the event", cause)
}

// grow doubles the size of a source's batches after a search for a refused event. Each source has
// its own: large batches of one are no proof that those of another hold no such event.
func (l *lane) grow(from source, full int) {
	if l.cut[from] *= 2; l.cut[from] >= full {
		l.cut[from] = 0
	}
}

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

// pause pauses the sink. Unless the failure is surely the sink's, another event is tried
// first.
func (e *engine) pause(t ticket, now time.Time, cause error, sure bool) {
	if !sure && e.circuit.phase == flowing {
		e.circuit.fail(t, now, 0, excerpt(cause))
		e.lastError, e.lastErrorTime = excerpt(cause), now
		e.note.urgent = true
		e.log.repeatBy(e.log.Info, "a failure would pause the sink; trying another event first", cause)
		return
	}
	changed := e.circuit.pause(t, now, excerpt(cause))
	if soon := now.Add(refusedProbe); e.refusing() && soon.Before(e.circuit.until) {
		e.circuit.until = soon
	}
	e.lastError, e.lastErrorTime = excerpt(cause), now
	e.note.urgent = true
	if changed {
		e.log.paused(cause, e.circuit.until.Sub(now))
		return
	}
	e.log.repeat(stillPaused, cause)
}

const (
	// panicsInARow is the number of events that may panic, with none accepted in
	// between, before the sink pauses.
	panicsInARow = 3

	// refusedInARow is the same for objects with a refused event.
	refusedInARow = 20

	// refusedProbe is the most between two probes of a sink that refusals pause: each tries another object, and one
	// that is accepted shows that the sink is not at fault.
	refusedProbe = 5 * time.Second

	// doubtTime is how long refused events of several objects are retried, with none
	// accepted in between and no other object to try, before they become dead letters.
	doubtTime = 20 * time.Second
)

// doubt counts a refusal that may be the sink's fault: no event was accepted since this
// one failed first.
func (e *engine) doubt(en *entry, cause error) {
	e.heard[en.item.Lane] = struct{}{}
	if !isPanic(cause) {
		e.refused[en.item.Lane] = struct{}{}
		e.refusedErr = cause
	} else if en.refusals == 0 {
		e.panics++
	}
}

// refusing reports whether refusals pause the sink.
func (e *engine) refusing() bool {
	return e.circuit.phase == paused && len(e.refused) >= refusedInARow
}

// tripped returns the reason to pause after failures in a row, or nil.
func (e *engine) tripped() error {
	switch {
	case e.panics >= panicsInARow:
		return fmt.Errorf("the sink panicked on %d events in a row", panicsInARow)
	case len(e.refused) >= refusedInARow:
		return fmt.Errorf("the receiver refused events of %d objects in a row, the last one with: %w", refusedInARow, e.refusedErr)
	}
	return nil
}

// foresee counts the refusals of a batch without an accepted event, before its events
// are judged. Refusals for size do not count: the event may be truncated.
func (e *engine) foresee(b *batch, named map[int]error) {
	for i, en := range b.entries {
		o, err := b.object(i), failure(i, named, nil)
		if class, _ := sinks.Classify(err); class == sinks.ClassPoison && !sinks.IsTooLarge(err) && (o == nil || !o.suspect(e.fruitful)) {
			e.doubt(en, err)
		}
	}
}

// convicts reports whether a refused event becomes a dead letter although no other was
// accepted since: no other object is left to try, and it is the only one or time is up.
func (e *engine) convicts(en *entry, now time.Time) bool {
	return (len(e.refused) <= 1 || now.Sub(en.first) >= doubtTime) && !e.unheard()
}

// unheard reports whether there is an event of an object without a refusal since the
// last acceptance.
func (e *engine) unheard() bool {
	is := func(lane uint64) bool {
		_, heard := e.heard[lane]
		return !heard
	}
	for _, l := range e.lanes {
		for i := range l.pending.len() {
			if is(l.pending.at(i).item.Lane) {
				return true
			}
		}
		for lane := range l.detached.byLane {
			if is(lane) {
				return true
			}
		}
		if l.busy && slices.ContainsFunc(l.batch.entries, func(en *entry) bool { return is(en.item.Lane) }) {
			return true
		}
	}
	return false
}
