package route

import (
	"fmt"
	"slices"

	"github.com/watcherd/watcherd/pkg/event"
)

// rule is a compiled Spec.
type rule struct {
	name      string
	watches   []string // none: all
	resources []ResourcePattern
	events    eventSet
	when      *condition // nil: true
	changed   []changedPath
	payload   Payload
	sinks     []int // positions in the router's table
	onError   OnError

	counters counters
}

// compileRule compiles one Spec; every fault is given to fault.
func compileRule(s *Spec, x *expressions, fault func(SpecError)) *rule {
	at := func(key string) func(i int, msg string) {
		return func(i int, msg string) { fault(SpecError{Path: fmt.Sprintf("%s[%d]", key, i), Msg: msg}) }
	}
	r := &rule{
		name:    s.Name,
		watches: slices.Clone(s.Watches),
		events:  parseEvents(s.Events, at("events")),
		payload: parsePayload(s.Payload, at("payload")),
		onError: s.OnError,
	}
	for i, pattern := range s.Resources {
		p, err := ParseResource(pattern)
		if err != nil {
			at("resources")(i, err.Error())
		}
		r.resources = append(r.resources, p)
	}
	for i, path := range s.Changed {
		p, err := parseChanged(path)
		if err != nil {
			at("changed")(i, err.Error())
		}
		r.changed = append(r.changed, p)
	}
	if s.When != "" {
		when, faults := x.compile(s.When)
		for _, f := range faults {
			fault(SpecError{Path: "when", Msg: f.msg, Line: f.line, Column: f.column})
		}
		r.when = when
	}
	switch s.OnError {
	case OnErrorDefault, OnErrorDrop, OnErrorPass:
	default:
		fault(SpecError{Path: "onError", Msg: fmt.Sprintf("%q is none of drop, pass", string(s.OnError))})
	}
	if len(s.Sinks) == 0 {
		fault(SpecError{Path: "sinks", Msg: "a route needs a sink"})
	}
	return r
}

// covers tells whether the rule is about a resource at all.
func (r *rule) covers(res event.Resource) bool {
	return len(r.resources) == 0 || slices.ContainsFunc(r.resources, func(p ResourcePattern) bool { return p.Matches(res) })
}

func (r *rule) takes(watch string) bool {
	return len(r.watches) == 0 || slices.Contains(r.watches, watch)
}

// selection is how the object stands to those of the hit watches that the rule
// takes; ok is false if it takes none.
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

// unchanged tells whether all that the rule looks at stayed as it was. What comes
// or goes has no before and after to compare, and neither has an object that enters
// or leaves a selection: to the receiver it comes or goes as well.
func (r *rule) unchanged(e *evaluation, s event.Selection) (bool, error) {
	if len(r.changed) == 0 || e.oldObject.obj == nil || s == event.Entered || s == event.Left {
		return false, nil
	}
	if _, err := e.oldObject.raw(); err != nil {
		return false, err
	}
	if _, err := e.object.raw(); err != nil {
		return false, err
	}
	return !slices.ContainsFunc(r.changed, func(p changedPath) bool {
		return p.differs(&e.oldObject.body, &e.object.body)
	}), nil
}
