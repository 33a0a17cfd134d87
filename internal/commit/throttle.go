package commit

import (
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// throttle is a route's for one sink.
type throttle struct {
	bucket *timer.Bucket
	former bool // not configured any more; gone once it holds nothing
}

// runs reports whether the route sent, or holds, an event of the object within its period.
func (th *throttle) runs(row *timer.Row, uid string, at time.Time) bool {
	return row != nil && row.UID == uid && (row.Sequence != 0 || at.Before(row.Start.Add(th.bucket.After)))
}

// leads reports whether the route led to a target.
func (th *throttle) leads(t *record.Target) bool { return !th.former && t.LedBy(th.bucket.Route) }

// held is an event that waits, until it has its sequence.
type held struct {
	th     *throttle
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

func (g *group) throttleTarget(r *record.Record, i int, of []*throttle, path string, now bool) (wait bool, err error) {
	target, at := &r.Targets[i], r.Event.Time
	gone := r.Event.Type == event.Deleted || target.Flags.Selection() == event.Left
	rows, err := g.throttleRows(of, path)
	if err != nil {
		return false, err
	}
	wait = !now && !gone
	leading := 0
	for j, th := range of {
		if th.leads(target) {
			leading++
			wait = wait && th.runs(rows[j], r.Event.UID, at)
		}
	}
	if wait && leading > 0 && leading == target.RouteCount() {
		for j, th := range of {
			if th.leads(target) {
				g.held = append(g.held, held{th, rows[j], i})
			}
		}
		return true, nil
	}
	if err := g.release(of, rows, path, ^uint64(0), at); err != nil {
		return false, err
	}
	for j, th := range of {
		switch {
		case gone && rows[j] != nil:
			g.c.timers.table.Put(g.batch, th.bucket, path, rows[j], nil)
		case !gone && !now && th.leads(target):
			sent, err := sentRow(r, *target, at)
			if err != nil {
				return false, err
			}
			g.c.timers.table.Put(g.batch, th.bucket, path, rows[j], sent)
		}
	}
	return false, nil
}

func (g *group) throttleRows(of []*throttle, path string) ([]*timer.Row, error) {
	rows := make([]*timer.Row, len(of))
	for j, th := range of {
		var err error
		if rows[j], err = g.timerRow(th.bucket, path); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// comparing are the parts of an event that are made from the state before.
const comparing = record.OldObject | record.Patch | record.Summary

// sentRow is the row of a route that has sent a record at a time: the next one is compared
// with its state.
func sentRow(r *record.Record, target record.Target, at time.Time) (*timer.Row, error) {
	row := &timer.Row{Start: at, Armed: true, UID: r.Event.UID}
	if target.Flags&comparing == 0 {
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
				g.c.log.Error("what a route sent or held of an object cannot be read: the next event is not compared with it", "route", h.th.bucket.Route, "sink", h.th.bucket.Sink, "object", r.Event.PartitionKey(), "error", err)
				was = &record.Record{Targets: []record.Target{*target}}
			}
			sent := was.Object
			if h.row.Sequence != 0 {
				sent = was.OldObject
				next.Event.Coalesced = was.Event.Coalesced + 1
				if was.Targets[0].Flags.Selection() == event.Entered && target.Flags.Selection() == event.Inside {
					target.Flags = target.Flags.WithSelection(event.Entered)
				}
				g.c.metrics.coalesced.WithLabelValues(h.th.bucket.Route, h.th.bucket.Sink).Inc()
			}
			// A state under other edits may show what those of now hide.
			if len(sent.Data) > 0 && was.Edits == r.Edits && target.Flags&comparing != 0 {
				next.OldObject, next.Patch, next.PatchOmitted = sent, nil, false
			}
		}
		row := &timer.Row{Start: h.row.Start, Armed: true, UID: r.Event.UID, Sequence: sequence}
		var err error
		if row.Record, err = record.Append(nil, &next); err != nil {
			return err
		}
		g.c.timers.table.Put(g.batch, h.th.bucket, r.Event.PartitionKey(), h.row, row)
		g.c.metrics.held.WithLabelValues(h.th.bucket.Route, h.th.bucket.Sink).Inc()
	}
	g.held = g.held[:0]
	return nil
}

// release gives a sink what its throttles hold of an object, up to a sequence, in the order
// of the log. The rows become those of events sent at a time.
func (g *group) release(of []*throttle, rows []*timer.Row, path string, upTo uint64, at time.Time) error {
	for last := uint64(0); ; {
		next := -1
		for j, row := range rows {
			if row != nil && row.Sequence != 0 && row.Sequence <= upTo && (next < 0 || row.Sequence < rows[next].Sequence) {
				next = j
			}
		}
		if next < 0 {
			return nil
		}
		th, row := of[next], rows[next]
		sent, err := g.send(th, row, row.Sequence == last, at)
		if err != nil {
			return err
		}
		last = row.Sequence
		g.c.timers.table.Put(g.batch, th.bucket, path, row, sent)
		rows[next] = sent
	}
}

// send puts a held event into the queue of its sink, unless that has it already, and
// returns the row that remains.
func (g *group) send(th *throttle, row *timer.Row, again bool, at time.Time) (*timer.Row, error) {
	r, err := record.Decode(row.Record)
	if err != nil {
		g.c.log.Error("what a route held of an object cannot be read: it is not delivered", "route", th.bucket.Route, "sink", th.bucket.Sink, "sequence", row.Sequence, "error", err)
		g.c.metrics.unheld.WithLabelValues("unreadable").Inc()
		return nil, nil
	}
	target := r.Targets[0]
	if r.Event.Type != event.Updated || r.Event.For != nil {
		r.OldObject = compact.Body{} // only the next event is compared with it
	}
	if target.Flags&record.Patch != 0 && len(r.Patch) == 0 && len(r.OldObject.Data) > 0 {
		if r.Patch, err = g.c.patchOfBodies(r); err != nil {
			g.c.log.Error("what a route held of an object cannot be compared: it has no patch", "route", th.bucket.Route, "sink", th.bucket.Sink, "sequence", row.Sequence, "error", err)
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
			g.c.log.Warn("a held event is not delivered: its sink is gone", "route", th.bucket.Route, "sink", target.Sink, "object", r.Event.PartitionKey())
			g.c.metrics.unheld.WithLabelValues("sink").Inc()
		}
	}
	if th.former {
		return nil, nil
	}
	return sentRow(r, target, at)
}

// fire sends what is due.
func (th *throttle) fire(g *group, now time.Time, room *int) error {
	t := g.c.timers
	before := *room
	due, _, err := g.due(th.bucket, now, nil, room)
	if err != nil {
		return err
	}
	for _, d := range due {
		of := t.throttles[th.bucket.Sink]
		rows, err := g.throttleRows(of, d.Key)
		if err != nil {
			return err
		}
		row := rows[slices.Index(of, th)]
		switch {
		case row == nil || !row.Start.Equal(d.Start):
			t.table.Unlist(g.batch, th.bucket, d)
		case row.Sequence == 0:
			t.table.Put(g.batch, th.bucket, d.Key, row, nil)
		default:
			if err := g.release(of, rows, d.Key, row.Sequence, now); err != nil {
				return err
			}
		}
	}
	if th.former && before > 0 && *room == before { // nothing is left
		t.throttles[th.bucket.Sink] = slices.DeleteFunc(t.throttles[th.bucket.Sink], func(other *throttle) bool { return other == th })
		if len(t.throttles[th.bucket.Sink]) == 0 {
			delete(t.throttles, th.bucket.Sink)
		}
	}
	return nil
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
