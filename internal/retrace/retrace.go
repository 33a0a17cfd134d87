// Package retrace runs routes over what the log holds, as if they had been there.
//
// Guarantees:
//
//   - A recorded change meets the routes in the form that the edits of now give it. What these
//     hide, no expression sees.
//   - The watches and routes of now decide. Names that were recorded count only where there is
//     nothing else: for gaps, and for events that no change led to.
//   - Nothing is written, and no lock is held while an expression runs.
//
// Caveats: namespaces are judged by their present labels. An update without a recorded
// previous state counts as a change of everything within its selections. A watch does not
// match records of another API version, or of another server-side selection, than its
// present one.
package retrace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Log is the part of the store that is read. *store.Store implements it.
type Log interface {
	timer.Store
	ReadRecord(sequence uint64) (store.Item, bool, error)
	ReadLog(after uint64, most int) ([]store.Item, error)
	LogStats() store.LogStats
	SequenceAt(t time.Time) uint64
}

// Reader makes changes of records again. Any goroutine may use it.
type Reader struct {
	log      Log
	inflater *record.Inflater
	edits    func() *redact.Table // in force
}

// New returns a Reader.
func New(log Log, in *record.Inflater, edits func() *redact.Table) *Reader {
	return &Reader{log, in, edits}
}

// Change is a recorded change.
type Change struct {
	route.Change // its watches are not set
	Record       *record.Record

	old      compact.Body // the state before as it is recorded, if Record lacks it
	form     uint64       // of the edits of both states; 0: not known
	original bool         // the states are as they are recorded
	edit     record.Edit  // of what else the record has; nil: none
}

// When compiles an expression, as that of a route, to a test of records. The error joins
// its faults.
func (r *Reader) When(text string) (*history.Test, error) {
	condition, found := route.CompileCondition(text)
	var faults []error
	for _, f := range found {
		faults = append(faults, fmt.Errorf("line %d, column %d: %s", f.Line, f.Column, f.Msg))
	}
	if faults != nil {
		return nil, errors.Join(faults...)
	}
	test := &history.Test{Accepts: func(rec *record.Record) (bool, error) {
		c, err := r.change(rec, condition.ReadsOld())
		if err != nil {
			return false, err
		}
		match, missing, err := condition.Match(&c.Change)
		if missing {
			return false, fmt.Errorf("%w: %w", history.ErrAbsent, err)
		}
		return match, err
	}}
	if condition.ReadsHead() {
		test.Rejects = r.rejects(condition)
	}
	return test, nil
}

// maxHeads bounds the verdicts that one test remembers.
const maxHeads = 10_000

// rejects is the Rejects of a test. Many changes have one head, those of an object by one
// manager, and an evaluation takes microseconds.
func (r *Reader) rejects(condition *route.Condition) func(*headline.Row) bool {
	verdicts := map[route.Head]bool{}
	return func(row *headline.Row) bool {
		head := route.Head{
			Type: row.Type, Resource: row.Resource, Cluster: r.inflater.Cluster,
			Namespace: row.Namespace, Name: row.Name, Manager: row.Manager,
		}
		rejected, known := verdicts[head]
		if known {
			return rejected
		}
		if len(verdicts) == maxHeads {
			clear(verdicts)
		}
		kept := head
		kept.Namespace, kept.Name, kept.Manager = strings.Clone(head.Namespace), strings.Clone(head.Name), strings.Clone(head.Manager)
		rejected = condition.RulesOut(&kept)
		verdicts[kept] = rejected
		return rejected
	}
}

// Change makes the change of a record.
func (r *Reader) Change(rec *record.Record) (*Change, error) { return r.change(rec, true) }

// change is Change, without the state before unless that is wanted.
func (r *Reader) change(rec *record.Record, old bool) (*Change, error) {
	e, table := &rec.Event, r.edits()
	c := &Change{Record: rec, form: table.Form(rec), Change: route.Change{
		ID: e.ID, Type: e.Type, Resource: e.Resource, Cluster: r.inflater.Cluster, Time: e.Time, ChangedBy: e.ChangedBy, Uncounted: true,
	}}
	c.original, c.edit = c.form == rec.Edits, table.Edit(rec, "")
	if e.For != nil {
		c.Lasted = routesOf(rec.Targets)
	}
	object, err := r.state(table, rec, rec.Object)
	if err == nil && object == nil {
		object, err = r.bare(e)
	}
	if err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	switch e.Type {
	case event.Deleted:
		c.Old = object
		return c, nil
	case event.Updated:
		c.New = object
	default:
		c.New, old = object, false
	}
	if !old {
		return c, nil
	}
	from, body := rec, rec.OldObject
	if len(body.Data) == 0 && rec.Prev != 0 {
		former, err := history.ReadRecord(r.log, rec.Prev)
		if former == nil || err != nil {
			return c, err
		}
		from, body, c.old = former, former.Object, former.Object
		if form := table.Form(from); form != c.form {
			c.form = 0
		}
		c.original = c.original && from.Edits == rec.Edits
	}
	if c.Old, err = r.state(table, from, body); err != nil {
		return nil, fmt.Errorf("old object: %w", err)
	}
	return c, nil
}

// state returns a body of a record as onlookers may see it, nil if there is none.
func (r *Reader) state(table *redact.Table, rec *record.Record, body compact.Body) (*compact.Object, error) {
	if len(body.Data) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	raw, err := r.inflater.Dictionaries.Inflate(nil, body)
	if err != nil {
		return nil, err
	}
	if edit := table.Edit(rec, ""); edit != nil {
		if raw, err = edit.Object(nil, raw); err != nil {
			return nil, err
		}
		body = compact.Body{}
	}
	return r.inflater.Dictionaries.Object(raw, body)
}

// bare is the object of an event that was recorded without it.
func (r *Reader) bare(e *event.Event) (*compact.Object, error) {
	raw := []byte(`{"apiVersion":`)
	raw = rawjson.AppendString(raw, schema.GroupVersion{Group: e.Resource.Group, Version: e.Resource.Version}.String())
	raw = rawjson.AppendString(append(raw, `,"kind":`...), e.Resource.Kind)
	raw = rawjson.AppendString(append(raw, `,"metadata":{"name":`...), e.Name)
	if e.Namespace != "" {
		raw = rawjson.AppendString(append(raw, `,"namespace":`...), e.Namespace)
	}
	raw = rawjson.AppendString(append(raw, `,"uid":`...), e.UID)
	raw = rawjson.AppendString(append(raw, `,"resourceVersion":`...), e.ResourceVersion)
	return r.inflater.Dictionaries.Object(append(raw, "}}"...), compact.Body{})
}

func groupResource(e *event.Event) schema.GroupResource {
	return schema.GroupResource{Group: e.Resource.Group, Resource: e.Resource.Resource}
}

// Watches are the watches of a configuration. One goroutine at a time may use them.
type Watches struct {
	all    []plan.Watch
	wants  func(w *plan.Watch, gr schema.GroupResource, scope string) bool
	labels func(namespace string) (labels.Set, bool)

	byPart map[part][]commit.WatchRef
}

// part is a resource in a scope.
type part struct {
	schema.GroupResource
	scope string
}

// NewWatches returns watches. wants reports whether one means a resource in a scope.
func NewWatches(all []plan.Watch, wants func(w *plan.Watch, gr schema.GroupResource, scope string) bool, labels func(namespace string) (labels.Set, bool)) *Watches {
	return &Watches{all, wants, labels, map[part][]commit.WatchRef{}}
}

// of are the watches that mean the resource of a record.
func (w *Watches) of(rec *record.Record) []commit.WatchRef {
	p := part{groupResource(&rec.Event), rec.Scope}
	refs, known := w.byPart[p]
	if !known {
		for i := range w.all {
			if w.wants(&w.all[i], p.GroupResource, p.scope) {
				refs = append(refs, commit.NewWatchRef(&w.all[i]))
			}
		}
		w.byPart[p] = refs
	}
	return refs
}

// Hits are the watches that a change concerns.
func (w *Watches) Hits(c *Change) (hits []route.Hit) {
	refs := w.of(c.Record)
	for i := range refs {
		if s, ok := w.selection(&refs[i], c); ok {
			hits = append(hits, route.Hit{Watch: refs[i].Watch.Name, Selection: s})
		}
	}
	return hits
}

// selection is what a change is to a watch; not ok if it is nothing.
func (w *Watches) selection(h *commit.WatchRef, c *Change) (event.Selection, bool) {
	if c.Type == event.Sync && !h.Watch.Snapshot {
		return event.Inside, false
	}
	before := c.Old
	if c.Type == event.Updated && before == nil {
		before = c.New
	}
	return h.Selection(c.Type, before, c.New, w.labels)
}

// Target is a sink with the routes that lead to it, compiled for it alone.
type Target struct {
	reader  *Reader
	watches *Watches
	sink    string
	again   bool
	router  *route.Router
	routes  []string

	// Full, if set, reports that there is no room: an event gets neither the state before
	// nor a patch that its record lacks. Plain counts those.
	Full  func() bool
	Plain int
}

// NewTarget returns the target that a sink is by the routes of a configuration. again: what
// it is given is a replay, even what it was not given before, and so are gaps of its own.
func (r *Reader) NewTarget(st *plan.State, watches *Watches, sink string, again bool) (*Target, error) {
	t := &Target{reader: r, watches: watches, sink: sink, again: again}
	var specs []route.Spec
	for _, spec := range st.Routes {
		if slices.Contains(spec.Sinks, sink) {
			spec.Sinks = []string{sink}
			specs = append(specs, spec)
			t.routes = append(t.routes, spec.Name)
		}
	}
	var err error
	t.router, err = route.Compile(specs)
	return t, err
}

// Select implements store.Selector.
func (t *Target) Select(it *store.Item) (s store.Selected, ok bool, err error) {
	rec, err := record.Decode(it.Payload)
	if err != nil || rec.Rerecorded {
		return s, false, nil //nolint:nilerr // the event stream reports it; or it is no event
	}
	given := slices.ContainsFunc(rec.Targets, func(to record.Target) bool { return to.Sink == t.sink })
	if given || t.again {
		s.Flags = uint32(record.Replay)
	}
	if g := rec.Event.Gap; g != nil {
		switch {
		case g.Cause == record.CauseRemoved:
			return s, given && t.again, nil // it is queued for the sink that it is for
		case record.OfHistory(g.Cause):
			return s, false, nil
		}
		return s, slices.Contains(t.router.Sinks(nil, g.Watch, rec.Event.Resource), t.sink), nil
	}
	if rec.Event.Type == event.Sync && !rec.State && !given && !t.led(rec) || len(t.watches.of(rec)) == 0 {
		return s, false, nil // another's snapshot, or of no watch any more
	}
	c, err := t.reader.Change(rec)
	if err != nil {
		return s, false, ignoreDamage(err)
	}
	c.Watches = t.watches.Hits(c)
	targets := t.router.Route(nil, &c.Change)
	if len(targets) == 0 {
		return s, false, nil
	}
	s.Flags |= uint32(targets[0].Flags)
	to := targets[0]
	if t.Full != nil && c.Type == event.Updated && to.Flags&record.Comparing != 0 && t.Full() {
		to.Flags &^= record.Comparing
		t.Plain++
	}
	recorded := slices.ContainsFunc(rec.Targets, func(was record.Target) bool { return was.Sink == to.Sink && was.Routes == to.Routes })
	set := uint32(0)
	if sets := t.reader.inflater.RouteSets; sets != nil && !recorded {
		if set, err = sets.Number(to.Routes); err != nil {
			return s, false, err
		}
		s.Flags = uint32(record.Flags(s.Flags).WithRouteSet(set))
	}
	s.Payload, err = payload(c, to, !recorded && set == 0)
	return s, true, err
}

// ignoreDamage is an error of the store, nil for one of a record: the event stream
// reports it.
func ignoreDamage(err error) error {
	if errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
		return err
	}
	return nil
}

// led reports whether a route that leads to the sink now took the record then.
func (t *Target) led(rec *record.Record) bool {
	return slices.ContainsFunc(rec.Targets, func(to record.Target) bool {
		return slices.ContainsFunc(t.routes, func(name string) bool { return to.LedBy(name) })
	})
}

// payload is a change as a record for a target, nil if its own record is, whose targets are
// to be replaced or not.
func payload(c *Change, to record.Target, replace bool) ([]byte, error) {
	rec, updated := *c.Record, c.Type == event.Updated && c.Old != nil
	states := updated && len(c.Record.OldObject.Data) == 0 && to.Flags&(record.OldObject|record.Summary) != 0
	patch := updated && len(c.Record.Patch) == 0 && !c.Record.PatchOmitted && to.Flags&record.Patch != 0
	if !states && !patch && !replace {
		return nil, nil
	}
	if (states || patch) && !c.original {
		rec.Object, rec.OldObject, rec.Edits = c.New.Body(), c.Old.Body(), c.form
		if err := c.editOwner(&rec); err != nil {
			return nil, err
		}
		if len(rec.Patch) > 0 {
			patch = true
		}
	} else if states {
		rec.OldObject = c.old
	}
	if patch {
		var err error
		if rec.Patch, err = commit.PatchOf(c.Old, c.New); err != nil {
			return nil, err
		}
	}
	rec.Targets = []record.Target{to}
	return record.Append(nil, &rec)
}

// editOwner edits what the record has of the object's owners: it counts as edited.
func (c *Change) editOwner(rec *record.Record) error {
	if c.edit == nil || rec.Enrichment == nil || rec.Enrichment.Owner == nil {
		return nil
	}
	enrichment := *rec.Enrichment
	rec.Enrichment = &enrichment
	var err error
	enrichment.Owner, err = c.edit.Part(nil, enrichment.Owner)
	return err
}
