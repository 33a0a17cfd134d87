package retrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/event"
)

// Explanation is what the watches and routes of now make of a recorded event.
type Explanation struct {
	Sequence uint64           `json:"sequence"`
	ID       string           `json:"id"`
	Type     event.Type       `json:"type"`
	Subject  string           `json:"subject"`
	Time     time.Time        `json:"time"`
	Recorded []Recorded       `json:"recorded"` // the sinks that it was for then
	Watches  []WatchDecision  `json:"watches"`
	Routes   []route.Decision `json:"routes"`
	Holds    []Hold           `json:"holds"`          // what the routes hold of it now
	Note     string           `json:"note,omitempty"` // why no route is asked
}

// Recorded is a sink that an event was for when it was recorded.
type Recorded struct {
	Sink   string   `json:"sink"`
	Routes []string `json:"routes"`
	// Throttle is the period of the throttle through which the routes lead to the sink now: a
	// later event within it may have replaced this one. Not set: none did.
	Throttle string `json:"throttle,omitempty"`
}

// Hold is the event, held by a route for a sink, or, without a sink, the match of its object
// with a route that has a `for`.
type Hold struct {
	Route string    `json:"route"`
	Sink  string    `json:"sink,omitempty"`
	Since time.Time `json:"since"`        // when the period or the match began
	Due   time.Time `json:"due,omitzero"` // when it is delivered or reported; not set: the match was
}

// WatchVerdict is what a watch makes of a change.
type WatchVerdict string

// The verdicts. All but Covered name what keeps the watch from covering it.
const (
	Covered        WatchVerdict = "covered"
	OtherResources WatchVerdict = "resources"  // it watches other resources, or another version or selection of the API server
	OtherSpaces    WatchVerdict = "namespaces" // it watches other namespaces
	NotSelected    WatchVerdict = "selector"   // its selectors do not match
	NoSnapshot     WatchVerdict = "snapshot"   // it has no sync events
	Elsewhere      WatchVerdict = "watch"      // the gap is of another watch
)

// WatchDecision is the verdict of a watch.
type WatchDecision struct {
	Watch     string          `json:"watch"`
	Verdict   WatchVerdict    `json:"verdict"`
	Selection event.Selection `json:"selection,omitempty"`
}

// ErrNotFound means that the log does not have an event.
var ErrNotFound = errors.New("the history does not have the event")

// find returns a record by its sequence, or by the id of its event.
func (r *Reader) find(ctx context.Context, name string) (store.Item, error) {
	if sequence, err := strconv.ParseUint(name, 10, 64); err == nil && len(name) < idLen {
		item, ok, err := r.log.ReadRecord(sequence)
		if err == nil && !ok {
			err = fmt.Errorf("%w: no sequence %d", ErrNotFound, sequence)
		}
		return item, err
	}
	for after := uint64(0); ; {
		items, err := r.log.ReadLog(after, scanned)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil && len(items) == 0 {
			err = fmt.Errorf("%w: no id %s", ErrNotFound, name)
		}
		if err != nil {
			return store.Item{}, err
		}
		for i := range items {
			if record.HasID(items[i].Payload, name) {
				return items[i], nil
			}
		}
		after = items[len(items)-1].Sequence
	}
}

const (
	idLen   = 32  // of an event's id; no sequence has as many digits
	scanned = 256 // records that are read at once
)

// Explain returns what a configuration makes of an event, by its sequence or its id.
func (r *Reader) Explain(ctx context.Context, st *plan.State, watches *Watches, name string) (*Explanation, error) {
	item, err := r.find(ctx, name)
	if err != nil {
		return nil, err
	}
	rec, err := record.Decode(item.Payload)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", item.Sequence, err)
	}
	e := &rec.Event
	x := &Explanation{
		Sequence: item.Sequence, ID: e.ID, Type: e.Type, Subject: e.Subject(), Time: e.Time,
		Recorded: []Recorded{}, Watches: []WatchDecision{}, Routes: []route.Decision{}, Holds: []Hold{},
	}
	for _, t := range rec.Targets {
		x.Recorded = append(x.Recorded, Recorded{Sink: t.Sink, Routes: slices.AppendSeq([]string{}, t.RouteNames())})
	}
	if rec.Rerecorded {
		x.Note = "a state in the form that an edit gave it: no event, and for no sink"
		return x, nil
	}
	router, err := route.Compile(st.Routes) // with counts of its own
	if err != nil {
		return nil, err
	}
	c := &Change{Record: rec, Change: route.Change{ID: e.ID, Type: e.Type, Resource: e.Resource, Uncounted: true}}
	if e.Gap == nil {
		if c, err = r.Change(rec); err != nil {
			return nil, fmt.Errorf("event %d: %w", item.Sequence, err)
		}
	}
	for i := range watches.all {
		d := watches.decide(&watches.all[i], c)
		if x.Watches = append(x.Watches, d); d.Verdict == Covered {
			c.Watches = append(c.Watches, route.Hit{Watch: d.Watch, Selection: d.Selection})
		}
	}
	x.Routes = append(x.Routes, router.Decisions(&c.Change)...)
	if e.Gap == nil {
		x.Holds, err = r.holds(router, rec, item.Sequence)
	}
	for i := range x.Recorded {
		to := &x.Recorded[i]
		held := slices.ContainsFunc(x.Holds, func(h Hold) bool { return h.Sink == to.Sink })
		if period := replaceable(router, rec, &rec.Targets[i]); period > 0 && !held {
			to.Throttle = period.String()
		}
	}
	return x, err
}

// replaceable is the period in which a later event may have replaced one that was for a sink,
// 0 if none may: a route without a throttle led to it, or the event was not one that waits.
func replaceable(router *route.Router, rec *record.Record, to *record.Target) (period time.Duration) {
	e := &rec.Event
	if e.Gap != nil || e.Type == event.Added || e.Type == event.Deleted || to.Flags.Selection() == event.Left {
		return 0
	}
	throttled := 0
	for _, of := range router.Timers() {
		if of.Throttle > 0 && to.LedBy(of.Route) {
			period = max(period, of.Throttle)
			throttled++
		}
	}
	if throttled < to.RouteCount() {
		return 0
	}
	return period
}

// holds are what the routes hold of a record. What is damaged is left out.
func (r *Reader) holds(router *route.Router, rec *record.Record, sequence uint64) ([]Hold, error) {
	list, table := []Hold{}, timer.NewTable(r.log)
	look := func(route, sink, key string, after time.Duration, holds func(row *timer.Row) (reported, ok bool)) error {
		row, err := table.Row(&timer.Bucket{Name: timer.Name{Route: route, Sink: sink}}, key)
		if err != nil || row == nil {
			return ignoreDamage(err)
		}
		if reported, ok := holds(row); ok {
			h := Hold{Route: route, Sink: sink, Since: row.Start.UTC()}
			if !reported {
				h.Due = h.Since.Add(after)
			}
			list = append(list, h)
		}
		return nil
	}
	for _, of := range router.Timers() {
		if of.Throttle > 0 {
			for i := range of.Targets {
				if err := look(of.Route, of.Targets[i].Sink, rec.Event.PartitionKey(), of.Throttle, func(row *timer.Row) (_, ok bool) {
					return false, row.Sequence == sequence
				}); err != nil {
					return nil, err
				}
			}
		}
		if of.For > 0 {
			if err := look(of.Route, "", matchKey(rec), of.For, func(row *timer.Row) (reported, ok bool) {
				return !row.Armed, row.UID == rec.Event.UID && row.Matching == of.Matching
			}); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// decide is the verdict of a watch on a change.
func (w *Watches) decide(one *plan.Watch, c *Change) WatchDecision {
	d := WatchDecision{Watch: one.Name, Verdict: OtherResources}
	if g := c.Record.Event.Gap; g != nil {
		if d.Verdict = Elsewhere; g.Watch == one.Name {
			d.Verdict = Covered
		}
		return d
	}
	if !w.wants(one, groupResource(&c.Record.Event), c.Record.Scope) {
		return d
	}
	object := c.New
	if object == nil {
		object = c.Old
	}
	h := commit.NewWatchRef(one)
	s, ok := w.selection(&h, c)
	switch {
	case c.Type == event.Sync && !one.Snapshot:
		d.Verdict = NoSnapshot
	case ok:
		d.Verdict, d.Selection = Covered, s
	case !h.Reads(object.GetNamespace()) || one.Filter != nil && !one.Filter.MatchNamespace(object, w.labels):
		d.Verdict = OtherSpaces
	default:
		d.Verdict = NotSelected
	}
	return d
}

func routesOf(targets []record.Target) []string {
	names := []string{}
	for _, t := range targets {
		for name := range t.RouteNames() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
