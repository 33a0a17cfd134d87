package route

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/event"
)

// Router decides which sinks a change goes to. It is safe for concurrent use.
type Router struct {
	rules []*rule
	sinks []string // every sink named by a rule, once

	timers []Timer

	onError  func(route string, err error)
	onUnseen func(Unseen)

	evaluations sync.Pool // of *evaluation

	// index caches the rules that a watch and resource can match. Most routers have
	// many rules, of which few concern a change. The map is replaced, never modified; mu
	// guards the replacement.
	index atomic.Pointer[map[indexKey][]*rule]
	mu    sync.Mutex
}

type indexKey struct {
	watch    string
	resource event.Resource
}

// Compile compiles the specs. Its error joins a *SpecError for every fault of every
// spec. Names of watches and sinks are not checked.
func Compile(specs []Spec) (*Router, error) {
	x, err := ordinary()
	if err != nil {
		return nil, err
	}
	r := &Router{evaluations: sync.Pool{New: func() any { return newEvaluation(x.views) }}}
	var faults []error
	positions := make(map[string]int)
	for i := range specs {
		s := &specs[i]
		rule := compileRule(s, x, func(e SpecError) {
			e.Index, e.Route = i, s.Name
			faults = append(faults, &e)
		})
		for _, sink := range s.Sinks {
			at, known := positions[sink]
			if !known {
				at = len(r.sinks)
				positions[sink] = at
				r.sinks = append(r.sinks, sink)
			}
			if !slices.Contains(rule.sinks, at) {
				rule.sinks = append(rule.sinks, at)
				rule.parts = append(rule.parts, s.PartsFor(sink))
			}
		}
		r.rules = append(r.rules, rule)
		if s.Throttle > 0 || s.For > 0 {
			t := Timer{Route: s.Name, Throttle: s.Throttle, For: s.For, Matching: s.Matching(), router: r, rule: rule}
			for i, sink := range rule.sinks {
				t.Targets = append(t.Targets, record.Target{Sink: r.sinks[sink], Flags: rule.parts[i], Routes: s.Name})
			}
			r.timers = append(r.timers, t)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	r.index.Store(&map[indexKey][]*rule{})
	return r, nil
}

// OnError sets the function that receives, once per route, the first failure of its
// expressions other than a missing field, and [ErrSeries]. It is called within Route and must be set
// before the first call.
func (r *Router) OnError(f func(route string, err error)) { r.onError = f }

// OnUnseen sets the function that receives, once for each, the fields that many changes
// lack and none has had. It is called within Route and must be set before the first call.
func (r *Router) OnUnseen(f func(Unseen)) { r.onUnseen = f }

// Read is a path of a value that an expression of a route reads.
type Read struct {
	Key  string // of the expression in the route: `when`, `metric.labels.team`
	Path string
}

// Reads returns the values without which the expressions of a route, by its position among
// those compiled, fail. It is not complete.
func (r *Router) Reads(i int) (list []Read) {
	add := func(key string, c *condition) {
		if c != nil {
			for _, path := range c.reads {
				list = append(list, Read{key, path})
			}
		}
	}
	add("when", r.rules[i].when)
	if m := r.rules[i].metric; m != nil {
		for j, label := range m.labels {
			add("metric.labels."+label, m.values[j])
		}
	}
	return list
}

// Stats returns the counts of every route in the order compiled.
func (r *Router) Stats() []Stats {
	out := make([]Stats, len(r.rules))
	for i, rule := range r.rules {
		out[i] = rule.counters.read(rule.name)
		if rule.metric != nil {
			out[i].EmptyLabels = rule.metric.empty()
		}
	}
	return out
}

// Route appends a target for every sink that gets the change, in the order of the
// routes, and returns the extended slice. Its flags are the union over the sink's matching
// routes. It does not retain the change.
func (r *Router) Route(dst []record.Target, c *Change) []record.Target {
	candidates := r.candidates(c)
	if len(candidates) == 0 {
		return dst
	}
	e := r.evaluations.Get().(*evaluation)
	e.reset(c, len(r.sinks))
	first := len(dst)
	for _, rule := range candidates {
		if rule.lasting && c.Lasted == nil {
			if s, ok := rule.selection(c.Watches); ok {
				c.Matches = append(c.Matches, r.matchState(rule, e, s))
			}
			continue
		}
		s, v, _ := r.decide(rule, e)
		if v != Taken {
			continue
		}
		rule.counters.matched.Add(1)
		if rule.metric != nil && !c.Uncounted {
			r.count(rule, e)
		}
		for i, sink := range rule.sinks {
			at := e.targets[sink]
			if at == 0 {
				dst = append(dst, record.Target{Sink: r.sinks[sink], Flags: rule.parts[i].WithSelection(s), Routes: rule.name})
				e.targets[sink] = len(dst) - first
				continue
			}
			t := &dst[first+at-1]
			t.Routes += "," + rule.name
			t.Flags = (t.Flags | rule.parts[i]).WithSelection(mergeSelections(t.Flags.Selection(), s))
		}
	}
	e.release()
	r.evaluations.Put(e)
	return dst
}

func (r *Router) matchState(rule *rule, e *evaluation, s event.Selection) MatchState {
	met := e.change.Type != event.Deleted && s != event.Left
	if met && rule.when != nil {
		v, _ := r.evaluate(rule, e)
		met = v == Taken
	}
	return MatchState{rule.name, met}
}

// Judge sets the Matches of a state, and routes nothing.
func (r *Router) Judge(c *Change) {
	e := r.evaluations.Get().(*evaluation)
	e.reset(c, len(r.sinks))
	for _, rule := range r.candidates(c) {
		if s, ok := rule.selection(c.Watches); ok && rule.lasting {
			c.Matches = append(c.Matches, r.matchState(rule, e, s))
		}
	}
	e.release()
	r.evaluations.Put(e)
}

// Timer is what a route does in time rather than at once.
type Timer struct {
	Route    string
	Throttle time.Duration
	For      time.Duration
	Matching string          // see [Spec.Matching]
	Targets  []record.Target // the sinks of the route

	router *Router
	rule   *rule
}

// Takes reports whether the route takes a match that has lasted, by the ID of its event, and
// counts it.
func (t *Timer) Takes(c *Change) bool {
	if !t.rule.sampled(c.ID) {
		t.rule.counters.unsampled.Add(1)
		return false
	}
	t.rule.counters.matched.Add(1)
	if t.rule.metric != nil && !c.Uncounted {
		e := t.router.evaluations.Get().(*evaluation)
		e.reset(c, len(t.router.sinks))
		t.router.count(t.rule, e)
		e.release()
		t.router.evaluations.Put(e)
	}
	return true
}

// Timers are those of the routes that have a throttle or a for.
func (r *Router) Timers() []Timer { return r.timers }

// Verdict is what a route makes of a change.
type Verdict string

// The verdicts. All but Taken name what kept the route from taking it.
const (
	Taken          Verdict = "taken"
	OtherResources Verdict = "resources" // it takes other resources
	OtherWatches   Verdict = "watches"   // it takes from none of the watches that the change concerns
	OtherEvents    Verdict = "events"    // it takes other types of events
	Unchanged      Verdict = "changed"   // no value of `changed` differs
	Filtered       Verdict = "when"      // the expression is false
	Missing        Verdict = "missing"   // the expression reads what is not there
	Failed         Verdict = "error"     // the expression fails otherwise
	Unsampled      Verdict = "sample"    // it is outside of the sample
	Lasting        Verdict = "for"       // it takes what has matched for some time, not changes
)

// Decision is the verdict of a route.
type Decision struct {
	Route   string   `json:"route"`
	Verdict Verdict  `json:"verdict"`
	Error   string   `json:"error,omitempty"` // of the expression; an event may be taken nevertheless, see onError
	Sinks   []string `json:"sinks"`
}

// Decisions are the verdicts of all routes on a change. They count in Stats.
func (r *Router) Decisions(c *Change) []Decision {
	e := r.evaluations.Get().(*evaluation)
	e.reset(c, len(r.sinks))
	defer func() {
		e.release()
		r.evaluations.Put(e)
	}()
	list := make([]Decision, len(r.rules))
	for i, rule := range r.rules {
		d := Decision{Route: rule.name, Verdict: OtherResources, Sinks: []string{}}
		for _, at := range rule.sinks {
			d.Sinks = append(d.Sinks, r.sinks[at])
		}
		switch {
		case !rule.covers(c.Resource):
		case c.Type == event.Gap: // of the routes that take from its watch
			d.Verdict = OtherWatches
			if _, ok := rule.selection(c.Watches); ok {
				d.Verdict = Taken
			}
		default:
			var err error
			if _, d.Verdict, err = r.decide(rule, e); err != nil {
				d.Error = err.Error()
			}
		}
		list[i] = d
	}
	return list
}

// Sinks appends every sink that a change of the watch's resource can reach: the sinks
// of a gap.
func (r *Router) Sinks(dst []string, watch string, res event.Resource) []string {
	first := len(dst)
	for _, rule := range r.lookup(indexKey{watch, res}) {
		for _, sink := range rule.sinks {
			if name := r.sinks[sink]; !slices.Contains(dst[first:], name) {
				dst = append(dst, name)
			}
		}
	}
	return dst
}

// candidates returns the rules that may match, by resource and, if the change concerns a
// single watch, by watch.
func (r *Router) candidates(c *Change) []*rule {
	switch len(c.Watches) {
	case 0:
		return nil
	case 1:
		return r.lookup(indexKey{c.Watches[0].Watch, c.Resource})
	}
	return r.lookup(indexKey{"", c.Resource})
}

func (r *Router) lookup(k indexKey) []*rule {
	if rules, ok := (*r.index.Load())[k]; ok {
		return rules
	}
	var rules []*rule
	for _, rule := range r.rules {
		if (k.watch == "" || rule.takes(k.watch)) && rule.covers(k.resource) {
			rules = append(rules, rule)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := maps.Clone(*r.index.Load())
	next[k] = rules
	r.index.Store(&next)
	return rules
}

// decide runs a rule's tests, the cheap ones first. The error is of a failed test; the rule
// may take the change nevertheless.
func (r *Router) decide(rule *rule, e *evaluation) (s event.Selection, v Verdict, err error) {
	s, ok := rule.selection(e.change.Watches)
	switch {
	case !ok:
		return s, OtherWatches, nil
	case rule.lasting && !slices.Contains(e.change.Lasted, rule.name):
		return s, Lasting, nil
	case rule.lasting:
		v, err = r.evaluate(rule, e)
		return s, v, err
	case e.change.Lasted != nil, rule.events&eventBit(e.change.Type) == 0:
		return s, OtherEvents, nil
	}
	if !rule.sampled(e.change.ID) {
		rule.counters.unsampled.Add(1)
		return s, Unsampled, nil
	}
	if rule.when != nil && !rule.when.inflate {
		if v, err = r.evaluate(rule, e); v != Taken {
			return s, v, err
		}
	}
	switch same, failure := r.unchanged(rule, e, s); {
	case failure != nil:
		err = fmt.Errorf("changed: %w", failure)
		r.failed(rule, err)
	case same:
		rule.counters.unchanged.Add(1)
		return s, Unchanged, nil
	}
	if rule.when != nil && rule.when.inflate {
		v, failure := r.evaluate(rule, e)
		return s, v, errors.Join(err, failure)
	}
	return s, Taken, err
}

// evaluate evaluates a rule's expression and applies its OnError policy.
func (r *Router) evaluate(rule *rule, e *evaluation) (Verdict, error) {
	match, missing, err := rule.when.eval(e)
	v, read := Taken, &rule.counters.fields[len(rule.changed)]
	if !missing {
		read.Have()
	}
	switch {
	case missing:
		rule.counters.missing.Add(1)
		if read.Lack() {
			r.unseen(rule, "when", err.Error(), read)
		}
		v = Missing
	case err != nil:
		r.failed(rule, err)
		v = Failed
	case !match:
		v = Filtered
	}
	if v == Filtered || v != Taken && rule.onError != OnErrorPass {
		rule.counters.filtered.Add(1)
		return v, err
	}
	return Taken, err
}

func (r *Router) failed(rule *rule, err error) {
	rule.counters.errors.Add(1)
	if rule.counters.first.CompareAndSwap(nil, &err) && r.onError != nil {
		r.onError(rule.name, err)
	}
}

// Withhold removes what the counts quote of objects: the texts of errors, and the series of
// metrics with labels, which begin again.
func (r *Router) Withhold() {
	for _, rule := range r.rules {
		rule.counters.first.Store(nil)
		if read := &rule.counters.fields[len(rule.changed)]; read.text.Load() != nil { // a key may be a value of an object
			read.text.Store(&Unseen{rule.name, "when", "what it reads, of which the name is withheld", unseen.Enough})
		}
		if m := rule.metric; m != nil && len(m.labels) > 0 {
			m.counts.clear()
		}
	}
}

// Stats are a route's counts since it was compiled.
type Stats struct {
	Route     string
	Matched   uint64 // changes forwarded
	Filtered  uint64 // changes that the expression rejected, including Missing
	Unchanged uint64 // updates without a difference at the `changed` paths
	Unsampled uint64 // changes outside of the sample, which no other test has seen
	Missing   uint64 // evaluations that read a missing key, field or item
	Errors    uint64 // evaluations that failed otherwise

	FirstError error // the first of Errors, nil if there is none, or it is withheld

	EmptyLabels []string // those of the metric that were empty on every change

	Unseen []Unseen // fields that were on none of many changes
}

// Unseen is a field that no change has had since the route was compiled: its name may
// be a mistake.
type Unseen struct {
	Route   string
	Key     string // changed or when
	Field   string // the path, or the error of the evaluation
	Changes uint64
}

// fieldUse is what is known of a path of `changed`, or of what `when` reads.
type fieldUse struct {
	unseen.Name
	text atomic.Pointer[Unseen]
}

// unseen reports a field that no change has had.
func (r *Router) unseen(rule *rule, key, text string, f *fieldUse) {
	u := &Unseen{rule.name, key, text, unseen.Enough}
	f.text.Store(u)
	if r.onUnseen != nil {
		r.onUnseen(*u)
	}
}

type counters struct {
	fields []fieldUse // of the paths of `changed`, then of `when`

	matched, filtered, unchanged, unsampled, missing, errors atomic.Uint64
	first                                                    atomic.Pointer[error]
}

func (c *counters) read(route string) Stats {
	s := Stats{
		Route:     route,
		Matched:   c.matched.Load(),
		Filtered:  c.filtered.Load(),
		Unchanged: c.unchanged.Load(),
		Unsampled: c.unsampled.Load(),
		Missing:   c.missing.Load(),
		Errors:    c.errors.Load(),
	}
	if err := c.first.Load(); err != nil {
		s.FirstError = *err
	}
	for i := range c.fields {
		f := &c.fields[i]
		if u, changes := f.text.Load(), f.Suspicious(); u != nil && changes > 0 {
			s.Unseen = append(s.Unseen, Unseen{u.Route, u.Key, u.Field, changes})
		}
	}
	return s
}
