package delivery

import (
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// dispatch sends a batch on every idle lane that has one to send and may.
func (e *engine) dispatch(now time.Time) error {
	// Lanes take turns in being first, for the sake of the single probes.
	e.turn++
	for i := range e.lanes {
		l := e.lanes[(e.turn+i)%len(e.lanes)]
		if l.busy {
			continue
		}
		limit := e.circuit.admit(now)
		if limit == 0 {
			return nil
		}
		if err := e.form(l, now, limit); err != nil {
			return err
		}
		if len(l.batch.entries) > 0 {
			e.send(l, now)
		}
	}
	return nil
}

func (e *engine) send(l *lane, now time.Time) {
	b := &l.batch
	b.ticket = e.circuit.start()
	b.began = now
	l.detachedNow = len(b.objects) == 0
	l.busy = true
	e.inFlight++
	e.inFlightEvents += len(b.entries)
	l.work <- b
}

// form fills the lane's batch with up to limit events, those of one object in
// their order. The lane's order and its detached objects take turns, so that
// neither many retries nor much traffic starves the other.
func (e *engine) form(l *lane, now time.Time, limit int) error {
	l.batch.reset()
	limits := e.limits()
	limit = e.batchLimit(l, limit, limits)
	takes := [...]func(*lane, time.Time, int, sinks.Limits) error{e.takePending, e.takeDetached}
	if l.detachedNow {
		takes[0], takes[1] = takes[1], takes[0]
	}
	for _, take := range takes {
		if err := take(l, now, limit, limits); err != nil || len(l.batch.entries) > 0 {
			return err
		}
	}
	return nil
}

func (e *engine) batchLimit(l *lane, limit int, limits sinks.Limits) int {
	limit = min(limit, e.cfg.Delivery.MaxEvents)
	if limits.MaxBatch > 0 {
		limit = min(limit, limits.MaxBatch)
	}
	if l.cut > 0 {
		limit = min(limit, l.cut)
	}
	return limit
}

// takePending fills the batch from the lane's order.
func (e *engine) takePending(l *lane, now time.Time, limit int, limits sinks.Limits) error {
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
			break // it may have to wait, and what is before it must be through by then
		}
		if e.recall(l, en, now) {
			continue
		}
		ok, err := e.prepare(en, limits)
		if err != nil {
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

// pendingReady says from when on the lane's order has a batch; not ok: it has
// none. A full batch never waits.
func (e *engine) pendingReady(l *lane, limit int) (time.Time, bool) {
	n := l.pending.len()
	if n == 0 {
		return time.Time{}, false
	}
	wait := e.cfg.Delivery.MaxWait
	if wait <= 0 || n >= limit || e.decodeAhead(l, limit) >= e.cfg.Delivery.MaxBytes {
		return time.Time{}, true
	}
	return l.pending.at(0).arrived.Add(wait), true
}

// takeDetached fills the batch with events of detached objects that are due. One
// that the sink refused without naming it goes alone.
func (e *engine) takeDetached(l *lane, now time.Time, limit int, limits sinks.Limits) error {
	if now.Before(e.retryHold) {
		return nil
	}
	for len(l.batch.entries) < limit {
		o := l.detached.next(now)
		if o == nil {
			return nil
		}
		before := len(l.batch.entries)
		full := o.alone && before > 0
		if !full {
			var err error
			if full, err = e.takeObject(l, o, o.most(limit-before), limits); err != nil {
				return err
			}
		}
		if len(l.batch.entries) == before {
			l.detached.back(o)
		}
		if full || o.alone {
			return nil
		}
	}
	return nil
}

// takeObject moves up to most events from the front of a detached object to the
// batch, and reports whether there was no room for one.
func (e *engine) takeObject(l *lane, o *object, most int, limits sinks.Limits) (full bool, err error) {
	for n := 0; n < most && o.queue.len() > 0; {
		en := o.queue.at(0)
		ok, err := e.prepare(en, limits)
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
		n++
	}
	return false, nil
}

// follow sets an event aside behind those of its detached object.
func (e *engine) follow(o *object, en *entry) {
	e.setAside(en)
	o.queue.push(en)
}

// setAside keeps of an event its position and what is known of it.
func (e *engine) setAside(en *entry) {
	en.item.Payload, en.event = nil, nil
	e.unhold(en)
	if !en.away {
		en.away = true
		e.aside++
	}
}

// decodeAhead decodes what the lane's next batch will hold, and returns its
// size. It stops at an event that has no size; the taking deals with that one.
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
