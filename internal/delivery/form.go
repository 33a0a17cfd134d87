package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

// source is where a lane's events wait. A batch comes from one of them.
type source int

const (
	ordinary source = iota // the lane's own order
	free                   // behind an event that failed and was settled
	due                    // failed, and due for a retry
	sources
)

// dispatch sends a batch on every idle lane that has one, within the circuit's bound.
func (e *engine) dispatch(ctx context.Context, now time.Time) error {
	if e.circuit.phase == flowing {
		return e.dispatchFrom(ctx, now, ordinary, free, due)
	}
	if e.refusing() && e.circuit.attempts%2 != 0 && e.circuit.admit(now) > 0 {
		e.newestFirst()
	}
	// A probe with an event that failed shows less than one with another object's.
	for s := range sources {
		if err := e.dispatchFrom(ctx, now, s); err != nil {
			return err
		}
	}
	return nil
}

// newestFirst makes the next probe one of the object that was read last of those without a refusal since the last
// acceptance: its first event moves to the front of its lane, which is the first in turn. Objects that a receiver
// refuses tend to come together, such as those of one client: what follows them shows sooner that the sink is not at fault.
func (e *engine) newestFirst() {
	var newest *entry
	for i, l := range e.lanes {
		for k := l.pending.len() - 1; k >= 0 && !l.busy; k-- {
			en := l.pending.at(k)
			if newest != nil && en.item.Position < newest.item.Position {
				break
			}
			if _, heard := e.heard[en.item.Lane]; !heard && l.detached.get(en.item.Lane) == nil {
				newest, e.turn = en, i
				break
			}
		}
	}
	if newest == nil {
		return
	}
	pending, first := &e.laneOf(newest).pending, 0
	for pending.at(first).item.Lane != newest.item.Lane {
		first++
	}
	en := pending.at(first)
	pending.remove(first)
	pending.unshift(en)
}

func (e *engine) dispatchFrom(ctx context.Context, now time.Time, from ...source) error {
	for i, first := 0, e.turn; i < len(e.lanes); i++ {
		at := (first + i) % len(e.lanes)
		l := e.lanes[at]
		if l.busy || l.empty() {
			continue
		}
		most := e.circuit.admit(now)
		limit := min(most, e.rate.admit(now))
		if limit < min(most, e.worth()) || limit <= 0 || !e.askLimits(ctx) {
			return nil
		}
		err := e.form(l, now, limit, from)
		if err != nil || len(l.batch.entries) > 0 {
			e.turn = at + 1 // the others come first, so that each gets probes, and its share of the rate
		}
		switch {
		case errors.Is(err, store.ErrDeadLettersFull):
			e.pause(e.circuit.start(), now, err, true)
			e.circuit.probing = false // nothing is in flight
			return nil
		case err != nil:
			return err
		case len(l.batch.entries) > 0:
			e.send(l, now)
		}
	}
	return nil
}

// worth returns how many events the rate has to allow before a write: as many as it allows in the time that an incomplete
// batch waits, or as wait for it. Otherwise a backlog would go out in batches of one.
func (e *engine) worth() int {
	waiting := e.held + len(e.away) + e.fetched - e.inFlightEvents
	return max(min(e.rate.within(e.cfg.Delivery.MaxWait), e.cfg.Delivery.MaxEvents, waiting), 1)
}

func (e *engine) send(l *lane, now time.Time) {
	b := &l.batch
	b.ticket, b.hidden = e.circuit.start(), e.hidden
	b.began = now
	e.rate.take(now, len(b.entries))
	e.sent++
	b.number = e.sent
	l.busy = true
	e.inFlight++
	e.inFlightEvents += len(b.entries)
	l.work <- b
}

// form fills the lane's batch with up to limit events, those of one object in
// their order. The sources take turns, so that neither retries nor a backlog nor
// traffic starves the others.
func (e *engine) form(l *lane, now time.Time, limit int, from []source) error {
	l.batch.reset()
	takes := [sources]func(*lane, time.Time, int) error{
		ordinary: e.takePending, free: e.takeFree, due: e.takeDue,
	}
	for i := range from {
		s := from[(l.turn+i)%len(from)]
		err := takes[s](l, now, e.batchLimit(l, s, limit))
		if len(l.batch.entries) > 0 {
			l.batch.from, l.turn = s, int(s)+1
			return nil // the error recurs
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) batchLimit(l *lane, from source, limit int) int {
	limit = min(limit, e.cfg.Delivery.MaxEvents)
	if most := e.limits.MaxBatch; most > 0 {
		limit = min(limit, most)
	}
	if cut := l.cut[from]; cut > 0 {
		limit = min(limit, cut)
	}
	return limit
}

func (e *engine) takePending(l *lane, now time.Time, limit int) error {
	if wake, ok := e.pendingReady(l, limit); !ok || wake.After(now) {
		return nil
	}
	scanned := 0
	for ; scanned < l.pending.len() && len(l.batch.entries) < limit; scanned++ {
		en := l.pending.at(scanned)
		if o := l.detached.get(en.item.Lane); o != nil {
			e.follow(o, en)
			continue
		}
		if e.note.knows(en.item.Position) && l.batch.holds(en.item.Lane) {
			break // it may have to wait for the events of its object in this batch
		}
		if e.recall(l, en, now) {
			continue
		}
		ok, err := e.prepare(en)
		if err != nil {
			l.pending.cut(scanned)
			return err
		}
		if !ok {
			continue
		}
		if len(l.batch.entries) > 0 && l.batch.bytes+en.size > e.cfg.Delivery.MaxBytes {
			break
		}
		l.batch.add(en, nil)
	}
	l.pending.cut(scanned)
	return nil
}

// pendingReady returns when the lane's order has a batch to send; not ok: it is empty. A
// full batch does not wait, and neither does one that no more events are read for.
func (e *engine) pendingReady(l *lane, limit int) (time.Time, bool) {
	n := l.pending.len()
	if n == 0 {
		return time.Time{}, false
	}
	wait := e.cfg.Delivery.MaxWait
	if wait <= 0 || n >= limit || e.full() || e.decodeAhead(l, limit) >= e.cfg.Delivery.MaxBytes {
		return time.Time{}, true
	}
	return l.pending.at(0).arrived.Add(wait), true
}

// takeDue fills the batch with failed events that are due. One that the sink refused
// without naming it is sent alone.
func (e *engine) takeDue(l *lane, now time.Time, limit int) error {
	if now.Before(e.retryHold) {
		return nil
	}
	for len(l.batch.entries) < limit {
		o := l.detached.nextDue(now)
		if o == nil {
			return nil
		}
		if o.alone && len(l.batch.entries) > 0 {
			l.detached.back(o)
			return nil
		}
		alone := o.alone
		full, err := e.takeObject(l, o, limit)
		if err != nil || full || alone {
			return err
		}
	}
	return nil
}

// takeFree fills the batch with events of free objects, the oldest first: neighbours in
// the queue are read again together.
func (e *engine) takeFree(l *lane, _ time.Time, limit int) error {
	for len(l.batch.entries) < limit {
		o := l.detached.nextFree()
		if o == nil {
			return nil
		}
		if full, err := e.takeObject(l, o, limit); err != nil || full {
			return err
		}
	}
	return nil
}

// takeObject moves events from the front of a detached object to the batch, and
// reports whether there was no room for one. If it moves none, the object returns
// to its heap.
func (e *engine) takeObject(l *lane, o *object, limit int) (full bool, err error) {
	before := len(l.batch.entries)
	defer func() {
		if len(l.batch.entries) == before {
			l.detached.back(o)
		}
	}()
	for most := o.most(limit - before); most > 0 && o.queue.len() > 0; {
		en := o.queue.at(0)
		if en.away && len(l.batch.entries) > before && l.detached.free.Len() > 0 && l.detached.free.objects[0].position() < en.item.Position {
			return false, nil
		}
		ok, err := e.prepare(en)
		if err != nil {
			return false, err
		}
		if ok && len(l.batch.entries) > 0 && l.batch.bytes+en.size > e.cfg.Delivery.MaxBytes {
			return true, nil
		}
		o.queue.cut(1)
		if !ok {
			o.passed()
			continue
		}
		l.batch.add(en, o)
		most--
	}
	return false, nil
}

// follow moves an event behind those of its detached object.
func (e *engine) follow(o *object, en *entry) {
	e.setAside(en)
	o.queue.push(en)
	e.failures.follow(o.lane)
}

// setAside drops an entry's payload and event; they are read again later.
func (e *engine) setAside(en *entry) {
	en.item.Payload, en.event = nil, nil
	e.unhold(en)
	e.unfetch(en)
	if !en.away {
		en.away = true
		e.away[en.item.Position] = en
	}
}

// decodeAhead decodes the lane's next batch and returns its size. It stops at an event
// that cannot be decoded; prepare makes a dead letter of it.
func (e *engine) decodeAhead(l *lane, limit int) (bytes int) {
	for i := range min(l.pending.len(), limit) {
		en := l.pending.at(i)
		if en.event == nil {
			if err := e.decode(en); err != nil {
				return bytes
			}
		}
		if bytes += en.size; bytes >= e.cfg.Delivery.MaxBytes {
			return bytes
		}
	}
	return bytes
}
