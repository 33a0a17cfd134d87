package commit

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
)

const (
	// timerLook is how many timers, or objects that may need one, a group looks at.
	timerLook = maxGroup
	// timerPause is the least time between two looks for timers that are due, so that
	// they share commits.
	timerPause = 50 * time.Millisecond
)

// timers are what the routes hold over time. They are the committer's.
type timers struct {
	table     *timer.Table
	throttles map[string][]*timer.Bucket // by sink
	lasting   map[string]*lasting        // by route
	former    bool                       // buckets of former routes have not been looked for, or not all of them
	search    time.Time                  // they are not looked for before
	working   bool                       // the job is among those of the group
	looked    time.Time                  // when the last look was
}

// idle reports whether nothing is held, and no route holds anything.
func (t *timers) idle() bool { return len(t.throttles) == 0 && len(t.lasting) == 0 && !t.former }

func (c *Committer) adopt(r Router) {
	c.router = r
	t := c.timers
	before := t.lasting
	gone := map[timer.Name]bool{}
	t.eachBucket(func(b *timer.Bucket) { gone[b.Name] = true })
	t.throttles, t.lasting, t.former, t.search = map[string][]*timer.Bucket{}, map[string]*lasting{}, true, time.Time{}
	for _, of := range r.Timers() {
		if of.For > 0 {
			l := &lasting{Timer: of, bucket: &timer.Bucket{Name: timer.Name{Route: of.Route}, After: of.For}, armed: map[string]*[]WatchRef{}}
			if was := before[of.Route]; was != nil && was.Matching == of.Matching {
				l.armed = was.armed
			}
			t.lasting[of.Route] = l
			c.metrics.lasted.WithLabelValues(of.Route)
		}
		if of.Throttle > 0 {
			for _, target := range of.Targets {
				name := timer.Name{Route: of.Route, Sink: target.Sink}
				t.add(&timer.Bucket{Name: name, After: of.Throttle})
				c.metrics.held.WithLabelValues(name.Route, name.Sink)
				c.metrics.coalesced.WithLabelValues(name.Route, name.Sink)
			}
		}
	}
	t.eachBucket(func(b *timer.Bucket) { delete(gone, b.Name) })
	for name := range gone {
		c.metrics.forgetTimers(name)
	}
}

func (t *timers) add(b *timer.Bucket) { t.throttles[b.Sink] = append(t.throttles[b.Sink], b) }

// unreadable is the time until what routes hold is read again after damage: a block may be
// repaired.
const unreadable = time.Minute

// findFormer finds the buckets of routes, or of their sinks, that are not configured any
// more. What they hold is due. A `for` that is edited, or gone, does not count as armed any
// more: it may come back, and what changes until then is not judged by it.
func (g *group) findFormer() error {
	c := g.c
	t, now := c.timers, c.cfg.Now()
	if !t.former || now.Before(t.search) {
		return nil
	}
	names, err := t.table.Names()
	armed := c.store.ScanMeta(armedMeta, func(key string, by []byte) error {
		route, _, _ := strings.Cut(strings.TrimPrefix(key, armedMeta), "/")
		names = append(names, timer.Name{Route: route})
		if l := t.lasting[route]; l == nil || l.bucket.Former || !bytes.HasPrefix(by, []byte(l.Matching)) {
			g.batch.PutMeta(key, nil)
		}
		return nil
	})
	for _, name := range names {
		switch {
		case name.Sink == "":
			if t.lasting[name.Route] == nil {
				t.lasting[name.Route] = &lasting{bucket: &timer.Bucket{Name: name, Former: true}}
			}
		case !slices.ContainsFunc(t.throttles[name.Sink], func(b *timer.Bucket) bool { return b.Name == name }):
			t.add(&timer.Bucket{Name: name, Former: true})
		}
	}
	err = errors.Join(err, armed)
	if t.search.IsZero() {
		t.eachBucket(func(b *timer.Bucket) {
			err = errors.Join(err, t.table.Count(b))
			c.metrics.holds(b)
		})
	}
	switch {
	case err == nil:
		t.former = false
	case errors.Is(err, store.ErrUnreadable):
		c.log.Error("what routes hold cannot be read: it is tried again later", "error", err)
		t.search = now.Add(unreadable)
	default:
		return ledger.StoreError(err, "find timers")
	}
	return nil
}

func (t *timers) eachBucket(f func(*timer.Bucket)) {
	for _, of := range t.throttles {
		for _, b := range of {
			f(b)
		}
	}
	for _, l := range t.lasting {
		f(l.bucket)
	}
}

// clear deletes what is left of a former bucket, and then calls gone.
func (g *group) clear(b *timer.Bucket, room *int, gone func() error) error {
	n, err := g.c.timers.table.Clear(g.batch, b, *room)
	*room -= n
	if err == nil && *room > 0 {
		err = gone()
	}
	switch {
	case errors.Is(err, store.ErrUnreadable):
		g.c.log.Error("what a former route held cannot be read: it is deleted later", "route", b.Route, "sink", b.Sink, "error", err)
		b.Postpone(g.c.timers.looked.Add(unreadable))
	case err != nil:
		return ledger.StoreError(err, "scan timers")
	}
	return nil
}

// next is when the timers are to be looked at.
func (t *timers) next() time.Time {
	next := t.looked.Add(checkpointInterval)
	t.eachBucket(func(b *timer.Bucket) {
		if b.Next().Before(next) {
			next = b.Next()
		}
	})
	if soonest := t.looked.Add(timerPause); next.Before(soonest) {
		return soonest
	}
	return next
}

func (c *Committer) wake(w *time.Timer) {
	if !c.timers.idle() && !c.timers.working {
		w.Reset(c.timers.next().Sub(c.cfg.Now()))
	}
}

// lookAtTimers has the timers looked at with the next commit.
func (g *group) lookAtTimers() {
	if t := g.c.timers; !t.idle() && !t.working {
		t.working = true
		g.jobs = append(g.jobs, t)
	}
}

// step arms and fires a part of what is due.
func (t *timers) step(g *group) (more bool, err error) {
	now := g.c.cfg.Now().Round(0) // as the rows have it: of the clock that may be set
	if now.Before(t.looked) {     // it was set back
		t.eachBucket(func(b *timer.Bucket) { b.Postpone(time.Time{}) })
		for _, l := range t.lasting {
			l.after = nil
		}
	}
	t.looked = now
	room := timerLook
	for _, sink := range slices.Sorted(maps.Keys(t.throttles)) {
		for _, b := range slices.Clone(t.throttles[sink]) {
			if err := t.fire(g, b, now, &room); err != nil {
				return false, err
			}
		}
	}
	for _, route := range slices.Sorted(maps.Keys(t.lasting)) {
		if err := t.lasting[route].work(g, now, &room); err != nil {
			return false, err
		}
	}
	t.working = room <= 0
	return room <= 0, nil
}

func (t *timers) end() {}

// Put implements timer.Outlet.
func (g *group) Put(b *timer.Bucket, key string, before, next *timer.Row) {
	g.c.timers.table.Put(g.batch, b, key, before, next)
}

// Unlist implements timer.Outlet.
func (g *group) Unlist(b *timer.Bucket, d timer.Due) { g.c.timers.table.Unlist(g.batch, b, d) }

// Row implements timer.Outlet. It logs a damaged row and returns nil.
func (g *group) Row(b *timer.Bucket, key string) (*timer.Row, error) {
	row, err := g.c.timers.table.Row(b, key)
	if err == nil {
		return row, nil
	}
	if errors.Is(err, store.ErrUnreadable) || errors.Is(err, timer.ErrMalformed) {
		g.c.log.Error("what a route held of an object cannot be read: it is not delivered", "route", b.Route, "sink", b.Sink, "object", key, "error", err)
		g.c.metrics.unheld.WithLabelValues("unreadable").Inc()
		return nil, nil
	}
	return nil, ledger.StoreError(err, "read a timer")
}

// due returns the timers of a bucket that are due, after one that was, and puts those that
// began in the future, by a clock that was set back since, at now. more: there are others, or
// they cannot be read.
func (g *group) due(b *timer.Bucket, now time.Time, after *timer.Due, room *int) (due []timer.Due, more bool, err error) {
	if *room <= 0 || b.Next().After(now) {
		return nil, false, nil
	}
	table := g.c.timers.table
	ahead, err := table.Ahead(b, now, *room)
	if err == nil {
		due, more, err = table.Due(b, now, after, *room)
	}
	switch {
	case errors.Is(err, store.ErrUnreadable), errors.Is(err, timer.ErrMalformed):
		g.c.log.Error("what a route holds cannot be read: it is tried again later", "route", b.Route, "sink", b.Sink, "error", err)
		b.Postpone(now.Add(unreadable))
		more = true
	case err != nil:
		return nil, false, ledger.StoreError(err, "scan timers")
	}
	for _, d := range ahead {
		row, err := g.Row(b, d.Key)
		if err != nil {
			return nil, false, err
		}
		if row == nil || !row.Start.Equal(d.Start) {
			g.Unlist(b, d)
			continue
		}
		moved := *row
		moved.Start = now
		g.Put(b, d.Key, row, &moved)
	}
	*room -= len(due) + len(ahead)
	return due, more, nil
}
