package feed

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func (c *barrier) process(g *group) error {
	g.waiters = append(g.waiters, c.done)
	return nil
}

func (c *objectSeen) process(g *group) error {
	if err := g.seen(&c.sighting, c.initial && c.src.start == warm); err != nil {
		return err
	}
	if c.initial && c.src.fromLedger(c.obj) {
		return nil
	}
	if c.src.listed != nil {
		c.src.listed[g.hashOf(c.obj)] = struct{}{}
	}
	if c.src.ahead != nil && c.src.isRecorded(c.obj) {
		return nil
	}
	before, err := g.before(c)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		if err := g.unreadable(&c.sighting, err); err != nil {
			return err
		}
		if err := g.record(c.src, c.obj); err != nil {
			return err
		}
		return g.emit(&c.sighting, transition{t: event.Sync, after: c.obj})
	case err != nil:
		return err
	case before == nil:
		t := event.Added
		if c.initial && !c.src.synced {
			t = event.Sync
		}
		if err := g.record(c.src, c.obj); err != nil {
			return err
		}
		return g.emit(&c.sighting, transition{t: t, after: c.obj})
	case before.GetUID() != c.obj.GetUID():
		// Deleted and created again under the same name, between two looks.
		if before, err = g.formerOf(c, before); err != nil {
			return err
		}
		if err := g.emit(&c.sighting, transition{t: event.Deleted, before: before, last: before, unknown: true}); err != nil {
			return err
		}
		if err := g.record(c.src, c.obj); err != nil {
			return err
		}
		return g.emit(&c.sighting, transition{t: event.Added, after: c.obj})
	case before.GetResourceVersion() == c.obj.GetResourceVersion():
		if c.src.rerecord() {
			return g.record(c.src, c.obj)
		}
		return nil // a resync, a relist or a re-read: nothing happened
	case !c.rewound && newer(before.GetResourceVersion(), c.obj.GetResourceVersion()):
		g.m.metrics.stale(c.src)
		return nil // history that is read again
	default:
		if before, err = g.formerOf(c, before); err != nil {
			return err
		}
		if err := g.record(c.src, c.obj); err != nil {
			return err
		}
		return g.emit(&c.sighting, transition{t: event.Updated, before: before, after: c.obj})
	}
}

// formerOf is former for the state that a change follows on. What the informer had is
// in the form of now.
func (g *group) formerOf(c *objectSeen, before *compact.Object) (*compact.Object, error) {
	if before == c.old {
		return before, nil
	}
	return g.former(c.src, before)
}

func (c *objectGone) process(g *group) error {
	if err := g.seen(&c.sighting, false); err != nil {
		return err
	}
	return g.deleted(&c.sighting)
}

// deleted removes an object from the ledger, if that has it.
func (g *group) deleted(c *sighting) error {
	before, err := g.recorded(c.src, c.obj)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		if err := g.unreadable(c, err); err != nil {
			return err
		}
		before = c.obj
	case err != nil:
		return err
	case before == nil || before.GetUID() != c.obj.GetUID():
		return nil // recorded already, or never seen
	}
	if before, err = g.former(c.src, before); err != nil {
		return err
	}
	g.forget(c.src, c.obj)
	return g.emit(c, transition{t: event.Deleted, before: c.obj, last: before, unknown: c.unknown})
}

// unreadable tells that the recorded state of a change's object is damaged, so that
// what happened to the object since then is not known.
func (g *group) unreadable(c *sighting, cause error) error {
	s := c.src
	if !s.damaged {
		s.damaged = true
		s.log.Error("recorded states are damaged: the objects concerned are delivered as sync events, behind a gap each", "error", cause)
	}
	return g.gap(s, c.at, &dynamicfactory.Gap{
		Cause: dynamicfactory.CauseUnreadable, From: s.saved.ResourceVersion, To: c.obj.GetResourceVersion(), FromTime: s.saved.Time, ToTime: c.at,
		Namespace: c.obj.GetNamespace(), Name: c.obj.GetName(),
	}, c.obj)
}

// seen notes that the source has come as far as the change's object, which may be one
// that the informer was given to start with.
func (g *group) seen(c *sighting, given bool) error {
	s := c.src
	s.observed.Inc()
	p := c.obj.Position()
	ofList := c.unknown || p == 0 && !given
	if err := g.takeUp(c, p, ofList); err != nil {
		return err
	}
	c.repair = s.repair != 0 && (ofList || p == s.repair)
	if ofList || s.rewind || s.listed != nil && s.first == "" {
		s.listing(!c.unknown)
	}
	c.rewound = s.rewind || s.list.mark != nil && s.list.mark.Rewound
	if p > s.position {
		s.position, s.newest = p, c.obj
		if p >= s.repair {
			s.repair = 0 // the last object of the list that made up for it
		}
	}
	g.touched[s] = struct{}{}
	return nil
}

// listing notes the list that a notification without a position of its own belongs
// to, unless it is known; objects: it is of an object.
func (s *Feed) listing(objects bool) {
	sub := s.sub.Load()
	if sub == nil || s.position < s.list.end {
		return
	}
	if version, end, ok := sub.ListAfter(s.position, objects); ok {
		s.list = list{&listing{ResourceVersion: version, Rewound: s.rewind}, end}
		if s.first == "" && !s.rewind {
			s.first = version
		}
		s.rewind = false
	}
}

// occurrence is a change that did happen.
type transition struct {
	t       event.Type
	before  *compact.Object // nil when there was nothing before
	after   *compact.Object // nil in a deletion
	last    *compact.Object // in a deletion: the last recorded state, which names it
	unknown bool
	repair  bool
	cause   string // of an update that is not of the object; part of the event's ID
}

// subject is the object that the event is about and whose state it carries.
func (o *transition) subject() *compact.Object {
	if o.after != nil {
		return o.after
	}
	return o.before
}

// identity is the version that takes part in the event's ID.
func (o *transition) identity() *compact.Object {
	if o.last != nil {
		return o.last
	}
	return o.subject()
}

// emit routes an occurrence to the watches it concerns and adds the event, if any
// sink wants it, to the batch.
func (g *group) emit(c *sighting, o transition) error {
	if o.t == event.Added || o.t == event.Sync {
		for _, j := range c.src.gaining {
			j.delivered[stateKey(o.after.GetNamespace(), o.after.GetName())] = struct{}{}
		}
	}
	if len(g.m.relabels) > 0 {
		recorded := o.before
		if o.last != nil {
			recorded = o.last // before is what the deletion itself shows
		}
		if err := g.takeAhead(c.src, o.subject(), recorded); err != nil {
			return err
		}
	}
	if c.src.open != nil { // the first difference that its list shows
		if err := g.report(c.src, c.src.open, c.at); err != nil {
			return err
		}
	}
	var hits []route.Hit
	for _, h := range *c.src.watches.Load() {
		if o.t == event.Sync && !h.watch.Snapshot {
			continue
		}
		if s, ok := h.selection(o.t, o.before, o.after, g.m.namespaces.labels); ok {
			g.m.metrics.watched(h.watch.Name, o.t)
			hits = append(hits, route.Hit{Watch: h.watch.Name, Selection: s})
		}
	}
	if o.repair = c.repair; o.repair {
		c.src.repaired.Inc()
	}
	return g.deliver(c.src, c.at, o, hits, nil)
}

// deliver appends the event to the log and to the queues of the sinks that the
// router names, or of those that only admits.
func (g *group) deliver(src *Feed, at time.Time, o transition, hits []route.Hit, only func(sink string) bool) error {
	if len(hits) == 0 {
		return nil
	}
	rc := route.Change{
		Type: o.t, Resource: src.resource, Cluster: g.m.cfg.Cluster, Time: at,
		New: o.after, Old: o.before, Watches: hits,
	}
	g.targets = g.m.router.Load().Route(g.targets[:0], &rc)
	if only != nil {
		g.targets = keepTargets(g.targets, only)
	}
	if len(g.targets) == 0 && !g.m.keepUnrouted.Load() {
		g.m.metrics.filtered(o.t)
		return nil
	}
	obj, id := o.subject(), o.identity()
	e := event.Event{
		ID:   event.ID(g.m.cfg.Cluster, o.t, src.resource, src.idScope()+o.cause, idOf(id), id.GetResourceVersion()),
		Type: o.t, Time: at, Resource: src.resource,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: string(obj.GetUID()), ResourceVersion: obj.GetResourceVersion(),
		FinalStateUnknown: o.unknown, Repair: o.repair,
	}
	if err := g.append(&e, src.edits, obj, o.before); err != nil {
		return fmt.Errorf("record %s %s: %w", e.Type, e.Subject(), err)
	}
	return nil
}

// keepTargets keeps the targets whose sink only admits, in place.
func keepTargets(targets []route.Target, only func(sink string) bool) []route.Target {
	return slices.DeleteFunc(targets, func(t route.Target) bool { return !only(t.Sink) })
}
