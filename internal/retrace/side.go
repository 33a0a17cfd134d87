package retrace

import (
	"container/heap"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// side is one of the two configurations of a backtest, with what its routes hold over the
// recorded time. Its decisions are those of package timer, as the committer's are.
type side struct {
	t         *rehearsal
	is        int // its index among the outcomes
	router    *route.Router
	watches   *Watches
	throttles map[string][]*timer.Bucket // by sink
	lasting   map[string]*lasting        // by route
	rows      map[place]*held
	due       dueList
	gaps      map[part]uint64 // the sequence of the last one
	serial    uint64          // of the events of this side
	targets   []record.Target
}

// lasting is a route with a `for`.
type lasting struct {
	route.Timer
	bucket *timer.Bucket
}

// place is where a row is.
type place struct {
	bucket *timer.Bucket
	key    string
}

// held is a row, and what the committer has in the row's record.
type held struct {
	row       *timer.Row
	is        occurrence // held or, of a `for`, the last state
	target    record.Target
	sent      uint64 // the sequence of the record that was sent last
	coalesced int
}

// occurrence is an event of a side.
type occurrence struct {
	id       string
	sequence uint64    // of its record, or of the one with the state of a match
	since    time.Time // of a match that has lasted; zero: it is a change
	at       time.Time // of the match
}

func newSide(t *rehearsal, is int, router *route.Router, watches *Watches) *side {
	s := &side{
		t: t, is: is, router: router, watches: watches,
		throttles: map[string][]*timer.Bucket{}, lasting: map[string]*lasting{}, rows: map[place]*held{}, gaps: map[part]uint64{},
	}
	for _, of := range router.Timers() {
		if of.For > 0 {
			s.lasting[of.Route] = &lasting{of, &timer.Bucket{Name: timer.Name{Route: of.Route}, After: of.For}}
		}
		if of.Throttle > 0 {
			for _, to := range of.Targets {
				s.throttles[to.Sink] = append(s.throttles[to.Sink], &timer.Bucket{Name: timer.Name{Route: of.Route, Sink: to.Sink}, After: of.Throttle})
			}
		}
	}
	return s
}

// size is how much is held.
func (s *side) size() int { return len(s.rows) + len(s.due) }

// take runs the routes over a change, and returns which sinks are given it, or wait for it.
func (s *side) take(sequence uint64, c *Change) (map[string]outcome, error) {
	c.Watches, c.Matches = s.watches.Hits(c), nil
	s.targets = s.router.Route(s.targets[:0], &c.Change)
	for _, m := range c.Matches {
		s.judge(s.lasting[m.Route], sequence, c, m.Match)
	}
	return s.pass(occurrence{id: c.ID, sequence: sequence}, c)
}

// pass gives an event to the targets that do not hold it.
func (s *side) pass(what occurrence, c *Change) (map[string]outcome, error) {
	if len(s.targets) == 0 {
		return nil, nil //nolint:nilnil // no sink
	}
	s.serial++
	to := make(map[string]outcome, len(s.targets))
	for i := range s.targets {
		target := &s.targets[i]
		to[target.Sink] = given
		if of := s.throttles[target.Sink]; len(of) > 0 {
			e := timer.Event{
				Key: c.Record.Event.PartitionKey(), UID: c.Record.Event.UID, At: c.Time, Routes: target.RouteCount(), LedBy: target.LedBy,
				Gone: c.Type == event.Deleted || target.Flags.Selection() == event.Left,
			}
			rows, wait, err := timer.Throttle(of, &e, s)
			if err != nil {
				return nil, err
			}
			for j, b := range of {
				switch {
				case !e.Leads(b):
				case wait:
					s.hold(b, e.Key, rows[j], what, *target)
				case !e.Gone:
					s.Put(b, e.Key, rows[j], &timer.Row{Start: c.Time, Armed: true, UID: e.UID})
					s.rows[place{b, e.Key}].sent = what.sequence
				}
			}
			if wait {
				to[target.Sink] = waiting
				continue
			}
		}
		if err := s.t.render(s, what.sequence, c, *target); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// hold keeps an event in place of the one that waited before.
func (s *side) hold(b *timer.Bucket, key string, row *timer.Row, what occurrence, target record.Target) {
	h := s.rows[place{b, key}]
	if row.Sequence != 0 {
		if !slices.ContainsFunc(s.throttles[b.Sink], func(other *timer.Bucket) bool {
			o := s.rows[place{other, key}]
			return other != b && o != nil && o.row.Sequence == row.Sequence
		}) {
			s.t.settle(s, b.Sink, h.is.id, notGiven)
		}
		s.t.replaced(s, b.Route)
		h.coalesced++
		if h.target.Flags.Selection() == event.Entered && target.Flags.Selection() == event.Inside {
			target.Flags = target.Flags.WithSelection(event.Entered)
		}
	}
	h.is, h.target = what, target
	s.Put(b, key, row, &timer.Row{Start: row.Start, Armed: true, UID: row.UID, Sequence: s.serial})
}

// judge begins or ends the match of an object.
func (s *side) judge(l *lasting, sequence uint64, c *Change, met bool) {
	e := &c.Record.Event
	in := part{groupResource(e), c.Record.Scope}
	key := matchKey(c.Record)
	found := timer.Match{
		UID: e.UID, Version: e.ResourceVersion, Matching: l.Matching, At: e.Time, Met: met,
		Blind: c.Type != event.Updated,
	}
	var row *timer.Row
	h := s.rows[place{l.bucket, key}]
	if h != nil {
		row = h.row
		found.Blind = found.Blind || h.is.sequence < s.gaps[in]
	}
	next, changed := found.Judge(row)
	if changed {
		if row != nil && row.Armed {
			s.ended(l, h.is.id)
		}
		s.Put(l.bucket, key, row, next)
	}
	if h = s.rows[place{l.bucket, key}]; h == nil {
		return
	}
	if h.is.sequence = sequence; changed {
		object := e.UID
		if object == "" {
			object = ledger.Key(e.Namespace, e.Name)
		}
		h.is.id, h.is.since = event.ID(s.t.inflater.Cluster, event.Updated, e.Resource, c.Record.Scope+"/for/"+l.Route, object, e.ResourceVersion), next.Start
	}
}

// matchKey is an object's among the rows of a match.
func matchKey(r *record.Record) string {
	e := &r.Event
	partition := ledger.Partition(groupResource(e), r.Scope)
	return partition + "\n" + ledger.Key(e.Namespace, e.Name)
}

// ended notes that a match will not be reported.
func (s *side) ended(l *lasting, id string) {
	for i := range l.Targets {
		s.t.settle(s, l.Targets[i].Sink, id, notGiven)
	}
}

// expects reports whether a match is among those that the side may still report to a sink.
func (s *side) expects(name, key, id, sink string) bool {
	l := s.lasting[name]
	if l == nil || !slices.ContainsFunc(l.Targets, func(t record.Target) bool { return t.Sink == sink }) {
		return false
	}
	h := s.rows[place{l.bucket, key}]
	return h != nil && h.row.Armed && h.is.id == id
}

// report makes the event of a match that has lasted.
func (s *side) report(l *lasting, key string, h *held, at time.Time) error {
	fired := *h.row
	fired.Armed = false
	s.Put(l.bucket, key, h.row, &fired)
	what := h.is
	what.at = at
	c, err := s.t.again(what.sequence)
	if err != nil {
		return err
	}
	if c == nil || !l.Takes(&route.Change{ID: what.id, Uncounted: true}) {
		s.ended(l, what.id)
		return nil
	}
	c.asOf(what, nil, 0)
	s.targets = append(s.targets[:0], l.Targets...)
	to, err := s.pass(what, c)
	if err != nil {
		return err
	}
	s.t.lasted(s, l, key, what, &c.Record.Event, to)
	return nil
}

// advance lets time pass.
func (s *side) advance(to time.Time) error {
	for len(s.due) > 0 && !s.due[0].at.After(to) {
		d := heap.Pop(&s.due).(due)
		if d.bucket.Sink != "" {
			if err := timer.Fire(s.throttles[d.bucket.Sink], d.bucket, timer.Due{Key: d.key, Start: d.start}, d.at, s); err != nil {
				return err
			}
			continue
		}
		if h := s.rows[d.place]; h != nil && h.row.Armed && h.row.Start.Equal(d.start) {
			if err := s.report(s.lasting[d.bucket.Route], d.key, h, d.at); err != nil {
				return err
			}
		}
	}
	return nil
}

// end releases what is held: it would be delivered within a period.
func (s *side) end(at time.Time) error {
	for len(s.due) > 0 {
		d := heap.Pop(&s.due).(due)
		if d.bucket.Sink == "" {
			if h := s.rows[d.place]; h != nil && h.row.Armed {
				s.ended(s.lasting[d.bucket.Route], h.is.id)
			}
		} else if err := timer.Fire(s.throttles[d.bucket.Sink], d.bucket, timer.Due{Key: d.key, Start: d.start}, at, discard{s}); err != nil {
			return err
		}
	}
	return nil
}

// discard is a side that begins no more periods.
type discard struct{ *side }

// Release implements timer.Outlet.
func (s discard) Release(b *timer.Bucket, key string, row *timer.Row, again bool, at time.Time) (*timer.Row, error) {
	_, err := s.side.Release(b, key, row, again, at)
	return nil, err
}

// Row implements timer.Outlet.
func (s *side) Row(b *timer.Bucket, key string) (*timer.Row, error) {
	if h := s.rows[place{b, key}]; h != nil {
		return h.row, nil
	}
	return nil, nil //nolint:nilnil // as the interface has it
}

// Put implements timer.Outlet.
func (s *side) Put(b *timer.Bucket, key string, before, next *timer.Row) {
	at := place{b, key}
	if next == nil {
		delete(s.rows, at)
		return
	}
	h := s.rows[at]
	if h == nil {
		h = &held{}
		s.rows[at] = h
	}
	h.row = next
	if next.Armed && (before == nil || !before.Armed || !before.Start.Equal(next.Start)) {
		heap.Push(&s.due, due{at, next.Start, next.Start.Add(b.After)})
	}
}

// Unlist implements timer.Outlet.
func (*side) Unlist(*timer.Bucket, timer.Due) {}

// Release implements timer.Outlet.
func (s *side) Release(b *timer.Bucket, key string, row *timer.Row, again bool, at time.Time) (*timer.Row, error) {
	h := s.rows[place{b, key}]
	if !again {
		if err := s.t.release(s, h); err != nil {
			return nil, err
		}
	}
	s.t.settle(s, b.Sink, h.is.id, given)
	h.sent, h.coalesced = h.is.sequence, 0
	return &timer.Row{Start: at, Armed: true, UID: row.UID}, nil
}

type due struct {
	place
	start, at time.Time
}

// dueList is a heap, the first that is due on top.
type dueList []due

func (l dueList) Len() int           { return len(l) }
func (l dueList) Less(i, j int) bool { return l[i].at.Before(l[j].at) }
func (l dueList) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *dueList) Push(x any)        { *l = append(*l, x.(due)) }
func (l *dueList) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}

// asOf makes an event of a side of the change of its record. before is the record of what was
// sent before it, nil for none.
func (c *Change) asOf(what occurrence, before *Change, coalesced int) {
	r := c.Record
	if !what.since.IsZero() {
		e := &r.Event
		e.ID, e.Type, e.Time, e.For, e.ChangedBy = what.id, event.Updated, what.at, &event.For{Since: what.since}, nil
		c.Type, c.Time, c.Old = event.Updated, what.at, nil
		r.OldObject, r.Patch, r.PatchOmitted, r.State, r.Prev = compact.Body{}, nil, false, false, 0
	}
	r.Event.Coalesced = coalesced
	if before == nil || c.Type != event.Updated || c.Old == nil || before.Record.Edits != r.Edits {
		return
	}
	c.Old, c.original = before.New, false
	r.OldObject, r.Patch, r.PatchOmitted = compact.Body{}, nil, false
	if before.form != c.form {
		c.form = 0
	}
}
