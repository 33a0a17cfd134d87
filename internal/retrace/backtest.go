package retrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/body"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/event"
)

// Proposal is the part of a configuration that a backtest runs.
type Proposal struct {
	Watches []plan.Watch   `json:"watches"` // without compiled filters
	Routes  []route.Spec   `json:"routes"`
	Bodies  []ProposedBody `json:"bodies,omitempty"`
}

// ProposedBody is the body of a sink.
type ProposedBody struct {
	Sink        string `json:"sink"`
	Body        string `json:"body"`
	ContentType string `json:"contentType,omitempty"`
}

// ProposalOf is the part of a state that a backtest runs.
func ProposalOf(st *plan.State) Proposal {
	p := Proposal{Watches: slices.Clone(st.Watches), Routes: st.Routes}
	for i := range p.Watches {
		p.Watches[i].Filter = nil
	}
	for i := range st.Sinks {
		if b := st.Sinks[i].Body; b != nil {
			text, contentType := b.Source()
			p.Bodies = append(p.Bodies, ProposedBody{Sink: st.Sinks[i].Name, Body: text, ContentType: contentType})
		}
	}
	return p
}

// ErrProposal is wrapped by the errors of proposals that cannot be compiled.
var ErrProposal = errors.New("the configuration is not usable")

// State compiles the proposal.
func (p *Proposal) State() (*plan.State, error) {
	st := &plan.State{Watches: p.Watches, Routes: p.Routes}
	var faults []error
	for i := range st.Watches {
		var err error
		if st.Watches[i].Filter, err = st.Watches[i].Selection.Filter(); err != nil {
			faults = append(faults, fmt.Errorf("watch %s: %w", st.Watches[i].Name, err))
		}
	}
	names := map[string]bool{}
	for i := range st.Routes {
		name := st.Routes[i].Name
		if names[name] || strings.Contains(name, ",") {
			faults = append(faults, fmt.Errorf("route %q: another has the name, or it has a comma", name))
		}
		names[name] = true
	}
	for _, b := range p.Bodies {
		compiled, found := body.Compile(b.Body, b.ContentType)
		for _, f := range found {
			faults = append(faults, fmt.Errorf("body of sink %s: line %d, column %d: %s", b.Sink, f.Line, f.Column, f.Msg))
		}
		st.Sinks = append(st.Sinks, plan.Sink{Name: b.Sink, Body: compiled})
	}
	var err error
	if st.Router, err = route.Compile(st.Routes); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrProposal, errors.Join(faults...))
	}
	return st, nil
}

// Backtest is what the routes of a configuration would have made of a period.
type Backtest struct {
	From      time.Time   `json:"from,omitzero"` // of the first record that was looked at
	To        time.Time   `json:"to,omitzero"`   // of the last one
	Scanned   int         `json:"scanned"`
	Truncated bool        `json:"truncated,omitempty"` // a limit was reached: what is later was not looked at
	Gaps      int         `json:"gaps"`                // of the period: changes may be missing
	Damaged   int         `json:"damaged,omitempty"`   // records that cannot be read
	Overtaken bool        `json:"overtaken,omitempty"` // retention deleted records of the period before they were looked at
	Routes    []RouteTest `json:"routes"`
	Sinks     []SinkTest  `json:"sinks"`
}

// RouteTest is a route of the new configuration.
type RouteTest struct {
	Route      string   `json:"route"`
	Matches    uint64   `json:"matches"`
	PerHour    float64  `json:"perHour"`    // of the period, as far as it was looked at
	PeakMinute int      `json:"peakMinute"` // the most in one minute
	Filtered   uint64   `json:"filtered"`   // by when, including Missing
	Unchanged  uint64   `json:"unchanged"`
	Missing    uint64   `json:"missing"`
	Coalesced  int      `json:"coalesced"` // matches that throttle replaced by a later one, of all its sinks
	Errors     uint64   `json:"errors"`
	FirstError string   `json:"firstError,omitempty"`
	Samples    []Sample `json:"samples"` // the first ones

	minute time.Time
	inIt   int
}

// SinkTest compares what a sink would have been given with what the running configuration
// would have.
type SinkTest struct {
	Sink       string   `json:"sink"`
	Matches    int      `json:"matches"`
	Running    int      `json:"running"` // by the running configuration
	Added      int      `json:"added"`
	Lost       int      `json:"lost"`
	Gained     []Sample `json:"gained"` // the first of Added
	Missed     []Sample `json:"missed"` // and of Lost
	BodyErrors int      `json:"bodyErrors"`
	BodyNulls  int      `json:"bodyNulls"`           // events that the body leaves out
	BodyError  string   `json:"bodyError,omitempty"` // the first one; not of routes with drop or redact
	Body       string   `json:"body,omitempty"`      // the first one, shortened; as above
}

// Sample is an event.
type Sample struct {
	Sequence uint64     `json:"sequence"`
	Time     time.Time  `json:"time"`
	Type     event.Type `json:"type"`
	Subject  string     `json:"subject"`
}

// The bounds of a backtest.
const (
	maxSamples  = 5
	maxBodyText = 2 << 10
	maxRecords  = 5_000_000
	maxTime     = 10 * time.Minute
	maxHeld     = 500_000 // rows and timers of both configurations

	workSlice = 50 * time.Millisecond // of work, before as long a pause
)

// Rehearse runs a configuration over the records from one time to another, and compares it
// with the running one. It works half of the time at most. progress is called with the
// number of records so far.
func (r *Reader) Rehearse(ctx context.Context, now, next *plan.State, watches, proposed *Watches, from, to time.Time, progress func(int)) (*Backtest, error) {
	running, err := route.Compile(now.Routes) // with counts of its own
	if err != nil {
		return nil, err
	}
	t := &rehearsal{Reader: r, next: next, open: map[offer]*comparison{}}
	t.sides = [2]*side{newSide(t, 0, running, watches), newSide(t, 1, next.Router, proposed)}
	t.Routes, t.Sinks = []RouteTest{}, []SinkTest{}
	for _, spec := range next.Routes {
		t.Routes = append(t.Routes, RouteTest{Route: spec.Name, Samples: []Sample{}})
	}
	began, slice := time.Now(), time.Now()
	outside := false // of the period, as the clock may have been set back; what cannot be read is where the record before is
	after := max(r.log.SequenceAt(from), 1) - 1
	if after >= r.log.LogStats().First { // the log has earlier ones
		t.since = from
	}
	for {
		items, err := r.log.ReadLog(after, scanned)
		if err != nil {
			return nil, err
		}
		t.Overtaken = t.Overtaken || r.log.LogStats().First > after+1 && (len(items) == 0 || items[0].Sequence > after+1)
		if len(items) == 0 {
			break
		}
		for i := range items {
			it := &items[i]
			after = it.Sequence
			if !it.Unreadable {
				early := it.Time.Before(from)
				if outside = early || !to.IsZero() && it.Time.After(to); early {
					t.since = from
				}
			}
			if t.Scanned == maxRecords || time.Since(began) > maxTime || t.sides[0].size()+t.sides[1].size() > maxHeld {
				t.Truncated = true
				return t.report(t.To)
			}
			if !outside {
				if err := t.take(it); err != nil {
					return nil, err
				}
			}
			if time.Since(slice) < workSlice {
				continue
			}
			progress(t.Scanned)
			if err := wait.For(ctx, workSlice); err != nil {
				return nil, err
			}
			slice = time.Now()
		}
	}
	if to.IsZero() {
		to = time.Now()
	}
	b, err := t.report(to)
	return b, errors.Join(err, context.Cause(ctx))
}

// rehearsal is a backtest under way.
type rehearsal struct {
	Backtest
	*Reader
	next  *plan.State
	sides [2]*side  // of the running configuration, and of the new one
	since time.Time // the begin of the period, if the log reaches back to it
	open  map[offer]*comparison
}

// offer is an event for a sink.
type offer struct{ sink, id string }

// comparison is what both configurations make of an offer.
type comparison struct {
	Sample
	by [2]outcome
}

type outcome int

const (
	notGiven outcome = iota
	waiting          // a throttle holds it, or a match may still last
	given
)

// take runs both configurations over a record.
func (t *rehearsal) take(it *store.Item) error {
	t.Scanned++
	rec, err := record.Decode(it.Payload)
	if err != nil {
		t.Damaged++
		return nil //nolint:nilerr // counted
	}
	if t.From.IsZero() {
		t.From = rec.Event.Time
	}
	if rec.Event.Time.After(t.To) {
		t.To = rec.Event.Time
	}
	switch {
	case rec.Event.Gap != nil && rec.Event.Gap.Cause == record.CauseRemoved: // of a sink
		return nil
	case rec.Event.Gap != nil:
		t.Gaps++
		if record.OfHistory(rec.Event.Gap.Cause) {
			return nil // the matches of the routes are not broken
		}
		for _, s := range t.sides {
			s.gaps[part{groupResource(&rec.Event), rec.Scope}] = it.Sequence
		}
		return nil
	case rec.Event.For != nil, // the routes of now find the matches again
		rec.Rerecorded, rec.Event.Type == event.Sync && !rec.State, len(t.sides[0].watches.of(rec))+len(t.sides[1].watches.of(rec)) == 0:
		return nil
	}
	c, err := t.Change(rec)
	if err != nil {
		t.Damaged++
		return ignoreDamage(err)
	}
	var by [2]map[string]outcome
	for i, s := range t.sides {
		if err := s.advance(c.Time); err != nil {
			return err
		}
		if by[i], err = s.take(it.Sequence, c); err != nil {
			return err
		}
	}
	if len(by[0])+len(by[1]) == 0 {
		return nil
	}
	sample := Sample{Sequence: it.Sequence, Time: rec.Event.Time, Type: rec.Event.Type, Subject: rec.Event.Subject()}
	t.count(routesOf(t.sides[1].targets), &sample)
	for i := range by {
		for sink := range by[i] {
			if i == 1 && by[0][sink] != notGiven {
				continue // compared
			}
			t.compare(offer{sink, c.ID}, &comparison{sample, [2]outcome{by[0][sink], by[1][sink]}})
		}
	}
	return nil
}

func (t *rehearsal) count(routes []string, s *Sample) {
	for _, name := range routes {
		i := slices.IndexFunc(t.Routes, func(r RouteTest) bool { return r.Route == name })
		t.Routes[i].count(s)
	}
}

// replaced notes that a later event replaced one that a route held.
func (t *rehearsal) replaced(by *side, name string) {
	if by == t.sides[1] {
		i := slices.IndexFunc(t.Routes, func(r RouteTest) bool { return r.Route == name })
		t.Routes[i].Coalesced++
	}
}

// lasted notes that one side reports a match, which the other one may have reported, or report
// later.
func (t *rehearsal) lasted(by *side, l *lasting, key string, what occurrence, e *event.Event, to map[string]outcome) {
	sample := Sample{Sequence: what.sequence, Time: what.at, Type: event.Updated, Subject: e.Subject()}
	if by == t.sides[1] {
		t.count([]string{l.Route}, &sample)
	}
	for sink, is := range to {
		o := offer{sink, what.id}
		c := t.open[o]
		if c == nil {
			c = &comparison{Sample: sample}
			if t.sides[1-by.is].expects(l.Route, key, what.id, sink) {
				c.by[1-by.is] = waiting
			}
		}
		c.by[by.is] = is
		t.compare(o, c)
	}
}

// settle notes the outcome of an offer that waited.
func (t *rehearsal) settle(by *side, sink, id string, is outcome) {
	o := offer{sink, id}
	if c := t.open[o]; c != nil && c.by[by.is] == waiting {
		c.by[by.is] = is
		t.compare(o, c)
	}
}

// compare counts an offer, once it waits no more.
func (t *rehearsal) compare(o offer, c *comparison) {
	if c.by[0] == waiting || c.by[1] == waiting {
		t.open[o] = c
		return
	}
	delete(t.open, o)
	s := t.sink(o.sink)
	if c.by[0] == given {
		if s.Running++; c.by[1] != given {
			s.Lost++
			s.Missed = keep(s.Missed, &c.Sample)
		}
	}
	if c.by[1] == given {
		if s.Matches++; c.by[0] != given {
			s.Added++
			s.Gained = keep(s.Gained, &c.Sample)
		}
	}
}

func (r *RouteTest) count(s *Sample) {
	r.Samples = keep(r.Samples, s)
	if minute := s.Time.Truncate(time.Minute); !minute.Equal(r.minute) {
		r.minute, r.inIt = minute, 0
	}
	r.inIt++
	r.PeakMinute = max(r.PeakMinute, r.inIt)
}

func keep(list []Sample, s *Sample) []Sample {
	if len(list) < maxSamples {
		list = append(list, *s)
	}
	return list
}

// sink is the test of a sink. The pointer is valid until the next call.
func (t *rehearsal) sink(name string) *SinkTest {
	i := slices.IndexFunc(t.Sinks, func(s SinkTest) bool { return s.Sink == name })
	if i < 0 {
		i = len(t.Sinks)
		t.Sinks = append(t.Sinks, SinkTest{Sink: name, Gained: []Sample{}, Missed: []Sample{}})
	}
	return &t.Sinks[i]
}

// again reads a change again; it is nil if it cannot be read any more.
func (t *rehearsal) again(sequence uint64) (*Change, error) {
	it, ok, err := t.log.ReadRecord(sequence)
	if err != nil || !ok {
		return nil, ignoreDamage(err)
	}
	r, err := record.Decode(it.Payload)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // it was counted
	}
	c, err := t.Change(r)
	return c, ignoreDamage(err)
}

// body is that of a sink in the new configuration, nil if a side or sink has none.
func (t *rehearsal) body(by *side, sink string) *body.Body {
	if of := t.next.Sink(sink); by == t.sides[1] && of != nil {
		return of.Body
	}
	return nil
}

// release makes the body of an event that was held, for a sink that was given the event at
// another sequence before.
func (t *rehearsal) release(by *side, h *held) error {
	if t.body(by, h.target.Sink) == nil {
		return nil
	}
	c, err := t.again(h.is.sequence)
	if err != nil || c == nil {
		return err
	}
	before, err := t.again(h.sent)
	if err != nil {
		return err
	}
	c.asOf(h.is, before, h.coalesced)
	return t.render(by, h.is.sequence, c, h.target)
}

// render makes the body of an event that the new configuration gives a sink.
func (t *rehearsal) render(by *side, sequence uint64, c *Change, to record.Target) error {
	of := t.body(by, to.Sink)
	if of == nil {
		return nil
	}
	to.Flags |= of.Reads()
	own, err := payload(c, to, false)
	if err == nil && own == nil {
		own, err = record.Append(nil, c.Record)
	}
	if err != nil {
		return err
	}
	e, err := t.inflater.Event(sequence, to.Flags, own, "")
	if err != nil {
		return ignoreDamage(err)
	}
	s := t.sink(to.Sink)
	hides := slices.ContainsFunc(t.next.Routes, func(spec route.Spec) bool {
		return to.LedBy(spec.Name) && len(spec.Drop)+len(spec.Redact) > 0
	})
	send, err := of.Render(e)
	switch {
	case err != nil:
		if s.BodyErrors++; s.BodyError == "" && !hides {
			s.BodyError = err.Error()
		}
	case !send:
		s.BodyNulls++
	case s.Body == "" && !hides:
		s.Body = strings.ToValidUTF8(string(e.Body[:min(len(e.Body), maxBodyText)]), "")
	}
	return nil
}

// report lets the time pass until the end, and completes the result.
func (t *rehearsal) report(end time.Time) (*Backtest, error) {
	for _, s := range t.sides {
		if err := errors.Join(s.advance(end), s.end(end)); err != nil {
			return nil, err
		}
	}
	if t.since.IsZero() {
		t.since = t.From
	}
	hours := max(end.Sub(t.since), t.To.Sub(t.From), time.Minute).Hours()
	for i, s := range t.next.Router.Stats() {
		r := &t.Routes[i]
		r.Matches, r.Filtered, r.Unchanged, r.Missing, r.Errors = s.Matched, s.Filtered, s.Unchanged, s.Missing, s.Errors
		if r.PerHour = float64(s.Matched) / hours; s.FirstError != nil {
			r.FirstError = s.FirstError.Error()
		}
	}
	slices.SortFunc(t.Sinks, func(a, b SinkTest) int { return strings.Compare(a.Sink, b.Sink) })
	return &t.Backtest, nil
}
