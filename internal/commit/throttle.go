package commit

import (
	"errors"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// held is an event that waits, until it has its sequence.
type held struct {
	bucket *timer.Bucket
	row    *timer.Row
	target int
}

// throttle decides which targets of a record wait, and releases what their sinks are to be
// given of the object before it. Nothing waits with now.
func (g *group) throttle(r *record.Record, now bool) error {
	g.waits = g.waits[:0]
	if len(g.c.timers.throttles) == 0 {
		return nil
	}
	path := r.Event.PartitionKey()
	for i := range r.Targets {
		wait := false
		if of := g.c.timers.throttles[r.Targets[i].Sink]; len(of) > 0 {
			var err error
			if wait, err = g.throttleTarget(r, i, of, path, now); err != nil {
				return err
			}
		}
		g.waits = append(g.waits, wait)
	}
	return nil
}

func (g *group) throttleTarget(r *record.Record, i int, of []*timer.Bucket, path string, now bool) (wait bool, err error) {
	target := &r.Targets[i]
	e := timer.Event{
		Key: path, UID: r.Event.UID, At: r.Event.Time, Now: now, Routes: target.RouteCount(), LedBy: target.LedBy,
		Gone: r.Event.Type == event.Deleted || target.Flags.Selection() == event.Left,
	}
	rows, wait, err := timer.Throttle(of, &e, g)
	if err != nil {
		return false, err
	}
	for j, b := range of {
		switch {
		case !e.Leads(b):
		case wait:
			g.held = append(g.held, held{b, rows[j], i})
		case !e.Gone && !now:
			sent, err := sentRow(r, *target, e.At)
			if err != nil {
				return false, err
			}
			g.Put(b, path, rows[j], sent)
		}
	}
	return wait, nil
}

// sentRow is the row of a route that has sent a record at a time: the next one is compared
// with its state.
func sentRow(r *record.Record, target record.Target, at time.Time) (*timer.Row, error) {
	row := &timer.Row{Start: at, Armed: true, UID: r.Event.UID}
	if target.Flags&record.Comparing == 0 {
		return row, nil
	}
	sent := *r
	sent.OldObject, sent.Patch, sent.PatchOmitted, sent.State, sent.Prev = compact.Body{}, nil, false, false, 0
	sent.Event.Coalesced = 0
	sent.Targets = []record.Target{target}
	var err error
	row.Record, err = record.Append(nil, &sent)
	return row, err
}

// hold keeps the events that wait, in place of those that waited before.
func (g *group) hold(r *record.Record, sequence uint64) error {
	for _, h := range g.held {
		next := *r
		next.State, next.Prev = false, 0
		next.Targets = []record.Target{r.Targets[h.target]}
		target := &next.Targets[0]
		if len(h.row.Record) > 0 {
			was, err := record.Decode(h.row.Record)
			if err != nil {
				g.c.log.Error("what a route sent or held of an object cannot be read: the next event is not compared with it", "route", h.bucket.Route, "sink", h.bucket.Sink, "object", r.Event.PartitionKey(), "error", err)
				was = &record.Record{Targets: []record.Target{*target}}
			}
			sent, replaces := was.Object, h.row.Sequence != 0
			if replaces {
				sent = was.OldObject
				next.Event.Coalesced = was.Event.Coalesced + 1
				if was.Targets[0].Flags.Selection() == event.Entered && target.Flags.Selection() == event.Inside {
					target.Flags = target.Flags.WithSelection(event.Entered)
				}
				g.c.metrics.coalesced.WithLabelValues(h.bucket.Route, h.bucket.Sink).Inc()
			}
			// A state under other edits may show what those of now hide.
			if known := len(sent.Data) > 0 && was.Edits == r.Edits; known || replaces {
				next.OldObject, next.Patch, next.PatchOmitted = compact.Body{}, nil, !known
				if known {
					next.OldObject = sent
				}
			}
		}
		if target.Flags&record.Comparing == 0 {
			next.OldObject, next.Patch, next.PatchOmitted = compact.Body{}, nil, false
		}
		row := &timer.Row{Start: h.row.Start, Armed: true, UID: r.Event.UID, Sequence: sequence}
		var err error
		if row.Record, err = record.Append(nil, &next); err != nil {
			return err
		}
		g.Put(h.bucket, r.Event.PartitionKey(), h.row, row)
		g.c.metrics.held.WithLabelValues(h.bucket.Route, h.bucket.Sink).Inc()
	}
	g.held = g.held[:0]
	return nil
}

// Release implements timer.Outlet: it puts the event into the queue of its sink.
func (g *group) Release(b *timer.Bucket, _ string, row *timer.Row, again bool, at time.Time) (*timer.Row, error) {
	r, err := record.Decode(row.Record)
	if err != nil {
		g.c.log.Error("what a route held of an object cannot be read: it is not delivered", "route", b.Route, "sink", b.Sink, "sequence", row.Sequence, "error", err)
		g.c.metrics.unheld.WithLabelValues("unreadable").Inc()
		return nil, nil
	}
	target := r.Targets[0]
	if r.Event.Type != event.Updated || r.Event.For != nil {
		r.OldObject = compact.Body{} // only the next event is compared with it
	}
	if target.Flags&record.Patch != 0 && len(r.Patch) == 0 && len(r.OldObject.Data) > 0 {
		if r.Patch, err = g.c.patchOfBodies(r); err != nil {
			g.c.log.Error("what a route held of an object cannot be compared: it has no patch", "route", b.Route, "sink", b.Sink, "sequence", row.Sequence, "error", err)
			r.Patch, r.PatchOmitted = nil, true
		}
	}
	payload, err := record.Append(nil, r)
	if err != nil {
		return nil, err
	}
	if !again {
		to := store.Route{Sink: target.Sink, Flags: uint32(target.Flags)}
		if !g.batch.Enqueue(store.Record{Time: r.Event.Time, Lane: g.laneOf(&r.Event), Payload: payload}, row.Sequence, to) {
			g.c.log.Warn("a held event is not delivered: its sink is gone", "route", b.Route, "sink", target.Sink, "object", r.Event.PartitionKey())
			g.c.metrics.unheld.WithLabelValues("sink").Inc()
		}
	}
	if b.Former {
		return nil, nil
	}
	return sentRow(r, target, at)
}

// fire sends what is due of a bucket with held events.
func (t *timers) fire(g *group, b *timer.Bucket, now time.Time, room *int) error {
	if *room <= 0 || b.Next().After(now) {
		return nil
	}
	before := *room
	due, more, err := g.due(b, now, nil, room)
	if err != nil {
		return err
	}
	of := t.throttles[b.Sink]
	for _, d := range due {
		if g.full() {
			b.Postpone(now) // the rest is due with the next group
			*room = 0
			return nil
		}
		if err := timer.Fire(of, b, d, now, g); err != nil {
			return err
		}
	}
	if !b.Former || more || *room != before {
		return nil
	}
	return g.clear(b, room, func() error { // nothing is held
		if of = slices.DeleteFunc(of, func(other *timer.Bucket) bool { return other == b }); len(of) == 0 {
			delete(t.throttles, b.Sink)
		} else {
			t.throttles[b.Sink] = of
		}
		return nil
	})
}

// DropHeld deletes, durably, what routes hold for a sink that no route leads to, also in a full
// store: a later sink of its name is not given it. What cannot be read is logged.
func (b Barrier) DropHeld(sink string) error {
	c := b.g.c
	names, err := c.timers.table.Names()
	for _, name := range names {
		if name.Sink == sink {
			err = errors.Join(err, c.dropBucket(&timer.Bucket{Name: name, Former: true}))
		}
	}
	switch {
	case errors.Is(err, store.ErrUnreadable):
		c.log.Error("what routes held for a purged sink cannot be read: a part of it stays", "sink", sink, "error", err)
	case err != nil:
		return ledger.StoreError(err, "delete timers")
	}
	delete(c.timers.throttles, sink)
	return nil
}

// ReleaseHeld queues, durably, what routes hold for a sink that no route leads to, also in a full store: before the
// sink is given what was recorded since it left. What cannot be read is logged.
func (b Barrier) ReleaseHeld(sink string) error {
	c := b.g.c
	names, err := c.timers.table.Names()
	var x releaseHeld
	for _, name := range names {
		if name.Sink == sink {
			bucket := &timer.Bucket{Name: name, Former: true}
			err = errors.Join(err, c.timers.table.Count(bucket))
			x.of = append(x.of, bucket)
		}
	}
	for err = x.log(c, err); err == nil && x.next < len(x.of); {
		err = b.g.commitAlone(&x)
	}
	delete(c.timers.throttles, sink)
	return err
}

// releaseHeld releases a part of what is held for a sink, and is a change of its own. The committer's goroutine has it.
type releaseHeld struct {
	of   []*timer.Bucket
	next int    // the bucket that is looked through
	from string // of its keys
}

// log logs an error of what cannot be read, and returns any other.
func (x *releaseHeld) log(c *Committer, err error) error {
	if errors.Is(err, store.ErrUnreadable) {
		c.log.Error("what routes held for a sink that is back cannot be read: a part of it is not delivered", "error", err)
		return nil
	}
	return ledger.StoreError(err, "release what is held")
}

func (x *releaseHeld) process(g *group) error {
	var keys []string
	err := g.c.timers.table.Rows(x.of[x.next], x.from, func(key string, _ *timer.Row) error {
		if len(keys) == timerLook {
			return ledger.ErrEnough
		}
		keys = append(keys, key)
		return nil
	})
	more := errors.Is(err, ledger.ErrEnough)
	if err = x.log(g.c, err); err != nil && !more {
		return err
	}
	for _, key := range keys {
		if g.batch.Size() >= g.c.store.BatchBytes() {
			return nil
		}
		x.from = key + "\x00"
		if _, _, err := timer.Throttle(x.of, &timer.Event{Key: key, At: g.c.cfg.Now(), Now: true, Gone: true}, g); err != nil {
			return err
		}
	}
	if !more {
		x.next, x.from = x.next+1, ""
	}
	return nil
}

func (c *Committer) dropBucket(b *timer.Bucket) error {
	defer c.metrics.holds(b)
	for {
		batch := c.store.NewBatch()
		n, unread := c.timers.table.Clear(batch, b, timerLook)
		err := c.store.Commit(batch)
		if err = errors.Join(err, unread); err != nil || n < timerLook {
			return err
		}
	}
}

// patchOfBodies is the patch between the two states of a record.
func (c *Committer) patchOfBodies(r *record.Record) ([]byte, error) {
	before, err := c.dicts.Inflate(nil, r.OldObject)
	if err != nil {
		return nil, err
	}
	after, err := c.dicts.Inflate(nil, r.Object)
	if err != nil {
		return nil, err
	}
	return jsonpatch.Diff(before, after)
}
