package route

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/event"
)

// Spec is one route as configured. Empty lists mean "all"; an empty Payload means
// the object.
type Spec struct {
	Name      string
	Watches   []string
	Resources []string     // patterns, see [selector.Resource]
	Events    []event.Type // none: all, with Changed all but Sync
	When      string       // a CEL expression; empty is true
	Changed   []string     // paths in the syntax of rawjson.ParsePath, or Meaningful alone
	Sample    float64      // share of the changes, by a hash of their IDs; 0: all
	Metric    *Metric      // counts the changes; nil: none
	Drop      []string     // paths removed for the route's sinks
	Redact    []string     // paths hashed for the route's sinks
	Payload   []string     // object, oldObject, patch, summary
	Enrich    []string     // owner, involvedObject
	Bodies    []Reads      // what sinks of the route read in addition to Payload
	Sinks     []string
	OnError   OnError
	Throttle  time.Duration // per object and sink, between two events; 0: none
	For       time.Duration // how long an object matches before it is an event; 0: every change that matches is one
}

// Reads are the parts of an event that the body of a sink reads.
type Reads struct {
	Sink  string
	Parts record.Flags
}

// Matching identifies the changes that the route takes. It is equal for routes that
// differ only in payload, enrichment, edits, metric, sinks and the times of throttle and for.
func (s Spec) Matching() string {
	s.Name, s.Payload, s.Bodies, s.Sinks, s.Drop, s.Redact, s.Metric, s.Enrich = "", nil, nil, nil, nil, nil, nil, nil
	s.Throttle, s.For = 0, min(s.For, 1)
	text, err := json.Marshal(s)
	if err != nil { // strings always marshal
		panic(fmt.Sprintf("route: marshal a spec: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// OnError is the policy for an event on which a route's expression fails.
type OnError string

// The policies. A failure is a missing key, field or item, a limit, a type, a conversion.
const (
	OnErrorDrop OnError = "drop" // no match; the default
	OnErrorPass OnError = "pass" // match
)

// SpecError is a fault in a Spec. Several are joined with errors.Join.
type SpecError struct {
	Index int    // of the Spec among those compiled
	Route string // its name
	Path  string // key within the route, for example `events[1]` or `when`
	Msg   string

	// Line and Column place the fault within a `when`, counted from 1 (columns in
	// characters); 0 elsewhere.
	Line, Column int
}

func (e *SpecError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("route %q: %s: %s", e.Route, e.Path, e.Msg)
	}
	return fmt.Sprintf("route %q: %s: line %d, column %d: %s", e.Route, e.Path, e.Line, e.Column, e.Msg)
}

// Parts are the parts of an event that the route selects. The error names the first of
// Payload that is none, by its index.
func (s *Spec) Parts() (parts record.Flags, unknown int, err error) {
	if len(s.Payload) == 0 {
		return record.Object, 0, nil
	}
	for i, name := range s.Payload {
		part, ok := record.Part(name)
		if !ok {
			return parts, i, fmt.Errorf("%q is not object, oldObject, patch or summary", name)
		}
		parts |= part
	}
	return parts, 0, nil
}

// PartsFor are the parts of an event that the route gives a sink: those that it selects,
// and those that the sink's body reads.
func (s *Spec) PartsFor(sink string) record.Flags {
	parts, _, _ := s.Parts()
	for _, name := range s.Enrich {
		switch name {
		case "owner":
			parts |= record.Owner
		case "involvedObject":
			parts |= record.InvolvedObject
		}
	}
	for _, r := range s.Bodies {
		if r.Sink == sink {
			parts |= r.Parts
		}
	}
	return parts
}

// eventSet is a set of event types that a route can name. Gaps are not routed by type:
// a gap goes to every sink of its watch and resource.
type eventSet uint8

const allEvents eventSet = 1<<4 - 1

func eventBit(t event.Type) eventSet {
	switch t {
	case event.Added:
		return 1
	case event.Updated:
		return 2
	case event.Deleted:
		return 4
	case event.Sync:
		return 8
	}
	return 0
}

func parseEvents(names []event.Type, fault func(i int, msg string)) eventSet {
	if len(names) == 0 {
		return allEvents
	}
	var s eventSet
	for i, t := range names {
		bit := eventBit(t)
		if bit == 0 {
			fault(i, fmt.Sprintf("%q is not added, updated, deleted or sync", string(t)))
		}
		s |= bit
	}
	return s
}

type rule struct {
	name      string
	watches   []string // none: all
	resources []selector.Resource
	events    eventSet
	when      *condition // nil: true
	changed   []changedPath
	nonChurn  bool           // an update must change more than churn
	sample    uint64         // hashes below it are taken; 0: all
	metric    *metric        // nil: none
	sinks     []int          // positions in the router's table
	parts     []record.Flags // of each of sinks
	onError   OnError
	lasting   bool // for is set

	spec     Spec
	counters *counters
}

// compileRule compiles a Spec and passes every fault to fault.
func compileRule(s *Spec, x *expressions, fault func(SpecError)) *rule {
	at := func(key string) func(i int, msg string) {
		return func(i int, msg string) { fault(SpecError{Path: fmt.Sprintf("%s[%d]", key, i), Msg: msg}) }
	}
	r := &rule{
		name:     s.Name,
		watches:  slices.Clone(s.Watches),
		events:   parseEvents(s.Events, at("events")),
		onError:  s.OnError,
		lasting:  s.For > 0,
		spec:     *s,
		counters: &counters{fields: make([]fieldUse, len(s.Changed)+1)},
	}
	if r.lasting {
		if len(s.Events) > 0 {
			fault(SpecError{Path: "events", Msg: "a route with for is about the states of objects and takes no events"})
		}
		if len(s.Changed) > 0 {
			fault(SpecError{Path: "changed", Msg: "a route with for is about the states of objects and takes no changed"})
		}
		if s.When == "" {
			fault(SpecError{Path: "for", Msg: "needs a when: the condition that an object meets for that long"})
		}
	}
	if _, i, err := s.Parts(); err != nil {
		at("payload")(i, err.Error())
	}
	for i, pattern := range s.Resources {
		p, err := selector.ParseResource(pattern)
		if err != nil {
			at("resources")(i, err.Error())
		}
		r.resources = append(r.resources, p)
	}
	if len(s.Changed) > 0 && len(s.Events) == 0 {
		r.events &^= eventBit(event.Sync)
	}
	r.nonChurn = slices.Contains(s.Changed, Meaningful)
	for i, path := range s.Changed {
		if r.nonChurn {
			if path != Meaningful {
				at("changed")(i, "meaningful excludes paths")
			}
			continue
		}
		p, err := parseChanged(path)
		if err != nil {
			at("changed")(i, err.Error())
		}
		r.changed = append(r.changed, p)
	}
	if s.When != "" {
		when, faults := x.compile(s.When, isCondition)
		for _, f := range faults {
			fault(SpecError{Path: "when", Msg: f.Msg, Line: f.Line, Column: f.Column})
		}
		if r.lasting && when != nil && when.ofChange != "" {
			fault(SpecError{Path: "when", Msg: "with for it is about the state of an object and cannot read " + when.ofChange})
		}
		r.when = when
	}
	if s.Sample > 0 && s.Sample < 1 {
		r.sample = max(uint64(s.Sample*(1<<32)), 1)
	}
	if s.Metric != nil {
		r.metric = compileMetric(s.Metric, x, func(label string, f celexpr.Fault) {
			fault(SpecError{Path: "metric.labels." + label, Msg: f.Msg, Line: f.Line, Column: f.Column})
		})
	}
	switch s.OnError {
	case "", OnErrorDrop, OnErrorPass:
	default:
		fault(SpecError{Path: "onError", Msg: fmt.Sprintf("%q is not drop or pass", string(s.OnError))})
	}
	if len(s.Sinks) == 0 {
		fault(SpecError{Path: "sinks", Msg: "a route needs at least one sink"})
	}
	return r
}

// covers reports whether the rule takes changes of a resource.
func (r *rule) covers(res event.Resource) bool {
	return len(r.resources) == 0 || slices.ContainsFunc(r.resources, func(p selector.Resource) bool { return p.Matches(res) })
}

func (r *rule) takes(watch string) bool {
	return len(r.watches) == 0 || slices.Contains(r.watches, watch)
}

// selection returns the object's relation to the selections of the hit watches that the
// rule takes. ok is false if it takes none of them.
func (r *rule) selection(hits []Hit) (s event.Selection, ok bool) {
	for _, h := range hits {
		switch {
		case !r.takes(h.Watch):
		case !ok:
			s, ok = h.Selection, true
		default:
			s = mergeSelections(s, h.Selection)
		}
	}
	return s, ok
}

// unchanged reports whether the values at all `changed` paths are equal before and
// after, or only churn is not. Additions and deletions have nothing to compare. For the receiver, an object
// that enters or leaves a selection is added or deleted.
func (r *Router) unchanged(rule *rule, e *evaluation, s event.Selection) (bool, error) {
	if len(rule.changed) == 0 && !rule.nonChurn || e.oldObject.Source() == nil || s == event.Entered || s == event.Left {
		return false, nil
	}
	before, err := e.oldObject.Body()
	if err != nil {
		return false, err
	}
	after, err := e.object.Body()
	if err != nil {
		return false, err
	}
	if rule.nonChurn {
		if e.churn == nil {
			e.churn = new(onlyChurn(e.change.Resource, before, after))
		}
		return *e.churn, nil
	}
	r.notice(rule, before, after)
	return !slices.ContainsFunc(rule.changed, func(p changedPath) bool { return p.differs(before, after) }), nil
}

// notice counts the paths of `changed` that no update has had so far.
func (r *Router) notice(rule *rule, before, after *celjson.Object) {
	for i, p := range rule.changed {
		f := &rule.counters.fields[i]
		switch {
		case f.Skip():
		case p.in(after) || p.in(before):
			f.Have()
		case f.Lack():
			r.unseen(rule, "changed", p.text, f)
		}
	}
}

// sampled reports whether a change is in the rule's sample. IDs are hashes, in
// hexadecimal.
func (r *rule) sampled(id string) bool {
	if r.sample == 0 {
		return true
	}
	hash, err := strconv.ParseUint(id[:min(8, len(id))], 16, 64)
	return err != nil || hash < r.sample
}
