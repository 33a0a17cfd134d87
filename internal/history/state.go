package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// State is an object at a time.
type State struct {
	As        As              `json:"as"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Exists    bool            `json:"exists"`             // if it is exact
	Sequence  uint64          `json:"sequence,omitempty"` // of the record with the state; 0: it is known from elsewhere
	Time      time.Time       `json:"time,omitzero"`      // since when the state was known
	Type      event.Type      `json:"type,omitempty"`     // of the change that led to it
	Manager   string          `json:"manager,omitempty"`
	Object    json.RawMessage `json:"object,omitempty"` // the state; of a gap the last one known before
	Unread    []Unread        `json:"unread,omitempty"` // before the time: the state is that before it; of an item of a list, the list has them

	before, next uint64 // the records around the time, 0: none or not known
	form         uint64 // the record that the object was made for, 0: there is none
	blind        bool   // history was lost before the record that follows
	left         bool   // the watches had left its part of the ledger by the time

	body compact.Body // the object as it is recorded
}

// unlogged is the sequence of a recorded state that is in no record of the log.
const unlogged = 1

// entry is an object's state in the ledger. A nil object is one that cannot be read.
type entry struct {
	object *compact.Object
	leaving
}

// entries are an object's states in the parts of the ledger of its resource, those in parts that were left last.
func (r *Reader) entries(o *Object, in leavings) ([]entry, error) {
	var list, left []entry
	for _, p := range r.partitions(o.Resource) {
		c, err := r.ledger.State(p, ledger.Key(o.Namespace, o.Name))
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return nil, err
		}
		if c == nil && err == nil {
			continue
		}
		if l := in.of(p, o.Namespace); l.left {
			left = append(left, entry{c, l})
		} else {
			list = append(list, entry{c, l})
		}
	}
	return append(list, left...), nil
}

// leavings are the parts of the ledger of a resource that no watch covers, and the namespaces in which others are read.
type leavings struct {
	parts map[string]map[string]time.Time // up to when the feeds of each read it, by their namespaces
	read  map[string]bool
}

// leaving is what is known of an entry in a part of the ledger that was left, while others of its resource are read.
type leaving struct {
	left  bool
	until time.Time
}

// leavings returns the parts of the ledger that watches of a resource have left.
func (r *Reader) leavings(resource event.Resource) (leavings, error) {
	l, running := leavings{map[string]map[string]time.Time{}, map[string]bool{}}, map[string]bool{}
	if r.reading != nil {
		feeds, _ := r.reading(nil, time.Time{})
		for feed := range feeds {
			partition, _ := ledger.SplitFeed(feed)
			running[partition] = true // a watch may have returned to it a moment ago
		}
	}
	return l, r.ledger.Checkpoints(func(feed string, c ledger.Checkpoint) error {
		partition, in := ledger.SplitFeed(feed)
		if gr, _ := ledger.SplitPartition(partition); gr.Group != resource.Group || gr.Resource != resource.Resource {
			return nil
		}
		left, err := r.ledger.Unwatched(partition)
		switch {
		case err != nil:
		case !left || running[partition]:
			l.read[in] = true
		case l.parts[partition] == nil:
			l.parts[partition] = map[string]time.Time{in: c.Time}
		default:
			l.parts[partition][in] = c.Time
		}
		return err
	})
}

// of is what is known of a part in a namespace, or in all if it is empty.
func (l leavings) of(partition, namespace string) leaving {
	feeds := l.parts[partition]
	if len(feeds) == 0 || !l.read[""] && !l.read[namespace] {
		return leaving{}
	}
	return leaving{true, later(feeds[""], feeds[namespace])}
}

// before reports whether a part was left before the end of a past.
func (l leaving) before(end past) bool {
	return l.left && (end.t.After(l.until) || !end.latest.Before(l.until))
}

func (r *Reader) partitions(about event.Resource) []string {
	return slices.DeleteFunc(r.store.Partitions(), func(p string) bool {
		gr, _ := ledger.SplitPartition(p)
		return gr.Group != about.Group || gr.Resource != about.Resource
	})
}

// At returns an object's state at a time.
func (r *Reader) At(ctx context.Context, o Object, t time.Time) (State, error) {
	unread, err := r.unread(&o.Resource, o.Namespace, o.Name, t)
	if err != nil {
		return State{}, err
	}
	s, err := r.stateAt(ctx, o, t)
	s.Unread = unread
	return s, err
}

func (r *Reader) stateAt(ctx context.Context, o Object, t time.Time) (State, error) {
	left, err := r.leavings(o.Resource)
	if err != nil {
		return State{}, err
	}
	entries, err := r.entries(&o, left)
	if err != nil {
		return State{}, err
	}
	before, err := r.until(t)
	if err != nil {
		return State{}, err
	}
	if !r.several(&o) && len(entries) == 1 && entries[0].object != nil && !entries[0].left {
		s, ok, err := r.walk(ctx, &o, before, fromEntry(&o, entries[0].object), quickSteps)
		if err != nil || ok && s.As == Exact && s.Exists {
			return r.judge(&o, before, s, err)
		}
	}
	a, err := r.after(ctx, before, &o)
	if errors.Is(err, store.ErrUnreadable) {
		return State{As: Gap, Namespace: o.Namespace, Name: o.Name}, nil
	}
	if err != nil {
		return State{}, err
	}
	return r.at(ctx, &o, before, a, entries)
}

// ErrNoVersion is the error for a sequence that no version of the object has.
var ErrNoVersion = errors.New("no version of the object has this sequence")

// AtVersion returns the state that a version left. The clock may have shown its time before, or
// again since.
func (r *Reader) AtVersion(o Object, sequence uint64) (State, error) {
	rec, err := r.version(&o, sequence)
	if rec == nil {
		s := State{As: Gap, Namespace: o.Namespace, Name: o.Name, Sequence: sequence}
		if r.gone(sequence) {
			s.As = UnknownBefore
		}
		return s, err
	}
	s := r.stateOf(rec, rec.Record, rec.Object)
	if s.Type == event.Deleted {
		s.As, s.Exists, s.Object = Exact, false, nil
	}
	return s, nil
}

// version returns the record of a version, nil if it is not in the log any more or cannot be read.
func (r *Reader) version(o *Object, sequence uint64) (*stored, error) {
	rec, err := r.read(sequence)
	switch {
	case err != nil:
		return nil, err
	case rec != nil:
		if e := &rec.Event; !rec.State || !o.is(&headline.Row{Resource: e.Resource, Namespace: e.Namespace, Name: e.Name}) {
			return nil, ErrNoVersion
		}
		return rec, nil
	case r.gone(sequence):
		return nil, nil //nolint:nilnil // as it states
	}
	found := false
	err = r.allRows(sequence, sequence, o.Name, func(row *headline.Row) bool { return row.Flags&headline.State != 0 && o.is(row) }, func(*headline.Row) error {
		found = true
		return nil
	})
	if err == nil && !found && !r.gone(sequence) {
		err = ErrNoVersion
	}
	return nil, ledger.IgnoreUnreadable(err)
}

// several reports whether the states of an object may be in several parts of the ledger.
func (r *Reader) several(o *Object) bool { return len(r.partitions(o.Resource)) > 1 }

// at is the state at the end of a past, by what is recorded after it, and by the entries if
// no state is.
func (r *Reader) at(ctx context.Context, o *Object, before past, after around, entries []entry) (State, error) {
	s, err := r.resolve(ctx, o, before, after.next, entries)
	if err == nil && (r.several(o) || s.As == UnknownBefore) {
		var all map[place]*around
		all, err = r.around(ctx, before, r.store.LogStats().First, o.Name, o.is)
		if a := all[place{o.Namespace, o.Name}]; a != nil && err == nil {
			s, err = r.lasting(o, s, a, entries)
		}
	}
	if errors.Is(err, store.ErrUnreadable) {
		s.As, err = Gap, nil
	}
	if err == nil && s.As == Exact && !s.Exists {
		s, err = r.absent(ctx, o, before, s)
	}
	return r.judge(o, before, s, err)
}

// quickSteps is how far a chain is followed before headlines are read instead.
const quickSteps = 256

// judge lowers what a state is worth if a gap hides it, or the watches have left its part of the ledger.
func (r *Reader) judge(o *Object, at past, s State, err error) (State, error) {
	if err != nil {
		return s, err
	}
	if s.left && s.As == Exact {
		s.As = Gap
	}
	gaps, err := r.allGaps()
	if err != nil {
		s.As = Gap
		return s, ledger.IgnoreUnreadable(err)
	}
	lists := map[gapScope]bool{} // of the gaps that the record which follows may be of the list after
	for _, g := range slices.Backward(gaps) {
		if !g.concerns(&o.Resource, o.Namespace, o.Name) {
			continue
		}
		if g.hides(at, s.before, s.next) && !(g.quiet() && s.Exists) {
			s.As = Gap
		}
		if !s.blind || g.sequence <= s.before || g.sequence >= s.next || lists[g.scope()] {
			continue
		}
		lists[g.scope()] = true
		if at.has(g.sequence, g.at) || !at.t.Before(g.data.From) { // the list shows its changes one after the other
			s.As = Gap
		}
	}
	if s.blind && len(lists) == 0 { // the log has the gap no longer
		s.As = Gap
	}
	return s, nil
}

// place names an object among those of a resource.
type place struct{ namespace, name string }

// around are an object's states around a time.
type around struct {
	next  uint64 // the record of the first one after it; 0: there is none
	last  uint64 // the record of the last one before it; 0: there is none
	lived bool   // that is not a deletion
	left  bool   // with that it left the selection of a watch
	moved bool   // it left or entered one with the labels of its namespace
	since uint64 // the last record before it by which it did so, after the last state; 0: there is none
	after uint64 // the first record after it by which it did so, before the next state; 0: there is none
	gap   uint64 // the last gap of it alone before the time; 0: there is none
	lost  uint64 // the first one after it; 0: there is none
}

// around finds the states of objects around the end of a past, in the records from a sequence
// on.
func (r *Reader) around(ctx context.Context, before past, from uint64, text string, of func(*headline.Row) bool) (map[place]*around, error) {
	all := map[place]*around{}
	return all, r.aroundInto(ctx, all, before, from, text, of)
}

// aroundInto is around with a map, from which of may delete objects that it rejects from then on.
func (r *Reader) aroundInto(ctx context.Context, all map[place]*around, before past, from uint64, text string, of func(*headline.Row) bool) error {
	keep := func(row *headline.Row) bool {
		return (row.Flags&(headline.State|moves) != 0 || row.Type == event.Gap && row.Name != "") && of(row)
	}
	return r.rows(ctx, from, newest, false, text, keep, func(row *headline.Row) error {
		a := all[place{row.Namespace, row.Name}]
		if a == nil {
			a = &around{}
			all[place{strings.Clone(row.Namespace), strings.Clone(row.Name)}] = a
		}
		switch {
		case row.Type == event.Gap && before.has(row.Sequence, row.Time()):
			a.gap, a.lost = row.Sequence, 0
		case row.Type == event.Gap:
			a.lost = cmp.Or(a.lost, row.Sequence)
		case row.Flags&headline.State == 0:
			switch a.moved = true; {
			case before.has(row.Sequence, row.Time()):
				a.since, a.after = row.Sequence, 0
			case a.after == 0 && a.next == 0:
				a.after = row.Sequence
			}
		case before.has(row.Sequence, row.Time()):
			a.last, a.lived, a.left, a.since, a.after, a.next, a.lost = row.Sequence, row.Type != event.Deleted, row.Flags&headline.Left != 0, 0, 0, 0, 0
		case a.next == 0:
			a.next = row.Sequence
		}
		return nil
	})
}

// moves are the flags of an object that left a selection or entered it. Where it did so with the labels of its namespace,
// it has no new state.
const moves = headline.Left | headline.Entered

// after returns what is recorded of an object after a past. What it has of before may lack the most.
func (r *Reader) after(ctx context.Context, before past, o *Object) (around, error) {
	begin, err := r.begin(before.t)
	if err != nil {
		return around{}, err
	}
	all, err := r.around(ctx, before, begin, o.Name, o.is)
	if a := all[place{o.Namespace, o.Name}]; a != nil {
		return *a, err
	}
	return around{}, err
}

// resolve finds an object's state at the end of a past, by its first state after it, or by its entries
// in the ledger if there is none. The state is that of the chain: gaps are not considered.
func (r *Reader) resolve(ctx context.Context, o *Object, before past, next uint64, entries []entry) (State, error) {
	s := State{As: UnknownBefore, Namespace: o.Namespace, Name: o.Name, next: next}
	if next != 0 {
		rec, err := r.read(next)
		if rec == nil || err != nil {
			s.As = Gap
			return s, err
		}
		s, _, err := r.walk(ctx, o, before, fromRecord(rec), maxSteps)
		s.next = next
		return s, err
	}
	if len(entries) == 0 {
		s.As = Exact
		return s, nil
	}
	for _, e := range entries {
		if e.object == nil {
			s.As = Gap
			return s, nil
		}
		found, _, err := r.walk(ctx, o, before, fromEntry(o, e.object), maxSteps)
		found.left = e.before(before)
		if err != nil || found.As == Exact && found.Exists {
			return found, err
		}
	}
	return s, nil
}

// lasting is a state in view of what is recorded around its time, and of the entries of its object.
func (r *Reader) lasting(o *Object, s State, a *around, entries []entry) (State, error) {
	s, err := r.latest(o, s, a.last)
	if err != nil || s.As != UnknownBefore || a.since == 0 && (!a.lived || a.left) {
		return s, err
	}
	// No chain leads to it, as the object changed while no watch selected it: it left with the labels of its namespace after the
	// time, or had entered with these, in the version that was recorded before.
	last, err := r.read(cmp.Or(a.since, a.last))
	if last == nil || err != nil || len(last.Object.Data) == 0 {
		return s, err
	}
	uid, version, err := r.following(a, entries)
	if err != nil || uid != last.Event.UID || version != last.Event.ResourceVersion {
		return s, err
	}
	blind := s.blind && a.after == 0
	s = r.stateOf(last, last.Record, last.Object)
	s.next, s.blind = cmp.Or(a.after, a.next), blind
	return s, r.led(&s, last)
}

// following is the version of an object that was the first to be seen after a time, as far as it shows what the object was until then: that
// with which it left or entered a selection, that before its next state, or that of its entry. It is empty if it is not known.
func (r *Reader) following(a *around, entries []entry) (uid, version string, err error) {
	switch {
	case a.after != 0:
		move, err := r.read(a.after)
		if move == nil || err != nil {
			return "", "", err
		}
		return move.Event.UID, move.Event.ResourceVersion, nil
	case a.next != 0:
		next, err := r.read(a.next)
		if next == nil || err != nil {
			return "", "", err
		}
		meta, err := rawjson.ScanHead(r.show(next.Record, next.OldObject))
		if err != nil {
			return "", "", nil //nolint:nilerr // there is none, or it is not shown
		}
		return string(meta.UID), string(meta.ResourceVersion), nil
	case len(entries) == 1 && entries[0].object != nil && !entries[0].left:
		return string(entries[0].object.GetUID()), entries[0].object.GetResourceVersion(), nil
	}
	return "", "", nil
}

// latest is a state in view of the last record of its object before its time, which is of
// another part of the ledger if the state is older: that of a watch that is gone stays.
func (r *Reader) latest(o *Object, s State, last uint64) (State, error) {
	if s.As != Exact || !s.Exists || last <= s.before {
		return s, nil
	}
	rec, err := r.read(last)
	if rec == nil || err != nil {
		s.As = Gap
		return s, err
	}
	meta, err := rawjson.ScanHead(s.Object)
	if err != nil || !ledger.Newer(rec.Event.ResourceVersion, string(meta.ResourceVersion)) {
		return s, err
	}
	if rec.Event.Type == event.Deleted { // or it left what the other one selects
		return State{As: UnknownBefore, Namespace: o.Namespace, Name: o.Name, before: last, next: s.next}, nil
	}
	next, blind, left := s.next, s.blind, s.left
	s = r.stateOf(rec, rec.Record, rec.Object)
	s.next, s.blind, s.left = next, blind, left
	err = r.led(&s, rec)
	return s, err
}

// led has a state name the change that led to it, in place of a record that has it in another form alone; none if the log
// does not have it any more.
func (r *Reader) led(s *State, rec *stored) (err error) {
	if !rec.Rerecorded {
		return nil
	}
	for rec != nil && rec.Rerecorded && err == nil {
		rec, err = r.read(rec.Prev)
	}
	s.Sequence, s.Time, s.Type, s.Manager = 0, time.Time{}, "", ""
	if rec != nil {
		s.of(rec)
	}
	return err
}

// of has the state name a record.
func (s *State) of(rec *stored) {
	s.Sequence, s.Time, s.Type = rec.sequence, rec.Event.Time, rec.Event.Type
	if by := rec.Event.ChangedBy; by != nil {
		s.Manager = by.Manager
	}
}

// stateOf is the state of a record, in the form of a body of another one or its own.
func (r *Reader) stateOf(rec *stored, of *record.Record, body compact.Body) State {
	s := State{
		As: Exact, Namespace: rec.Event.Namespace, Name: rec.Event.Name, Exists: true,
		before: rec.sequence, form: rec.sequence, Object: r.show(of, body), body: body,
	}
	if s.of(rec); s.Object == nil {
		s.As = Gap
	}
	return s
}

// maxSteps bounds the records read for one state: more are needed only where clocks jumped.
const maxSteps = 100_000

// link is what follows on a state: a record, or the ledger.
type link struct {
	prev    uint64
	added   bool
	old     compact.Body // the state, if its own record may be gone
	of      *record.Record
	again   compact.Body // the state in another form
	current uint64
	blind   bool // history was lost before it
}

func fromRecord(rec *stored) link {
	l := link{prev: rec.Prev, added: rec.Event.Type == event.Added, old: rec.OldObject, of: rec.Record, current: rec.sequence, blind: rec.Blind}
	if rec.Rerecorded { // it is the state before, too
		l.old, l.again = rec.Object, rec.Object
	}
	return l
}

func fromEntry(o *Object, c *compact.Object) link {
	e := event.Event{Type: event.Sync, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, UID: string(c.GetUID()), ResourceVersion: c.GetResourceVersion()}
	return link{prev: c.Sequence(), old: c.Body(), of: &record.Record{Event: e}}
}

// walk follows a chain of records back to the state at the end of a past. ok is false if the
// chain is longer than steps.
func (r *Reader) walk(ctx context.Context, o *Object, before past, l link, steps int) (s State, ok bool, err error) {
	s = State{As: UnknownBefore, Namespace: o.Namespace, Name: o.Name}
	for ; steps > 0; steps-- {
		if err := stop(ctx); err != nil {
			return s, false, err
		}
		s.next, s.blind = l.current, l.blind
		if l.prev <= unlogged {
			if l.added {
				s.As = Exact // there was nothing
			}
			return s, true, nil
		}
		rec, err := r.read(l.prev)
		if err != nil {
			return s, false, err
		}
		if rec == nil {
			return r.behind(s, before.t, l)
		}
		if !before.has(rec.sequence, rec.Event.Time) {
			l = fromRecord(rec)
			continue
		}
		body, of, form := rec.Object, rec.Record, rec.sequence
		if len(l.again.Data) > 0 { // the form of now
			body, of, form = l.again, l.of, l.current
		}
		found := r.stateOf(rec, of, body)
		found.next, found.blind, found.form = s.next, s.blind, form
		err = r.led(&found, rec)
		return found, true, err
	}
	return s, false, nil
}

// behind is the state whose record is not there: the log does not have it any more, or it
// cannot be read.
func (r *Reader) behind(s State, t time.Time, l link) (State, bool, error) {
	first, at, err := r.horizon()
	switch {
	case err != nil:
		return s, false, err
	case l.prev >= first:
		s.As = Gap
	case !t.Before(at) && len(l.old.Data) > 0:
		s.Object, s.body = r.show(l.of, l.old), l.old
		if s.As = Exact; s.Object == nil {
			s.As = Gap
		}
		if s.Exists, s.before, s.form = true, l.prev, l.prev; len(l.again.Data) > 0 {
			s.form = l.current
		}
	}
	return s, true, err
}

// absent judges that there was no object at the end of a past: what lived and ended without a
// history left no trace.
func (r *Reader) absent(ctx context.Context, o *Object, before past, s State) (State, error) {
	lived, err := r.lastBefore(ctx, before, o.Name, func(row *headline.Row) bool { return o.is(row) }, 1)
	if errors.Is(err, store.ErrUnreadable) {
		s.As = Gap
		return s, nil
	}
	if err != nil {
		return s, err
	}
	c, err := r.coverage(&o.Resource, o.Namespace)
	if err != nil {
		return s, err
	}
	var until time.Time // when it was added
	if s.next != 0 {
		rec, err := r.read(s.next)
		if err != nil {
			return s, err
		}
		if rec != nil {
			until = rec.Event.Time
		}
	}
	last := lived[key(*o)]
	ended := last.sequence != 0 && c.changes(before.t)
	if s.before = last.sequence; !ended && !c.absent(before.t, until) || last.lives() {
		s.As = UnknownBefore
	}
	return s, nil
}

// ending is the last state that is recorded before a time.
type ending struct {
	sequence uint64 // 0: there is none
	deleted  bool
	moved    bool // the object left or entered a selection after the time, and before its next state
}

// lives reports whether a record shows an object that was there at the time.
func (e ending) lives() bool { return e.moved || e.sequence != 0 && !e.deleted }

// lastBefore returns the last states of objects in a past. It ends when it has n of them.
func (r *Reader) lastBefore(ctx context.Context, before past, text string, of func(*headline.Row) bool, n int) (map[Object]ending, error) {
	found := map[Object]ending{}
	if n == 0 {
		return found, nil
	}
	keep := func(row *headline.Row) bool { return row.Flags&(headline.State|moves) != 0 && of(row) }
	err := r.rows(ctx, r.store.LogStats().First, newest, true, text, keep, func(row *headline.Row) error {
		o, state := objectOf(row), row.Flags&headline.State != 0
		e := found[o]
		switch {
		case e.sequence != 0:
			return nil
		case !before.has(row.Sequence, row.Time()):
			e.moved = !state
		case !state:
			return nil
		default:
			e.sequence, e.deleted = row.Sequence, row.Type == event.Deleted
			n--
		}
		o.Namespace, o.Name = strings.Clone(o.Namespace), strings.Clone(o.Name)
		if found[o] = e; n == 0 {
			return errEnough
		}
		return nil
	})
	return found, ignoreEnough(err)
}

// List is a page of the objects of a resource at a time.
type List struct {
	As       As      `json:"as"` // exact: the list has every object; an item has its own
	Items    []State `json:"items"`
	Continue string  `json:"continue,omitempty"`

	Unread []Unread `json:"unread,omitempty"` // before the time: the states are those before it
}

// ListAt returns objects at a time, at most limit of them, or those that follow on an earlier page, of whose time they are then.
func (r *Reader) ListAt(ctx context.Context, all Objects, t time.Time, page string, limit int) (List, error) {
	list := List{Items: []State{}}
	place, size := ListPlace{At: t}, 0
	var err error
	if page != "" {
		place, err = ParseListPlace(page, r.now())
		if err != nil || !strings.Contains(place.After, "/") || all.Namespace != "" && !strings.HasPrefix(place.After, ledger.Key(all.Namespace, "")) {
			return list, ErrContinue
		}
	}
	if list.Unread, err = r.unread(&all.Resource, all.Namespace, "", place.At); err != nil {
		return list, err
	}
	list.As, place.After, err = r.EachAt(ctx, all, place.At, place.After, limit, func(s *State) bool {
		list.Items = append(list.Items, *s)
		size += len(s.Object) + len(s.Name)
		return size <= pageBytes
	})
	if place.After != "" {
		list.Continue = place.Token()
	}
	return list, err
}

// Objects are those of a resource in a namespace, or in all if it is empty.
type Objects struct {
	Resource  event.Resource
	Namespace string
	Named     func(namespace, name string) bool // nil: all
}

// EachAt calls f with objects at a time, ordered by namespace and name, until it returns
// false: with at most limit of those after a place. It returns what the list is worth, and the
// place to continue at, empty at the end. A later call that cannot find that fails with ErrContinue. Of the objects up to it it holds the names
// alone, and of others nothing.
func (r *Reader) EachAt(ctx context.Context, all Objects, t time.Time, after string, limit int, f func(*State) bool) (as As, next string, err error) {
	before, err := r.until(t)
	if err != nil {
		return as, "", err
	}
	if after, err = r.whole(ctx, all, after); err != nil {
		return as, "", err
	}
	as = Exact
	for more := true; more; after = next {
		var part As
		part, next, more, err = r.eachAt(ctx, all, before, after, limit, func(s *State) bool {
			limit--
			return f(s)
		})
		if as == Exact {
			as = part
		}
		if err != nil {
			break
		}
	}
	return as, Place(next), err
}

// maxPlaces bounds how many recorded objects a list holds at a time: twice as many.
const maxPlaces = 50_000

// eachAt is EachAt of the end of a past, for as many objects as are looked at in one scan: more reports that there may be
// others, and that neither f nor the limit has ended it.
func (r *Reader) eachAt(ctx context.Context, all Objects, before past, after string, limit int, f func(*State) bool) (as As, next string, more bool, err error) {
	unselected, settled, err := r.unselected(all.Resource, before.t)
	if err != nil {
		return as, "", false, err
	}
	left, err := r.leavings(all.Resource)
	if err != nil {
		return as, "", false, err
	}
	damaged, bound := false, ""
	var keys []candidate
	end := "" // the ledger was read up to there; empty: to its end
	prefix := ""
	if all.Namespace != "" {
		prefix = ledger.Key(all.Namespace, "")
	}
	for _, p := range r.partitions(all.Resource) {
		n := 0
		_, err := r.ledger.Scan(p, prefix, after, func(key string, o *compact.Object) error {
			if ns, name, _ := strings.Cut(key, "/"); all.Named != nil && !all.Named(ns, name) {
				return nil
			}
			if keys = append(keys, candidate{key, unselected != nil && (o.Sequence() > unlogged || !unselected(o))}); n == limit {
				if end == "" || key < end {
					end = key
				}
				return ledger.ErrEnough
			}
			n++
			return nil
		})
		damaged = damaged || errors.Is(err, store.ErrUnreadable)
		if err = ledger.IgnoreUnreadable(err); err != nil {
			return as, "", false, err
		}
	}
	// After the ledger, so that an object which is deleted in between is in one of them, and
	// of the whole log, as states in the ledger expire that no watch reads.
	var key []byte
	recorded := map[place]*around{}
	err = r.aroundInto(ctx, recorded, before, r.store.LogStats().First, all.Resource.Resource, func(row *headline.Row) bool {
		if !same(row.Resource, all.Resource) || all.Namespace != "" && row.Namespace != all.Namespace || all.Named != nil && !all.Named(row.Namespace, row.Name) {
			return false
		}
		if len(recorded) >= 2*r.places {
			end = first(recorded, r.places)
			bound = end
		}
		key = append(append(append(key[:0], row.Namespace...), '/'), row.Name...) // ledger.Key
		return string(key) > after && (end == "" || string(key) <= end)
	})
	damaged = damaged || errors.Is(err, store.ErrUnreadable)
	if ledger.IgnoreUnreadable(err) != nil {
		return as, "", false, err
	}
	for p, a := range recorded {
		if a.next != 0 || a.lived || a.after != 0 {
			keys = append(keys, candidate{key: ledger.Key(p.namespace, p.name)})
		}
	}
	slices.SortFunc(keys, candidate.compare)
	keys = slices.CompactFunc(keys, func(a, b candidate) bool { return a.key == b.key })
	if _, again, err := r.unselected(all.Resource, before.t); err != nil || !again.Equal(settled) {
		unselected = nil // what was scanned may have been recorded by other rules
		if err != nil {
			return as, "", false, err
		}
	}
	var at Span
	if len(left.parts) > 0 {
		if at, err = r.spanOf(&all.Resource, all.Namespace, "", before, before); err != nil {
			return as, "", false, err
		}
	}
	next = end
	goes, n := true, 0
	for i, c := range keys {
		if end != "" && c.key > end { // of another part of the ledger
			break
		}
		if n == limit || !goes {
			next, bound = keys[i-1].key, ""
			break
		}
		ns, name, _ := strings.Cut(c.key, "/")
		s, unread, err := r.listed(ctx, &Object{all.Resource, ns, name}, before, left, recorded[place{ns, name}], unselected, c.selected)
		damaged = damaged || unread
		if err != nil {
			return as, "", false, err
		}
		if s.As == Exact && !s.Exists || s.left && at.as() == Exact { // or no watch selected it then
			continue
		}
		n++
		goes = f(&s)
	}
	at, err = r.spanOf(&all.Resource, all.Namespace, "", before, before)
	if as = at.as(); damaged {
		as = Gap
	}
	return as, next, bound != "" && goes && n < limit, err
}

// candidate is an object that may be in a list.
type candidate struct {
	key      string // in the ledger
	selected bool   // a watch with a history may have selected it before the records were read
}

// compare orders candidates by their keys, of one key those that are selected first.
func (c candidate) compare(other candidate) int {
	if order := strings.Compare(c.key, other.key); order != 0 || c.selected == other.selected {
		return order
	} else if c.selected {
		return -1
	}
	return 1
}

// first deletes all but the n objects whose keys come first, and returns the last of these.
func first(recorded map[place]*around, n int) string {
	keys := make([]string, 0, len(recorded))
	for p := range recorded {
		keys = append(keys, ledger.Key(p.namespace, p.name))
	}
	slices.Sort(keys)
	end := keys[n-1]
	for p := range recorded {
		if ledger.Key(p.namespace, p.name) > end {
			delete(recorded, p)
		}
	}
	return end
}

// listed is the state at the end of a past of an object in a list, and what is recorded of it around
// that, nil if nothing is. unselected is that of the end of the past, selected that of a candidate. unread: there may
// be more of it that cannot be read.
func (r *Reader) listed(ctx context.Context, o *Object, before past, left leavings, a *around, unselected func(*compact.Object) bool, selected bool) (s State, unread bool, err error) {
	entries, err := r.entries(o, left)
	if err != nil {
		return s, false, err
	}
	if a == nil {
		a = &around{}
	}
	if len(entries) == 0 && a.next == 0 { // deleted since, or expired
		var behind around
		behind, err = r.after(ctx, before, o)
		a.next = behind.next
		unread = errors.Is(err, store.ErrUnreadable)
		if ledger.IgnoreUnreadable(err) != nil {
			return s, unread, err
		}
	}
	s, err = r.resolve(ctx, o, before, a.next, entries)
	if err == nil {
		s, err = r.lasting(o, s, a, entries)
	}
	if s.As == Exact && !s.Exists && (a.lived || a.after != 0) {
		s.As = UnknownBefore // its end is not recorded
	}
	if err == nil && s.As == UnknownBefore && unselected != nil && !selected && a.next == 0 && !a.moved && (len(entries) > 0 || a.left) {
		var out bool
		if out, err = r.outside(a, entries, unselected); out {
			s.As, s.before = Exact, max(a.last, a.gap)
		}
	}
	s, err = r.judge(o, before, s, err)
	if err == nil && s.As == Exact && s.Exists && unselected != nil {
		s.Exists = !unselected(r.recorded(&s, entries))
	}
	return s, unread, err
}

// recorded is the object of an exact state as it is recorded, with what is hidden of it now.
func (r *Reader) recorded(s *State, entries []entry) *compact.Object {
	for _, e := range entries {
		if e.object != nil && e.object.Sequence() == s.form {
			return e.object
		}
	}
	o, _ := r.unshown(s.body) // it could be shown
	return o
}

// unshown is the object of a recorded body.
func (r *Reader) unshown(body compact.Body) (*compact.Object, error) {
	raw, err := r.inflater.Dictionaries.Inflate(nil, body)
	if err != nil {
		return nil, err
	}
	return r.inflater.Dictionaries.Object(raw, compact.Body{})
}

// outside reports whether no watch selected an object of which no state is recorded after a time, by what is recorded around that and
// by its entries. If a watch had selected it, it would still, or a record would show that it left, unless damage has taken its entry.
func (r *Reader) outside(a *around, entries []entry, unselected func(*compact.Object) bool) (bool, error) {
	may := func(e entry) bool { return e.object == nil || e.object.Sequence() > unlogged || !unselected(e.object) }
	if slices.ContainsFunc(entries, may) {
		return false, nil
	}
	if a.lost != 0 {
		if taken, known, err := r.tookEntry(a.lost); taken || !known {
			return false, err
		}
	}
	if a.gap > a.last {
		taken, _, err := r.tookEntry(a.gap)
		return taken, err
	}
	if !a.lived || a.left {
		return true, nil
	}
	rec, err := r.read(a.last) // by which it was selected: by earlier rules, or its end is not recorded
	if rec == nil || err != nil {
		return false, err
	}
	last, err := r.unshown(rec.Object)
	return err == nil && unselected(last), nil // one that cannot be read may have been selected
}

// tookEntry reports whether the entry of an object was damaged, and recorded again with its gap, if that is known. If the object
// itself could not be read, which takes no time, the entry stayed.
func (r *Reader) tookEntry(gap uint64) (taken, known bool, err error) {
	rec, err := r.read(gap)
	if rec == nil || rec.Event.Gap == nil {
		return false, false, err
	}
	return !rec.Event.Gap.From.Equal(rec.Event.Gap.To), true, nil
}

// pageBytes is about how large a page may become.
const pageBytes = 4 << 20

// Version is one of the states of an object, or the end of a life.
type Version struct {
	Sequence uint64     `json:"sequence"`
	Time     time.Time  `json:"time"`
	Type     event.Type `json:"type"`
	Manager  string     `json:"manager,omitempty"`
	Summary  string     `json:"summary,omitempty"`
}

// Versions are those of an object, the newest first.
type Versions struct {
	Items  []Version       `json:"items"`
	More   bool            `json:"more,omitempty"` // there are older ones in the period: before is exact
	Before As              `json:"before"`         // what is known of the time before the last item: exact if there was nothing
	Gaps   []event.GapData `json:"gaps"`           // in which there may be more
	Unread []Unread        `json:"unread,omitempty"`

	Continue string `json:"continue,omitempty"` // for the next page, if there are more
}

// VersionQuery asks for a page of an object's versions.
type VersionQuery struct {
	Object
	From, To time.Time // zero: no bound
	Limit    int
	Continue string // of the page before
}

// patience is how long the states of an object, or the objects of an answer, are read.
const patience = 2 * time.Second

// Versions returns a page of an object's versions in a period: those since its begin and up to
// its end, as [Reader.At] counts what the clock showed twice.
func (r *Reader) Versions(ctx context.Context, q VersionQuery) (Versions, error) {
	out := Versions{Items: []Version{}, Before: UnknownBefore}
	o, from, to := q.Object, q.From, q.To
	below, err := position(q.Continue)
	if err != nil {
		return out, err
	}
	until := to
	if until.IsZero() {
		until = r.now()
	}
	if out.Unread, err = r.unread(&o.Resource, o.Namespace, o.Name, until); err != nil {
		return out, err
	}
	before, during := past{}, past{to: math.MaxUint64}
	if !from.IsZero() {
		before, err = r.until(from.Add(-1))
	}
	if err == nil && !to.IsZero() {
		during, err = r.until(to)
	}
	if err != nil {
		return out, err
	}
	shown, began := map[uint64][]byte{}, time.Now()
	in := below != 0 // the record before was of the period, and so are those before it
	take := func(rec *stored) (more bool, err error) {
		at := rec.Event.Time
		in = in || during.has(rec.sequence, at)
		switch {
		case !in || rec.Rerecorded:
			return true, nil
		case before.has(rec.sequence, at):
			out.Before = Exact // it is known, and not asked for
			return false, nil
		case len(out.Items) == q.Limit, len(out.Items) > 0 && time.Since(began) > patience:
			out.Before, out.More = Exact, true
			out.Continue = token(out.Items[len(out.Items)-1].Sequence)
			return false, nil
		}
		v := Version{Sequence: rec.sequence, Time: rec.Event.Time, Type: rec.Event.Type}
		if by := rec.Event.ChangedBy; by != nil {
			v.Manager = by.Manager
		}
		v.Summary, err = r.summarize(rec, shown)
		out.Items = append(out.Items, v)
		return true, err
	}
	err = r.newest(ctx, &o, to, below, take)
	damaged := errors.Is(err, store.ErrUnreadable)
	if ledger.IgnoreUnreadable(err) != nil {
		return out, err
	}
	if from.IsZero() {
		from = time.Unix(0, 0)
	}
	if n := len(out.Items); n > 0 && out.Before != Exact && out.Items[n-1].Type == event.Added {
		s, err := r.preceding(ctx, &o, &out.Items[n-1])
		if err != nil {
			return out, err
		}
		out.Before = s.As
	}
	span, err := r.span(&o.Resource, o.Namespace, o.Name, from, until)
	out.Gaps = span.Gaps
	if damaged && err == nil { // of some nothing may be left
		var begun time.Time
		_, begun, err = r.horizon()
		out.Gaps = append(out.Gaps, event.GapData{Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, Cause: causeUnreadable, From: later(from, begun.Add(-disorder)), To: until})
	}
	return out, err
}

// causeUnreadable is the cause of gaps by what could not be read, as dynamicfactory has it.
const causeUnreadable = "unreadable"

// preceding is the state before a version. It goes by the order of the records: the clock may have
// shown the time of the version before, or again since.
func (r *Reader) preceding(ctx context.Context, o *Object, v *Version) (State, error) {
	return r.at(ctx, o, pastBefore(v.Sequence, v.Time), around{next: v.Sequence}, nil)
}

// newest calls take with the records of an object's states, the newest first, until it returns
// false. Those after a time may be left out; zero: none are. Those from the sequence below on
// are; 0: none. One that cannot be read has no object. The error is store.ErrUnreadable if there may be others.
func (r *Reader) newest(ctx context.Context, o *Object, to time.Time, below uint64, take func(*stored) (more bool, err error)) error {
	begin, high, err := r.beginning(ctx, o, to, below)
	if err != nil {
		return err
	}
	stats := r.store.LogStats()
	more := true
	for sequence := begin; sequence > unlogged && more; {
		if err := stop(ctx); err != nil {
			return err
		}
		rec, err := r.read(sequence)
		if err != nil {
			return err
		}
		if rec == nil {
			more = sequence >= stats.First
			break
		}
		if more, err = take(rec); err != nil {
			return err
		}
		high, sequence = sequence-1, rec.Prev
	}
	if !more {
		return nil
	}
	keep := func(row *headline.Row) bool { return row.Flags&headline.State != 0 && o.is(row) }
	err = r.rows(ctx, stats.First, high, true, o.Name, keep, func(row *headline.Row) error {
		rec, err := r.read(row.Sequence)
		if err != nil {
			return err
		}
		if rec == nil && r.gone(row.Sequence) {
			return nil
		}
		if rec == nil { // nothing is left out silently
			e := event.Event{Type: row.Type, Time: row.Time(), Summary: unreadable}
			rec = &stored{&record.Record{Event: e, Rerecorded: row.Flags&headline.Rerecorded != 0}, row.Sequence}
		}
		more, err := take(rec)
		if err == nil && !more {
			err = errEnough
		}
		return errors.Join(err, stop(ctx))
	})
	if errors.Is(err, store.ErrUnreadable) {
		return err
	}
	return ignoreEnough(err)
}

// beginning returns the record that a walk of newest begins with, 0 if it is not known, and the
// highest sequence that it may have.
func (r *Reader) beginning(ctx context.Context, o *Object, to time.Time, below uint64) (begin, high uint64, err error) {
	next := uint64(0) // the first record after the period
	if !to.IsZero() {
		before, err := r.until(to)
		if err != nil {
			return 0, 0, err
		}
		after, err := r.after(ctx, before, o)
		if err = ledger.IgnoreUnreadable(err); err != nil {
			return 0, 0, err
		}
		next = after.next
	}
	if below != 0 {
		if next != 0 && below >= next { // of another period
			return 0, 0, ErrContinue
		}
		rec, err := r.read(below)
		switch {
		case err != nil:
			return 0, 0, err
		case rec == nil:
			return 0, below - 1, nil
		case !same(rec.Event.Resource, o.Resource) || rec.Event.Namespace != o.Namespace || rec.Event.Name != o.Name:
			return 0, 0, ErrContinue
		case r.several(o): // each has a chain
			return 0, below - 1, nil
		}
		return rec.Prev, below - 1, nil
	}
	entries, err := r.entries(o, leavings{})
	if err != nil {
		return 0, 0, err
	}
	if len(entries) == 1 && entries[0].object != nil && !r.several(o) {
		begin = entries[0].object.Sequence()
	}
	if next == 0 {
		return begin, newest, nil
	}
	rec, err := r.read(next)
	if rec == nil || begin == 0 {
		return 0, next - 1, err
	}
	return rec.Prev, next - 1, err
}

// unreadable is the summary of a change whose record is damaged.
const unreadable = "the record cannot be read"

// summarize describes the change that led to a record's state. shown are the objects of
// records that were read.
func (r *Reader) summarize(rec *stored, shown map[uint64][]byte) (string, error) {
	e := rec.Event
	if e.Summary != "" {
		return e.Summary, nil
	}
	if len(rec.Targets) > 0 {
		e.Selection = rec.Targets[0].Flags.Selection()
	}
	if e.Type == event.Updated {
		before, after, err := r.states(rec, shown)
		if err != nil {
			return "", err
		}
		e.OldObject, e.Object = before, after
	} else if e.Resource.SelfDescribing(e.Type) {
		e.Object = r.show(rec.Record, rec.Object)
	}
	text, err := Summarize(&e, r.ledger, rec.Prev, rec.sequence)
	if text == "" && e.Type == event.Updated {
		text = "updated" // from a state that is not there any more
	}
	return text, err
}

// Summarize is [summary.Of] for the event of a record and the state of the one before it, prev, whose hashes of redacted
// values may be of another key: they are no change.
func Summarize(e *event.Event, l *ledger.Ledger, prev, sequence uint64) (string, error) {
	if prev <= unlogged || !hashed.Match(e.OldObject) || !hashed.Match(e.Object) {
		return summary.Of(e), nil
	}
	keys, err := l.RedactKeys()
	if err != nil || !keys.Changed(prev, sequence) {
		return summary.Of(e), err
	}
	plain := *e
	plain.OldObject, plain.Object = unhashed(e.OldObject), unhashed(e.Object)
	return summary.Of(&plain) + ", redacted values have another key", nil
}

// states returns the states before and after a record, as far as they are recorded.
func (r *Reader) states(rec *stored, shown map[uint64][]byte) (before, after []byte, err error) {
	look := func(rec *stored) []byte {
		raw, ok := shown[rec.sequence]
		if !ok {
			raw = r.show(rec.Record, rec.Object)
			clear(shown)
			shown[rec.sequence] = raw
		}
		return raw
	}
	after = look(rec)
	if len(rec.OldObject.Data) > 0 {
		return r.show(rec.Record, rec.OldObject), after, nil
	}
	if rec.Prev <= unlogged {
		return nil, after, nil
	}
	prev, err := r.read(rec.Prev)
	if err != nil || prev == nil {
		return nil, after, err
	}
	return look(prev), after, nil
}
