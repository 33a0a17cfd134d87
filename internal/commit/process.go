package commit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/jsonpatch"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func (c *barrier) process(g *group) error {
	g.waiters = append(g.waiters, c.done)
	return nil
}

func (c *objectSeen) process(g *group) error {
	if err := g.seen(&c.sighting, c.initial && c.feed.start == warm); err != nil {
		return err
	}
	if c.initial && c.feed.fromLedger(c.obj) {
		return nil
	}
	if c.feed.listed != nil {
		c.feed.listed[g.hashOf(c.obj)] = struct{}{}
	}
	if c.feed.ahead != nil && c.feed.isRecorded(c.obj) {
		return g.passRecorded(c)
	}
	before, err := g.before(c)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		if err := g.unreadable(&c.sighting, err); err != nil {
			return err
		}
		return g.enter(&c.sighting, transition{t: event.Sync, after: c.obj, lost: true})
	case err != nil:
		return err
	case before == nil:
		if c.initial && !c.feed.synced {
			return g.enter(&c.sighting, transition{t: event.Sync, after: c.obj, lost: c.feed.forgot})
		}
		return g.enter(&c.sighting, transition{t: event.Added, after: c.obj})
	case !c.rewound && (c.feed.ahead != nil || before.GetUID() == c.obj.GetUID()) && ledger.Newer(before.GetResourceVersion(), c.obj.GetResourceVersion()):
		g.c.metrics.staleTotal.WithLabelValues(c.feed.groupResource()).Inc()
		return nil // history that is read again
	case before.GetUID() != c.obj.GetUID():
		// Deleted and created again under the same name, between two looks.
		if before, err = g.former(c.feed, before); err != nil {
			return err
		}
		if _, err := g.emit(&c.sighting, transition{t: event.Deleted, before: before, last: before, unknown: true}); err != nil {
			return err
		}
		return g.enter(&c.sighting, transition{t: event.Added, after: c.obj})
	case before.GetResourceVersion() == c.obj.GetResourceVersion():
		if c.feed.rerecord() {
			return g.rerecord(&c.sighting, before)
		}
		c.obj.RecordedAs(before.Sequence())
		if c.repair {
			return g.restore(&c.sighting)
		}
		return nil // a resync, a relist or a re-read: nothing happened
	default:
		if before, err = g.former(c.feed, before); err != nil {
			return err
		}
		return g.enter(&c.sighting, transition{t: event.Updated, before: before, after: c.obj})
	}
}

func (c *objectGone) process(g *group) error {
	if err := g.seen(&c.sighting, false); err != nil {
		return err
	}
	return g.deleted(&c.sighting)
}

func (g *group) deleted(c *sighting) error {
	before, err := g.recorded(c.feed, c.obj)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		if err := g.unreadable(c, err); err != nil {
			return err
		}
	case err != nil:
		return err
	case before == nil:
		return nil // recorded already, or never seen
	case c.obj.GetUID() == "" && !c.unknown && !c.rewound && ledger.Newer(before.GetResourceVersion(), c.obj.GetResourceVersion()):
		return nil // of an earlier life, in history that is read again
	case before.GetUID() != c.obj.GetUID() && (c.unknown || !ledger.Newer(c.obj.GetResourceVersion(), before.GetResourceVersion())):
		return nil // of another life than the recorded one, which may last
	}
	if before, err = g.former(c.feed, before); err != nil {
		return err
	}
	gone := transition{t: event.Deleted, before: c.obj, last: before, unknown: c.unknown}
	if before != nil && before.GetUID() != c.obj.GetUID() { // neither the end of the recorded life was seen nor the begin of this one
		gone.before, gone.unknown = before, true
	}
	g.remove(c.feed, c.obj)
	_, err = g.emit(c, gone)
	return err
}

// unreadable reports that the recorded state of a change's object is damaged, so that
// what happened to the object since then is not known: also to watches that do not cover it, as it may have left them.
func (g *group) unreadable(c *sighting, cause error) error {
	s := c.feed
	c.blind = true
	if !s.damaged {
		s.damaged = true
		s.Log.Error("recorded states are damaged: the objects concerned are delivered as sync events, behind a gap each", "error", cause)
	}
	return g.gap(s, c.at, &dynamicfactory.Gap{
		Cause: dynamicfactory.CauseUnreadable, From: s.saved.ResourceVersion, To: c.obj.GetResourceVersion(), FromTime: s.saved.Time, ToTime: c.at,
		Namespace: c.obj.GetNamespace(), Name: c.obj.GetName(),
	}, func(h WatchRef) bool {
		nsLabels := g.c.namespaces.of(c.obj)
		return g.c.inForce(s, h, c.obj.GetNamespace(), nsLabels).Watch.Filter.MayMatch(c.obj)
	})
}

// seen notes that the feed has come as far as the change's object, which may be one
// that the informer was given to start with.
func (g *group) seen(c *sighting, given bool) error {
	s := c.feed
	s.observed.Inc()
	s.emptyList()
	p := c.obj.Position()
	ofList := c.unknown || p == 0 && !given
	if err := g.takeUp(c, p, ofList); err != nil {
		return err
	}
	c.repair = s.repair != 0 && (ofList || p == s.repair)
	c.blind = s.blindTo != 0 && (ofList || p <= s.blindTo)
	if !c.blind {
		s.blindTo = 0
	}
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
// to, unless it is known; objects: it is of an object, so that a list without one is over.
func (s *Feed) listing(objects bool) {
	sub, under := s.informer(), s.position < s.list.end
	if sub == nil || under && (s.list.objects || !objects) {
		return
	}
	if next, ok := sub.NextList(s.position, objects); ok {
		rewound := s.rewind || under && s.list.mark.Rewound
		s.list = list{&ledger.Listing{ResourceVersion: next.ResourceVersion, Rewound: rewound, Blind: s.blindTo != 0}, next.End, objects}
		if s.first == "" && !rewound {
			s.first = next.ResourceVersion
		}
		s.rewind = false
	}
}

// transition is a change of an object that did happen, or what stands for one. The committer's
// goroutine makes and uses it.
type transition struct {
	t       event.Type
	before  *compact.Object // nil when there was nothing before
	after   *compact.Object // nil in a deletion
	last    *compact.Object // in a deletion: the last recorded state, which names it; nil if that is damaged
	unknown bool
	repair  bool
	cause   string   // of an event that no change of the object led to; part of the event's ID
	keep    bool     // the history has it, whether a sink takes it or not
	state   bool     // it leads to a state of the object's history
	blind   bool     // history was lost before it
	have    []string // of a snapshot's: the sinks that have it
	lost    bool     // of a sync event: what was recorded of the object is damaged, and watches without a snapshot are given it, too
}

// subject is the object that the event is about and whose state it carries.
func (o *transition) subject() *compact.Object {
	if o.after != nil {
		return o.after
	}
	return o.before
}

// changes reports whether a change of the object led to the event, and left a state.
func (o *transition) changes() bool {
	return (o.t == event.Added || o.t == event.Updated) && o.cause == ""
}

// leavesTheRest reports whether an update leaves the generation, the deletion and the labels of the
// object. The last manager alone does not show that: a deletion has none.
func (o *transition) leavesTheRest() bool {
	return o.t == event.Updated && o.before != nil && o.before.GetGeneration() == o.after.GetGeneration() &&
		o.before.GetDeletionTimestamp().Equal(o.after.GetDeletionTimestamp()) && o.before.Labels().Same(o.after.Labels())
}

// mayConcern reports whether the transition is one of a watch if that selects the namespace.
func (o *transition) mayConcern(h WatchRef) bool {
	selects := func(state *compact.Object) bool { return state != nil && h.Watch.Filter.MatchObject(state) }
	return o.lost || selects(o.before) || selects(o.after) || selects(o.last)
}

// identity has the version in the event's ID.
func (o *transition) identity() *compact.Object {
	if o.last != nil {
		return o.last
	}
	return o.subject()
}

// enter emits a transition, and makes the state that it leads to the ledger's.
func (g *group) enter(c *sighting, o transition) error {
	sequence, err := g.emit(c, o)
	if err != nil {
		return err
	}
	return g.record(c.feed, o.after, sequence)
}

// rerecord makes a state that is recorded the ledger's in the form of now. The history
// gets that form too, so that what the next change does is seen against it.
func (g *group) rerecord(c *sighting, before *compact.Object) error {
	sequence := before.Sequence()
	if sequence > unlogged {
		r := g.newRecord(c.feed, c.at, &transition{t: event.Sync, after: c.obj, cause: "/form"})
		r.State, r.Rerecorded, r.Prev = true, true, sequence
		fresh, err := g.refresh(c.feed.Resource, c.obj)
		if err != nil {
			return err
		}
		r.Object = fresh.Body()
		if sequence, err = g.appendRecord(&r, event.Inside); err != nil {
			return err
		}
	}
	return g.record(c.feed, c.obj, sequence)
}

// passRecorded takes a state that another feed has recorded, or has seen go since: at most, it is recorded in the form of now.
func (g *group) passRecorded(c *objectSeen) error {
	if !c.feed.rerecord() {
		return nil
	}
	before, err := g.recorded(c.feed, c.obj)
	if err != nil || before == nil || before.GetUID() != c.obj.GetUID() || before.GetResourceVersion() != c.obj.GetResourceVersion() {
		return ledger.IgnoreUnreadable(err)
	}
	return g.rerecord(&c.sighting, before)
}

// restore makes a state that has not changed the ledger's again, if damage has taken it: the consistency
// check compares the ledger with the cluster, and the informer has the state.
func (g *group) restore(c *sighting) error {
	recorded, err := g.recorded(c.feed, c.obj)
	if ledger.IgnoreUnreadable(err) != nil {
		return err
	}
	if recorded != nil && recorded.GetUID() == c.obj.GetUID() && recorded.GetResourceVersion() == c.obj.GetResourceVersion() {
		return nil
	}
	return g.record(c.feed, c.obj, c.obj.Sequence())
}

// emit routes a transition to the watches it concerns and adds the event to the batch, if
// any sink is to have it or its history is kept. It returns the sequence of the state in
// the object's history, 0 if it is in none.
func (g *group) emit(c *sighting, o transition) (sequence uint64, err error) {
	if o.t == event.Added || o.t == event.Sync {
		for _, j := range c.feed.gaining {
			j.delivered[ledger.Key(o.after.GetNamespace(), o.after.GetName())] = struct{}{}
		}
	}
	recorded := o.before
	if o.last != nil {
		recorded = o.last // before is what the deletion itself shows
	}
	if err := g.takeAhead(c.feed, o.subject(), recorded); err != nil {
		return 0, err
	}
	if c.feed.open != nil { // the first difference that its list shows
		if err := g.report(c.feed, c.feed.open, c.at); err != nil {
			return 0, err
		}
	}
	hits := g.hits[:0]
	unjudged, nsLabels := false, g.c.namespaces.of(o.subject())
	for _, h := range c.feed.Watches() {
		if o.t == event.Sync && !h.Watch.Snapshot && !o.lost {
			continue
		}
		h = g.c.inForce(c.feed, h, o.subject().GetNamespace(), nsLabels)
		s, ok := h.Selection(o.t, o.before, o.after, nsLabels)
		if !ok && o.t == event.Deleted {
			s, ok = h.Selection(o.t, o.last, nil, nsLabels) // the watch has it as it was recorded
		}
		h.Watch.Filter.Judged(ok)
		if ok {
			g.c.metrics.watched(h.Watch.Name, o.t)
			hits = append(hits, route.Hit{Watch: h.Watch.Name, Selection: s})
			o.keep = o.keep || h.Watch.History
		} else {
			unjudged = unjudged || h.mayCover(o.subject().GetNamespace()) && o.mayConcern(h)
		}
	}
	g.hits = hits
	if unjudged {
		g.noteUnjudged(c.feed, c.at, &o)
	}
	o.blind = c.blind
	if o.repair = c.repair; o.repair {
		c.feed.repaired.Inc()
	}
	o.state = o.keep
	sequence, err = g.deliver(c.feed, c.at, &o, hits, nil)
	if !o.state {
		sequence = 0
	}
	return sequence, err
}

// deliver appends the event to the log and to the queues of the sinks that the
// router names, or of those that only admits.
func (g *group) deliver(s *Feed, at time.Time, o *transition, hits []route.Hit, only func(sink string) bool) (sequence uint64, err error) {
	if len(hits) == 0 {
		return 0, nil
	}
	r := g.newRecord(s, at, o)
	rc := route.Change{
		ID: r.Event.ID, Uncounted: only != nil,
		Type: o.t, Resource: s.Resource, Cluster: g.c.cfg.Cluster, Time: at,
		New: o.after, Old: o.before, Changed: o.changes(), Watches: hits,
	}
	g.targets = g.c.router.Route(g.targets[:0], &rc)
	if only != nil || o.have != nil {
		g.targets = slices.DeleteFunc(g.targets, func(t record.Target) bool {
			return only != nil && !only(t.Sink) || slices.Contains(o.have, t.Sink)
		})
	}
	if only == nil && len(rc.Matches) > 0 {
		found := o.cause == "" && o.former() == nil
		if err := g.judged(s, at, o.subject(), o.blind || found, rc.Matches); err != nil {
			return 0, err
		}
	}
	if len(g.targets) == 0 {
		g.c.metrics.filteredTotal.WithLabelValues(string(o.t)).Inc()
		if !o.keep {
			return 0, nil
		}
	}
	r.Targets = g.targets
	if r.State = o.state; r.State {
		r.Prev = o.prev()
	}
	if err := g.addBodies(&r, s.Resource, o); err != nil {
		return 0, fmt.Errorf("record %s %s: %w", r.Event.Type, r.Event.Subject(), err)
	}
	selection := hits[0].Selection
	for _, h := range hits {
		if h.Selection == event.Inside {
			selection = event.Inside
		}
	}
	return g.appendThrottled(&r, selection, only != nil)
}

// newRecord is a record without its bodies.
func (g *group) newRecord(s *Feed, at time.Time, o *transition) record.Record {
	obj, id := o.subject(), o.identity()
	r := record.Record{Edits: s.Edits, Scope: s.Scope, Blind: o.blind, Event: event.Event{
		ID:   event.ID(g.c.cfg.Cluster, o.t, s.Resource, s.idScope()+o.cause, idOf(id), id.GetResourceVersion()),
		Type: o.t, Time: at, Resource: s.Resource,
		Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: string(obj.GetUID()), ResourceVersion: obj.GetResourceVersion(),
		FinalStateUnknown: o.unknown, Repair: o.repair,
	}}
	if o.changes() {
		if by := o.after.ChangedBy(o.before, at); by.Manager != "" {
			r.Event.ChangedBy = (*event.ChangedBy)(&by)
			r.Status = by.Subresource == "status" && o.leavesTheRest()
		}
	}
	return r
}

// before returns the recorded state that c follows on. For an update that is the
// state the informer had: it came through here earlier, so it is what the ledger
// holds, and no read is needed. Of history that an earlier life or other feeds may have
// recorded, the ledger is ahead of the informer, and in the list after a rollback another.
func (g *group) before(c *objectSeen) (*compact.Object, error) {
	if c.old != nil && c.old.Sequence() != 0 && c.feed.ahead == nil && !c.rewound && (c.feed.floor == "" || c.feed.pastFloor(c.obj)) {
		return c.old, nil
	}
	return g.recorded(c.feed, c.obj)
}

// pastFloor reports whether o is newer than all that was recorded when the feed
// started, and so is everything after it.
func (s *Feed) pastFloor(o *compact.Object) bool {
	if order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), s.floor); err == nil && order <= 0 {
		return false
	}
	s.floor = ""
	return true
}

// recorded returns the ledger's state of the object with o's name, as this group
// will leave it; nil if there is none. The error is store.ErrUnreadable if the entry is
// damaged, any other is an ErrStore.
func (g *group) recorded(s *Feed, o *compact.Object) (*compact.Object, error) {
	id := stateID{s.Partition, ledger.Key(o.GetNamespace(), o.GetName())}
	if known, ok := g.overlay[id]; ok {
		return known, nil
	}
	return g.c.ledger.State(id.partition, id.key)
}

// hashOf stands for an object's place in the ledger.
func (g *group) hashOf(o *compact.Object) uint64 {
	g.buf = append(append(append(g.buf[:0], o.GetNamespace()...), '/'), o.GetName()...)
	return xxhash.Sum64(g.buf)
}

// unlogged is the sequence of a recorded state that is in no record of the log.
const unlogged = 1

// record makes o the ledger's state of its object. sequence is that of its log record, 0 for
// none.
func (g *group) record(s *Feed, o *compact.Object, sequence uint64) error {
	o.RecordedAs(max(sequence, unlogged))
	fresh, err := g.refresh(s.Resource, o)
	if err != nil {
		return fmt.Errorf("record %s/%s in %s: %w", o.GetNamespace(), o.GetName(), s.Partition, err)
	}
	id := stateID{s.Partition, ledger.Key(o.GetNamespace(), o.GetName())}
	g.overlay[id] = o
	g.buf = fresh.AppendBinary(g.buf[:0])
	g.batch.PutState(id.partition, id.key, g.buf)
	return nil
}

// refresh returns what is to be written for o, which may have been encoded before its
// dictionary was retired.
func (g *group) refresh(about event.Resource, o *compact.Object) (*compact.Object, error) {
	gr := schema.GroupResource{Group: about.Group, Resource: about.Resource}
	codec := g.c.refreshers[gr]
	if codec == nil {
		codec = compact.NewCodecFor(g.c.dicts, gr.String())
		g.c.refreshers[gr] = codec
	}
	return codec.Refresh(o)
}

func (g *group) remove(s *Feed, o *compact.Object) {
	id := stateID{s.Partition, ledger.Key(o.GetNamespace(), o.GetName())}
	g.overlay[id] = nil
	g.batch.DeleteState(id.partition, id.key)
}

// prev is the sequence of the state that the transition follows on, 0 for none.
func (o *transition) prev() uint64 {
	before := o.former()
	if before == nil || before.Sequence() <= unlogged {
		return 0
	}
	return before.Sequence()
}

// former is the recorded state that the transition follows on, nil if there is none.
func (o *transition) former() *compact.Object {
	switch o.t {
	case event.Updated:
		return o.before
	case event.Deleted:
		return o.last
	default:
		return nil
	}
}

// addBodies adds the parts that at least one sink asks for, and those of a history: the
// state, and the one before if its own record may leave the log long before this one.
func (g *group) addBodies(r *record.Record, about event.Resource, o *transition) error {
	var want record.Flags
	if o.keep {
		want = record.Object
	}
	for _, t := range r.Targets {
		want |= t.Flags
	}
	if o.t == event.Updated && want&record.Summary != 0 {
		want |= record.Object | record.OldObject // the summary is made from them
	}
	if want&record.Summary != 0 && about.SelfDescribing(o.t) {
		want |= record.Object // as before
	}
	if len(g.c.timers.throttles) > 0 && want&record.Comparing != 0 {
		want |= record.Object // what comes next may be compared with it
	}
	before := o.former()
	if before == nil || o.t == event.Deleted {
		want &^= record.OldObject | record.Patch
	}
	if before != nil && o.state && r.Prev < g.old {
		want |= record.OldObject
	}
	if want&record.Object != 0 {
		fresh, err := g.refresh(about, o.subject())
		if err != nil {
			return err
		}
		r.Object = fresh.Body()
	}
	if want&record.OldObject != 0 {
		fresh, err := g.refresh(about, before)
		if err != nil {
			return err
		}
		r.OldObject = fresh.Body()
	}
	if want&record.Patch != 0 {
		patch, err := PatchOf(before, o.after)
		if err != nil {
			return err
		}
		r.Patch = patch
	}
	if want&(record.Owner|record.InvolvedObject) != 0 && g.c.cfg.Enrich != nil {
		return g.c.cfg.Enrich(r, o.subject(), want)
	}
	return nil
}

// appendThrottled is appendRecord for an event that throttles may hold, unless it is for
// now.
func (g *group) appendThrottled(r *record.Record, selection event.Selection, now bool) (sequence uint64, err error) {
	if err := g.throttle(r, now); err != nil {
		return 0, err
	}
	if sequence, err = g.appendRecord(r, selection); err != nil {
		return 0, err
	}
	return sequence, g.hold(r, sequence)
}

// appendRecord adds r to the log and to the queues of its targets. selection is what
// the event is to the watches.
func (g *group) appendRecord(r *record.Record, selection event.Selection) (sequence uint64, err error) {
	g.routes = g.routes[:0]
	for i, t := range r.Targets {
		if i >= len(g.waits) || !g.waits[i] {
			g.routes = append(g.routes, store.Route{Sink: t.Sink, Flags: uint32(t.Flags)})
		}
	}
	g.waits = g.waits[:0]
	lane := g.laneOf(&r.Event)
	payload, err := record.Append(g.buf[:0], r)
	if err != nil {
		return 0, fmt.Errorf("record %s %s: %w", r.Event.Type, r.Event.Subject(), err)
	}
	g.buf = payload
	if !r.Rerecorded {
		g.events[r.Event.Type]++
	}
	sequence = g.batch.Append(store.Record{Time: r.Event.Time, Lane: lane, Payload: payload}, g.routes)
	row := r.Headline(sequence, selection)
	g.headlines.Add(&row)
	return sequence, nil
}

// PatchOf returns the JSON Patch between two states.
func PatchOf(old, obj *compact.Object) ([]byte, error) {
	before, err := old.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	after, err := obj.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	return jsonpatch.Diff(before, after)
}

// laneOf spreads objects over a sink's lanes by what is in order. It is stored with
// the event, so the function must never change: the events of one partition key share
// one lane.
func (g *group) laneOf(e *event.Event) uint64 {
	g.buf = e.AppendPartitionKey(g.buf[:0])
	return xxhash.Sum64(g.buf)
}

// idOf is an object's part in the IDs of its events: its uid, or its place where an
// aggregated API has none.
func idOf(o *compact.Object) string {
	if uid := o.GetUID(); uid != "" {
		return string(uid)
	}
	return ledger.Key(o.GetNamespace(), o.GetName())
}
