package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Filter selects changes. What is empty selects all.
type Filter struct {
	Resource        *event.Resource
	Namespace, Name string
	Types           []event.Type
	Manager         string
	From, To        time.Time
	NoNoise         bool // not what headline.Row.Noise reports
}

// matcher reports which rows a filter selects. What the class of a row decides is judged once for each class. It is for
// the rows of one [headline.Reader] and for one goroutine.
type matcher struct {
	filter      *Filter
	first, last int64 // times
	texts       bool  // the filter selects by some
	classes     map[uint64]class
	latest      uint64 // the class of the row before, and what it decides:
	class
}

type class struct {
	selected, noise bool
	kind            int // its type, among types
}

func (f *Filter) matcher() *matcher {
	m := &matcher{filter: f, first: math.MinInt64, last: math.MaxInt64, texts: f.text() != "", classes: map[uint64]class{}, latest: math.MaxUint64}
	if !f.From.IsZero() {
		m.first = nanos(f.From)
	}
	if !f.To.IsZero() {
		m.last = nanos(f.To)
	}
	return m
}

// matches reports whether the filter selects a row, noise or not.
func (m *matcher) matches(row *headline.Row) bool {
	if row.Class != m.latest {
		m.judge(row)
	}
	return m.selected && row.At >= m.first && row.At <= m.last && (!m.texts || m.filter.selectsTexts(row))
}

func (m *matcher) judge(row *headline.Row) {
	c, ok := m.classes[row.Class]
	if !ok {
		f := m.filter
		c.selected = row.Flags&headline.Rerecorded == 0 && (f.Resource == nil || same(row.Resource, *f.Resource)) &&
			(len(f.Types) == 0 || slices.Contains(f.Types, row.Type))
		c.noise, c.kind = row.Noise(f.Resource != nil), slices.Index(types[:], row.Type)
		m.classes[row.Class] = c
	}
	m.latest, m.class = row.Class, c
}

func (f *Filter) selectsTexts(row *headline.Row) bool {
	return (f.Namespace == "" || row.Namespace == f.Namespace) && (f.Name == "" || row.Name == f.Name) && (f.Manager == "" || row.By(f.Manager))
}

// nanos is a time in Unix nanoseconds, or the first or last there are.
func nanos(t time.Time) int64 {
	switch {
	case t.Before(firstNano):
		return math.MinInt64
	case t.After(lastNano):
		return math.MaxInt64
	default:
		return t.UnixNano()
	}
}

var firstNano, lastNano = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// text is in all blocks with rows that match.
func (f *Filter) text() string {
	switch {
	case f.Name != "":
		return f.Name
	case f.Manager != "":
		return f.Manager
	default:
		return f.Namespace
	}
}

// bounds are the sequences of the records that may match, and their period: by default, from
// the first one until now; and what is not read of it.
func (r *Reader) bounds(f *Filter) (low, high uint64, from, to time.Time, unread []Unread, err error) {
	from, to = f.From, f.To
	if now := r.now(); to.IsZero() || to.After(now) {
		to = now
	}
	if unread, err = r.unread(f.Resource, f.Namespace, f.Name, to); err != nil {
		return low, high, from, to, unread, err
	}
	low, at, err := r.horizon()
	high = r.store.LogStats().Last
	switch {
	case err != nil:
	case !from.IsZero():
		if epoch := time.Unix(0, 0); from.Before(epoch) { // which no record is, and durations have an end
			from = epoch
		}
		var begin uint64
		begin, err = r.begin(from)
		low = max(low, begin)
	case at.Equal(never):
		from = to
	default:
		from = at.Add(-disorder)
		if to.Before(from) { // all of the period is before the history
			from = to
		}
	}
	return low, high, from, to, unread, err
}

// answered returns how complete an answer is that was read from a sequence on; part: it lacks
// something.
func (r *Reader) answered(f *Filter, low uint64, from, to time.Time, unread []Unread, part bool) (Span, error) {
	since := f.From
	if since.IsZero() && from.Equal(to) { // nothing of the period is in the log
		since = to
	}
	s, err := r.span(f.Resource, f.Namespace, f.Name, since, to)
	s.read(unread)
	// Without a time the period begins where the log did, and retention may have deleted more since.
	part = part || f.From.IsZero() && r.gone(low)
	s.From, s.Complete = from, s.Complete && !part
	return s, err
}

// gone reports whether retention has deleted the records from a sequence on.
func (r *Reader) gone(sequence uint64) bool { return sequence < r.store.LogStats().First }

// Query asks for a page of changes.
type Query struct {
	Filter
	Path     *rawjson.Path // only changes of what is there
	Test     *Test         // nil: no further test
	Oldest   bool          // the oldest first
	Before   uint64        // only changes with a smaller sequence; 0: all
	Limit    int
	Continue string // of the page before
}

// ErrAbsent is wrapped by the error of a test that is false because a change does not have what it reads.
var ErrAbsent = errors.New("not there")

// Test decides about changes what a Filter cannot. It is for one goroutine at a time.
type Test struct {
	// Accepts decides about the record of a change. An error counts, apart from the others if it is ErrAbsent.
	Accepts func(r *record.Record) (ok bool, err error)
	// Rejects reports whether a headline shows that Accepts is false, without an error; nil: none
	// does.
	Rejects func(row *headline.Row) bool
}

// Change is a record of the log.
type Change struct {
	Version
	Resource  event.Resource `json:"resource"`
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Gap       *event.GapData `json:"gap,omitempty"`
}

// Page is a page of changes.
type Page struct {
	Span
	Items    []Change `json:"items"`
	Scanned  int      `json:"scanned"`            // headlines that were looked at
	Continue string   `json:"continue,omitempty"` // for the next page; empty: this is the last

	Reached    time.Time `json:"reached,omitzero"` // by a query with a test: the time of the last change that was looked at
	Failed     int       `json:"failed,omitempty"` // tests that failed: the changes are left out
	FirstError string    `json:"firstError,omitempty"`
	Absent     int       `json:"absent,omitempty"` // changes without a field or an item that the test reads: it is false
}

// maxCompared bounds how many states one page compares.
const maxCompared = 4096

// slice is how long a page reads changes.
const slice = 500 * time.Millisecond

// ErrContinue is wrapped by the error for a continuation that no page gave.
var ErrContinue = errors.New("continue is not what an earlier page gave")

// token continues after a record.
func token(sequence uint64) string { return strconv.FormatUint(sequence, 36) }

// position is the record of a token, 0 if there is none.
func position(token string) (uint64, error) {
	if token == "" {
		return 0, nil
	}
	sequence, err := strconv.ParseUint(token, 36, 64)
	if err != nil || sequence == 0 || sequence == math.MaxUint64 {
		return 0, ErrContinue
	}
	return sequence, nil
}

// Query returns a page of changes.
func (r *Reader) Query(ctx context.Context, q Query) (Page, error) {
	p := Page{Items: []Change{}}
	low, high, from, to, unread, err := r.bounds(&q.Filter)
	if err != nil {
		return p, err
	}
	switch last, err := position(q.Continue); {
	case err != nil:
		return p, err
	case last == 0:
	case q.Oldest && q.From.IsZero():
		low = last + 1 // which may be gone by now
	case q.Oldest:
		low = max(low, last+1)
	default:
		high = min(high, last-1)
	}
	if q.Before != 0 {
		high = min(high, q.Before-1)
	}
	compared, size, shown, began := 0, 0, map[uint64][]byte{}, time.Now()
	records, err := r.store.Records()
	if err != nil {
		return p, err
	}
	defer records.Close()
	var last uint64
	selects := q.matcher()
	keep := func(row *headline.Row) bool {
		p.Scanned++
		return selects.matches(row) && !(q.NoNoise && selects.noise)
	}
	err = r.rows(ctx, low, high, !q.Oldest, q.text(), keep, func(row *headline.Row) error {
		if len(p.Items) == q.Limit || compared == maxCompared || size > pageBytes || last != 0 && time.Since(began) > slice {
			p.Continue = token(last)
			return errEnough
		}
		last = row.Sequence
		if (q.Path != nil || q.Test != nil) && row.Type == event.Gap {
			return nil
		}
		if q.Test != nil {
			p.Reached = row.Time()
			if q.Test.Rejects != nil && q.Test.Rejects(row) {
				return nil
			}
			if ok, err := passes(records, row, &q, &p); err != nil || !ok {
				return errors.Join(err, stop(ctx))
			}
		}
		compared++
		c, ok, err := r.change(row, q.Path, shown)
		if err != nil {
			return err
		}
		if ok {
			p.Items = append(p.Items, c)
			size += len(c.Name) + len(c.Summary)
		}
		return stop(ctx)
	})
	damaged := errors.Is(err, store.ErrUnreadable)
	if err = ledger.IgnoreUnreadable(ignoreEnough(err)); err != nil {
		return p, err
	}
	p.Span, err = r.answered(&q.Filter, low, from, to, unread, damaged)
	return p, err
}

// passes runs a query's test on a change. A record that cannot be read is not left out
// silently.
func passes(records *store.Records, row *headline.Row, q *Query, p *Page) (bool, error) {
	rec, err := ReadRecord(records, row.Sequence)
	if rec == nil || err != nil {
		return err == nil, err
	}
	ok, err := q.Test.Accepts(rec)
	switch {
	case errors.Is(err, ErrAbsent):
		p.Absent++
	case err != nil:
		if p.Failed++; p.FirstError == "" {
			p.FirstError = err.Error()
		}
	}
	return ok, nil
}

// change returns a change in full. It is not ok if it does not concern the path.
func (r *Reader) change(row *headline.Row, path *rawjson.Path, shown map[uint64][]byte) (c Change, ok bool, err error) {
	c = Change{
		Version:  Version{Sequence: row.Sequence, Time: row.Time(), Type: row.Type, Manager: strings.Clone(row.Manager)},
		Resource: row.Resource, Namespace: strings.Clone(row.Namespace), Name: strings.Clone(row.Name),
	}
	rec, err := r.read(row.Sequence)
	if err != nil {
		return c, false, err
	}
	if rec == nil {
		c.Summary = unreadable
		return c, !r.gone(row.Sequence), nil // nothing is left out silently
	}
	c.Time, c.Gap = rec.Event.Time, rec.Event.Gap
	if path != nil {
		before, after, err := r.states(rec, shown)
		if err != nil || !touches(*path, before, after, row.Type) {
			return c, false, err
		}
	}
	c.Summary, err = r.summarize(rec, shown)
	return c, true, err
}

// touches reports whether a change changes a value of the path.
func touches(path rawjson.Path, before, after []byte, t event.Type) bool {
	values := func(raw []byte) (all [][]byte) {
		for v := range rawjson.Values(raw, path) {
			all = append(all, v)
		}
		return all
	}
	if t != event.Updated {
		return len(values(after)) > 0
	}
	if before == nil || after == nil {
		return true // it may
	}
	return !slices.EqualFunc(values(before), values(after), bytes.Equal)
}

// MaxBuckets is the most that a histogram has.
const MaxBuckets = 200

// Histogram counts changes over time.
type Histogram struct {
	Span
	Buckets []Bucket `json:"buckets"`
	Noise   int      `json:"noise"` // changes that the filter without NoNoise selects, and with it does not
	Scanned int      `json:"scanned"`
}

// Bucket counts the changes from a time to the next bucket's.
type Bucket struct {
	From   time.Time          `json:"from"`
	Counts map[event.Type]int `json:"counts"`
}

// Histogram counts the changes that a filter selects, in equal parts of their period.
func (r *Reader) Histogram(ctx context.Context, f Filter, buckets int) (Histogram, error) {
	var h Histogram
	low, high, from, to, unread, err := r.bounds(&f)
	if err != nil {
		return h, err
	}
	if to.Before(from) {
		from = to
	}
	buckets = max(1, min(buckets, MaxBuckets))
	width := max(to.Sub(from)/time.Duration(buckets), 1)
	for i := range buckets {
		h.Buckets = append(h.Buckets, Bucket{From: from.Add(time.Duration(i) * width), Counts: map[event.Type]int{}})
	}
	var counts [MaxBuckets][len(types)]int
	first, last, selects := nanos(from), nanos(to), f.matcher()
	in := headline.Reader{Bare: !selects.texts}
	i, begin, end := 0, first, first // the bucket of the row before
	err = r.store.ScanHeadlines(low, high, false, func(blocks []byte) error {
		if err := stop(ctx); err != nil {
			return err
		}
		return in.Read(blocks, f.text(), func(row *headline.Row) error {
			if row.Sequence < low || row.Sequence > high {
				return nil
			}
			if h.Scanned++; !selects.matches(row) {
				return nil
			}
			at := min(max(row.At, first), last) // a period without bounds has all
			if selects.noise {
				if h.Noise++; f.NoNoise {
					return nil
				}
			}
			if at < begin || at >= end {
				i = min(int((at-first)/int64(width)), buckets-1)
				begin = first + int64(i)*int64(width)
				end = begin + int64(width)
			}
			counts[i][selects.kind]++
			return nil
		})
	})
	err = malformed(err)
	damaged := errors.Is(err, store.ErrUnreadable)
	if err = ledger.IgnoreUnreadable(err); err != nil {
		return h, err
	}
	for i := range h.Buckets {
		for k, n := range counts[i] {
			if n > 0 {
				h.Buckets[i].Counts[types[k]] = n
			}
		}
	}
	h.Span, err = r.answered(&f, low, from, to, unread, damaged)
	return h, err
}

var types = [...]event.Type{"", event.Added, event.Updated, event.Deleted, event.Sync, event.Gap}

// Changes are the net changes of a period.
type Changes struct {
	Span
	Items     []NetChange `json:"items"`
	Churned   int         `json:"churned"` // objects that ended as they began, and are no items
	Scanned   int         `json:"scanned"`
	Truncated bool        `json:"truncated,omitempty"` // more objects changed than are listed
	Groups    []Group     `json:"groups,omitempty"`    // the items below their owners, if that was asked for; Items then is empty
}

// NetChange is what a period changed in an object.
type NetChange struct {
	Resource  event.Resource `json:"resource"`
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name"`
	Change    string         `json:"change"` // created, changed, deleted, or unknown: it was there, and what it was before is not known
	Recreated bool           `json:"recreated,omitempty"`
	Count     int            `json:"count"`              // of changes
	Time      time.Time      `json:"time"`               // of the last one
	Managers  []string       `json:"managers,omitempty"` // of the changes, the first 20
	Summary   string         `json:"summary,omitempty"`
	Before    As             `json:"before"` // what the state before is worth
	After     As             `json:"after"`
}

// ChangeUnknown is the Change of an object that was there before the period, in a state that is not known.
const ChangeUnknown = "unknown"

const (
	maxNet      = 10_000 // objects of one answer, with names of about pageBytes
	maxManagers = 20     // of one of them: a client may have another name for each write
)

// Changes returns the net change of every object from one time to another, if byOwner is true
// in groups. A filter selects objects: its types, manager and noise have no meaning.
func (r *Reader) Changes(ctx context.Context, f Filter, byOwner bool) (Changes, error) {
	c := Changes{Items: []NetChange{}}
	f.Types, f.Manager, f.NoNoise = nil, "", false
	low, _, from, to, unread, err := r.bounds(&f)
	if err != nil {
		return c, err
	}
	before, err := r.until(from)
	if err != nil {
		return c, err
	}
	during, err := r.until(to)
	if err != nil {
		return c, err
	}
	found, names := map[Object]*net{}, 0
	var order []*net
	keep := func(row *headline.Row) bool {
		c.Scanned++
		return row.Flags&headline.State != 0 && !before.has(row.Sequence, row.Time()) && (f.Resource == nil || same(row.Resource, *f.Resource)) && f.selectsTexts(row)
	}
	err = r.rows(ctx, low, newest, false, f.text(), keep, func(row *headline.Row) error {
		o := found[objectOf(row)]
		if !during.has(row.Sequence, row.Time()) {
			if o != nil && o.after == 0 {
				o.after = row.Sequence
			}
			return nil
		}
		if o == nil {
			if len(order) == maxNet || names > pageBytes {
				c.Truncated = true // the scan continues for the others
				return stop(ctx)
			}
			o = &net{NetChange: NetChange{Resource: row.Resource, Namespace: strings.Clone(row.Namespace), Name: strings.Clone(row.Name)}, first: row.Sequence, begun: row.Time()}
			found[key(o.object())], order = o, append(order, o)
			names += len(o.Name)
		}
		o.after, o.last, o.ended = 0, row.Sequence, row.Type == event.Deleted
		if row.Flags&headline.Rerecorded == 0 {
			o.Count, o.Time = o.Count+1, row.Time()
			for m := range strings.SplitSeq(row.Manager, ",") {
				if m != "" && len(o.Managers) < maxManagers && !slices.Contains(o.Managers, m) {
					o.Managers = append(o.Managers, strings.Clone(m))
				}
			}
		}
		return stop(ctx)
	})
	damaged := errors.Is(err, store.ErrUnreadable)
	if err = ledger.IgnoreUnreadable(err); err != nil {
		return c, err
	}
	order, whole, err := r.ends(ctx, order, before, during, byOwner)
	if err != nil {
		return c, err
	}
	c.Truncated = c.Truncated || !whole
	for _, o := range order {
		if o.compare(); o.Change == "" {
			c.Churned++
			continue
		}
		c.Items = append(c.Items, o.NetChange)
	}
	if byOwner {
		c.Items = []NetChange{}
		if c.Groups, err = grouped(order, r.above(ctx, during)); err != nil {
			return c, err
		}
	}
	c.Span, err = r.span(f.Resource, f.Namespace, f.Name, from, to)
	c.read(unread)
	c.Complete = c.Complete && !damaged && !c.Truncated
	return c, err
}

// net is an object with changes in a period: the states at its ends, the sequences of its first
// and last state in the period and of the first one after it.
type net struct {
	NetChange
	first, last, after uint64
	begun              time.Time // of the first

	ended   bool  // its last state in the period is a deletion
	was, is State // without their objects, which may be many

	recreated bool
	text      string // what changed from one state to the other

	owners []Ref // what it may be a consequence of, if that is asked for
}

func (n *net) object() Object { return Object{n.Resource, n.Namespace, n.Name} }

// ends finds the states at both ends of a period of those objects that changed, and if it is
// asked for their owners: at the end of what was recorded before it, and of that up to its end. It is not the whole if that takes too long for all of them.
func (r *Reader) ends(ctx context.Context, all []*net, from, to past, owners bool) (list []*net, whole bool, err error) {
	all = slices.DeleteFunc(all, func(n *net) bool { return n.Count == 0 }) // redacted, not changed
	keys, err := r.ledger.RedactKeys()
	if err != nil {
		return nil, false, err
	}
	began, refs := time.Now(), 0
	left := map[event.Resource]leavings{}
	find := func(n *net, aroundFrom, aroundTo *around) error {
		o := n.object()
		if n.was, err = r.resolve(ctx, &o, from, n.first, nil); err == nil && aroundFrom != nil {
			n.was, err = r.lasting(&o, n.was, aroundFrom, nil)
		}
		if err != nil {
			return err
		}
		if _, ok := left[o.Resource]; !ok {
			if left[o.Resource], err = r.leavings(o.Resource); err != nil {
				return err
			}
		}
		entries, err := r.entries(&o, left[o.Resource])
		if err != nil {
			return err
		}
		if n.is, err = r.resolve(ctx, &o, to, n.after, entries); err == nil {
			n.is, err = r.latest(&o, n.is, n.last)
		}
		if err == nil && aroundTo != nil {
			n.is, err = r.lasting(&o, n.is, aroundTo, entries)
		}
		if err != nil {
			return err
		}
		if owners {
			if n.owners, err = r.ownersOf(n); err != nil {
				return err
			}
			if refs += len(n.owners); refs > maxAllRefs {
				n.owners = slices.Clone(n.owners[:min(len(n.owners), 1)])
			}
		}
		alike(keys, &n.was, &n.is)
		n.describe()
		return nil
	}
	came, unknown := map[Object]bool{}, map[Object]*net{}
	whole = true
	for i, n := range all {
		if time.Since(began) > 10*patience {
			all, whole = all[:i], false
			break
		}
		if err := find(n, nil, nil); err != nil {
			return nil, false, err
		}
		if n.was.As == Exact && !n.was.Exists {
			came[key(n.object())] = true
		}
		if n.was.As == UnknownBefore || n.is.As == UnknownBefore {
			unknown[key(n.object())] = n
		}
	}
	if err := r.eachMoved(ctx, unknown, from, to, find); err != nil {
		return nil, false, err
	}
	lived, err := r.lastBefore(ctx, from, "", func(row *headline.Row) bool { return came[objectOf(row)] }, len(came))
	damaged := errors.Is(err, store.ErrUnreadable)
	if err != nil && !damaged {
		return nil, false, err
	}
	covered := map[Object]coverage{} // by resource, and by namespace where feeds read one
	cover := func(resource event.Resource, namespace string) (coverage, error) {
		of := Object{Resource: resource, Namespace: namespace}
		c, ok := covered[of]
		if !ok {
			if c, err = r.coverage(&resource, namespace); err == nil {
				covered[of] = c
			}
		}
		return c, err
	}
	for _, n := range all {
		o := n.object()
		c, err := cover(o.Resource, "")
		if err == nil && c.apart {
			c, err = cover(o.Resource, o.Namespace)
		}
		if err != nil {
			return nil, false, err
		}
		last := lived[key(o)]
		ended := last.sequence != 0 && c.changes(from.t)
		if n.was.As == Exact && !n.was.Exists && (damaged || !ended && !c.absent(from.t, n.begun) || last.lives()) {
			n.was.As = UnknownBefore
		}
		if n.is.As == Exact && !n.is.Exists && (damaged || !c.changes(from.t) || !n.ended) {
			n.is.As = UnknownBefore
		}
		if n.was, err = r.judge(&o, from, n.was, nil); err != nil {
			return nil, false, err
		}
		if n.is, err = r.judge(&o, to, n.is, nil); err != nil {
			return nil, false, err
		}
	}
	return all, whole, nil
}

// eachMoved calls f with what is recorded around two pasts of those of the objects that left a selection or entered one with the labels of
// their namespace.
func (r *Reader) eachMoved(ctx context.Context, objects map[Object]*net, from, to past, f func(n *net, aroundFrom, aroundTo *around) error) error {
	if len(objects) == 0 {
		return nil
	}
	first := r.store.LogStats().First
	among := func(row *headline.Row) bool { return objects[objectOf(row)] != nil }
	resources := map[event.Resource]bool{}
	err := r.rows(ctx, first, newest, false, "", func(row *headline.Row) bool {
		return row.Flags&headline.State == 0 && row.Flags&moves != 0 && among(row)
	}, func(row *headline.Row) error {
		resources[objectOf(row).Resource] = true
		return nil
	})
	for resource := range resources {
		of := func(row *headline.Row) bool { return same(row.Resource, resource) && among(row) }
		before, beforeErr := r.around(ctx, from, first, "", of)
		during, duringErr := r.around(ctx, to, first, "", of)
		err = cmp.Or(err, beforeErr, duringErr)
		for p, a := range before {
			if b := during[p]; b != nil && err == nil && a.moved {
				err = f(objects[Object{resource, p.namespace, p.name}], a, b)
			}
		}
	}
	return ledger.IgnoreUnreadable(err)
}

// describe compares the objects of both states, and drops them.
func (n *net) describe() {
	if n.was.Exists && n.is.Exists {
		n.recreated = uid(n.was.Object) != uid(n.is.Object)
		n.text, _ = summary.Changes(&event.Event{Type: event.Updated, OldObject: n.was.Object, Object: n.is.Object})
	}
	n.was.Object, n.is.Object = nil, nil
}

// compare sets what the period changed.
func (n *net) compare() {
	n.Before, n.After = n.was.As, n.is.As
	switch {
	case n.Before != Exact && !n.was.Exists, n.After != Exact && !n.is.Exists:
		n.Change = ChangeUnknown
	case !n.was.Exists && !n.is.Exists:
	case !n.was.Exists:
		n.Change = "created"
	case !n.is.Exists:
		n.Change = "deleted"
	default:
		if n.Recreated = n.recreated; n.text != "" || n.recreated {
			n.Change, n.Summary = "changed", n.text
		}
	}
}

func uid(raw []byte) string {
	meta, err := rawjson.ScanHead(raw)
	if err != nil {
		return ""
	}
	return string(meta.UID)
}

// Difference is the difference of two states of an object.
type Difference struct {
	From State  `json:"from"`
	To   State  `json:"to"`
	Diff string `json:"diff"` // unified, of YAML; empty: they are equal
	// Rekeyed means that the hashes of redacted values are of two keys: the diff has "redacted" for them.
	Rekeyed bool `json:"rekeyed,omitempty"`

	Unread []Unread `json:"unread,omitempty"` // before the later of two times
}

// hashed is a redacted value.
var hashed = regexp.MustCompile(event.RedactedPattern)

// alike gives the redacted values of two states one text if their hashes may be of two keys, and
// reports that.
func alike(keys ledger.RedactKeys, was, is *State) bool {
	if was.form == 0 || is.form == 0 || !keys.Changed(was.form, is.form) {
		return false
	}
	was.Object, is.Object = unhashed(was.Object), unhashed(is.Object)
	return true
}

// unhashed is an object with one text for all redacted values.
func unhashed(raw []byte) []byte { return hashed.ReplaceAll(raw, []byte("redacted")) }

// ErrNoChange is the error for the last change of an object without one.
var ErrNoChange = errors.New("no change is recorded")

// Diff compares the states of an object at two times, or if from is zero those before and after
// its last change up to a time. The states are left out of From and To.
func (r *Reader) Diff(ctx context.Context, o Object, from, to time.Time) (Difference, error) {
	var d Difference
	unread, err := r.unread(&o.Resource, o.Namespace, o.Name, later(from, to)) // before the states: it waits for what is being recorded
	if err != nil {
		return d, err
	}
	if d.Unread = unread; from.IsZero() {
		d.From, from, err = r.beforeLast(ctx, &o, to)
	} else {
		d.From, err = r.stateAt(ctx, o, from)
	}
	if err == nil {
		d.To, err = r.stateAt(ctx, o, to)
	}
	if err != nil {
		return d, err
	}
	return r.compared(&o, d, from, to)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// DiffVersion compares a version of an object with another one, base, or if that is 0 with the
// state before it. The states are left out of From and To.
func (r *Reader) DiffVersion(ctx context.Context, o Object, base, sequence uint64) (Difference, error) {
	var d Difference
	var err error
	if d.To, err = r.AtVersion(o, sequence); err != nil {
		return d, err
	}
	from, to := d.To.Time, d.To.Time
	switch {
	case base != 0:
		d.From, err = r.AtVersion(o, base)
		from = d.From.Time
	case to.IsZero(): // its record is not there
		d.From = State{As: d.To.As, Namespace: o.Namespace, Name: o.Name}
	default:
		d.From, err = r.preceding(ctx, &o, &Version{Sequence: sequence, Time: to})
		from = to.Add(-1)
	}
	if err != nil {
		return d, err
	}
	return r.compared(&o, d, from, to)
}

// compared completes a difference of the states of two times.
func (r *Reader) compared(o *Object, d Difference, from, to time.Time) (Difference, error) {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	if strings.ContainsFunc(name, unicode.IsControl) { // which would add lines
		name = strconv.Quote(name)
	}
	label := func(s *State, t time.Time) string {
		return fmt.Sprintf("%s/%s\t%s (%s)", o.Resource.Resource, name, t.UTC().Format("2006-01-02T15:04:05.000Z"), s.As)
	}
	keys, err := r.ledger.RedactKeys()
	if err != nil {
		return d, err
	}
	d.Rekeyed = alike(keys, &d.From, &d.To)
	d.Diff, err = unified(d.From.Object, d.To.Object, label(&d.From, from), label(&d.To, to))
	d.From.Object, d.To.Object = json.RawMessage(nil), nil
	return d, err
}

// beforeLast is the state before an object's last change up to a time, and when that was.
func (r *Reader) beforeLast(ctx context.Context, o *Object, to time.Time) (State, time.Time, error) {
	last, err := r.Versions(ctx, VersionQuery{Object: *o, To: to, Limit: 1})
	if err == nil && len(last.Items) == 0 {
		err = ErrNoChange
	}
	if err != nil {
		return State{}, time.Time{}, err
	}
	s, err := r.preceding(ctx, o, &last.Items[0])
	return s, last.Items[0].Time.Add(-1), err
}
