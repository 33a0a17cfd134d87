package timer

import (
	"slices"
	"time"
)

// Outlet is where what is decided takes effect: the store, or a rehearsal of it.
type Outlet interface {
	// Row returns the row of an object in a bucket, nil if there is none.
	Row(b *Bucket, key string) (*Row, error)
	Put(b *Bucket, key string, before, next *Row)
	// Unlist removes a timer from the index whose row is another one now.
	Unlist(b *Bucket, d Due)
	// Release sends the event that a row holds, unless its sink was given that by the row
	// before (again), and returns the row that remains.
	Release(b *Bucket, key string, row *Row, again bool, at time.Time) (*Row, error)
}

// Event is an event for one sink, as the throttles of that sink see it.
type Event struct {
	Key    string // of the object
	UID    string // of the object
	At     time.Time
	Gone   bool                    // the object is deleted, or left the selection: the event does not wait
	Now    bool                    // the event does not wait, and begins no period
	Routes int                     // that lead to the sink
	LedBy  func(route string) bool // whether one of them is a route
}

// Leads reports whether the route of a bucket leads to the sink.
func (e *Event) Leads(b *Bucket) bool { return !b.Former && e.LedBy(b.Route) }

// Throttle decides whether an event waits in the buckets of its sink, and releases what they
// hold of the object if it does not. It returns the rows of the buckets: the caller puts those
// of the event, into the buckets that lead to it.
func Throttle(of []*Bucket, e *Event, out Outlet) (rows []*Row, wait bool, err error) {
	if rows, err = rowsOf(of, e.Key, out); err != nil {
		return nil, false, err
	}
	wait = !e.Now && !e.Gone
	leading := 0
	for i, b := range of {
		if e.Leads(b) {
			leading++
			wait = wait && b.runs(rows[i], e.UID, e.At)
		}
	}
	if wait && leading > 0 && leading == e.Routes {
		return rows, true, nil
	}
	if err := release(of, rows, e.Key, ^uint64(0), e.At, out); err != nil {
		return nil, false, err
	}
	for i, b := range of {
		if e.Gone && rows[i] != nil {
			out.Put(b, e.Key, rows[i], nil)
			rows[i] = nil
		}
	}
	return rows, false, nil
}

// runs reports whether the route sent, or holds, an event of the object within its period.
func (b *Bucket) runs(row *Row, uid string, at time.Time) bool {
	return row != nil && row.UID == uid && (row.Sequence != 0 || at.Before(row.Start.Add(b.After)))
}

// Fire releases what a bucket, one of those of its sink, holds of an object and is due.
func Fire(of []*Bucket, b *Bucket, d Due, now time.Time, out Outlet) error {
	rows, err := rowsOf(of, d.Key, out)
	if err != nil {
		return err
	}
	row := rows[slices.Index(of, b)]
	switch {
	case row == nil: // or it is damaged
		out.Unlist(b, d)
		out.Put(b, d.Key, nil, nil)
	case !row.Start.Equal(d.Start):
		out.Unlist(b, d)
	case row.Sequence == 0:
		out.Put(b, d.Key, row, nil)
	default:
		return release(of, rows, d.Key, row.Sequence, now, out)
	}
	return nil
}

func rowsOf(of []*Bucket, key string, out Outlet) ([]*Row, error) {
	rows := make([]*Row, len(of))
	for i, b := range of {
		var err error
		if rows[i], err = out.Row(b, key); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// release gives a sink what its buckets hold of an object, up to a sequence, in the order
// of the log. The rows become those that remain.
func release(of []*Bucket, rows []*Row, key string, upTo uint64, at time.Time, out Outlet) error {
	for last := uint64(0); ; {
		next := -1
		for i, row := range rows {
			if row != nil && row.Sequence != 0 && row.Sequence <= upTo && (next < 0 || row.Sequence < rows[next].Sequence) {
				next = i
			}
		}
		if next < 0 {
			return nil
		}
		row := rows[next]
		remains, err := out.Release(of[next], key, row, row.Sequence == last, at)
		if err != nil {
			return err
		}
		last = row.Sequence
		out.Put(of[next], key, row, remains)
		rows[next] = remains
	}
}

// Match is what a route with a `for` finds of an object.
type Match struct {
	UID      string // of the object
	Version  string // of the object
	Matching string // of the route
	At       time.Time
	Met      bool // the object matches
	Blind    bool // an earlier match may have been broken meanwhile
}

// Judge returns the row that follows on one, and whether it is another one.
func (m *Match) Judge(row *Row) (next *Row, changed bool) {
	switch {
	case !m.Met:
		return nil, row != nil
	case !m.Blind && row != nil && row.UID == m.UID && row.Matching == m.Matching:
		return row, false
	}
	return &Row{Start: m.At, Armed: true, UID: m.UID, Version: m.Version, Matching: m.Matching}, true
}
