// Package history answers what the log knows of the past: the versions of an object, its
// state at a time, the difference of two states, the changes of a period.
//
// Guarantees:
//
//   - An answer about a time is [Exact], [UnknownBefore] where nothing is recorded, or [Gap]
//     where changes were missed or a record cannot be read. An exact state is the one that had
//     been observed last at that time.
//   - Nothing is changed, and no lock is held while the store is read.
//   - What is shown is edited as the configuration wants it now.
//
// Caveats: times are those of observation. A change that happened while nothing watched, and
// that the API server still reported afterwards, has the later time. An object that no watch
// with a history selects does not exist here.
//
// The package is larger than others, because all answers are made of the same walks of one
// [Reader] over rows, records and states: query.go pages and changes, state.go versions and
// states, diff.go differences, blame.go and owners.go what they say of fields and owners.
package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// Store is the part of the durable store that is read. *store.Store implements it.
type Store interface {
	LogStats() store.LogStats
	ReadRecord(sequence uint64) (store.Item, bool, error)
	Records() (*store.Records, error)
	ScanHeadlines(from, to uint64, newestFirst bool, f func(blocks []byte) error) error
	SequenceAt(t time.Time) uint64
	Partitions() []string
}

// Reader reads the history. Any goroutine may use it.
type Reader struct {
	store    Store
	ledger   *ledger.Ledger
	inflater *record.Inflater
	now      func() time.Time
	reading  Reading // nil: no statement
	places   int     // maxPlaces

	mu     sync.Mutex // guards what follows
	known  known      // its lists are never changed
	begins horizon    // zero: not known yet
}

// known is what the log up to a record has of gaps and clocks.
type known struct {
	seen    uint64 // the record
	gaps    []gap
	backs   []back
	latest  time.Time     // that the clock has shown, since it was set back last
	late    time.Duration // that a record has at most been committed after one of a later time, while the clock was not set
	damaged bool          // headlines are, and may hide gaps
	first   uint64        // of the log then
}

// certain is the time from which on the clock has shown no time that was before an earlier time.
func (k *known) certain(t time.Time) time.Time {
	for _, b := range k.backs {
		if !t.Before(b.at) && t.Before(b.from) {
			t = b.from
		}
	}
	return t
}

// back is a record before which the clock was set back.
type back struct {
	sequence uint64
	at       time.Time
	from     time.Time // the latest that it had shown since it was set back before
}

// New returns the reader of a store's history.
func New(s Store, l *ledger.Ledger, in *record.Inflater) *Reader {
	return &Reader{store: s, ledger: l, inflater: in, now: time.Now, places: maxPlaces}
}

// Reading reports of the feeds that run, by their names in the store, what of them is not in the history; the zero Unread is nothing.
// all: these are all that the config asks for, as the resources of the cluster are known. It may wait a moment for what those that settle
// selects, nil: none, have observed up to a time to be recorded.
type Reading func(settle func(feed string) bool, to time.Time) (feeds map[string]Unread, all bool)

// Reading sets what runs. It is called before the first question. Without it, as
// for the store of a daemon that does not run, all feeds count as read.
func (r *Reader) Reading(feeds Reading) { r.reading = feeds }

// Unread are changes that are not in the history yet: those since a time, of a resource that
// no watch can read at the moment, or of which a watch has read more than is committed.
type Unread struct {
	Resource  string    `json:"resource"`            // such as pods, deployments.apps
	Namespace string    `json:"namespace,omitempty"` // empty: all
	Since     time.Time `json:"since"`
	Cause     string    `json:"cause"`

	Forbidden bool `json:"-"` // no watch may read it: what never was read is not missed in answers about all resources
}

// Object names an object. Of the resource, group and name count.
type Object struct {
	Resource        event.Resource
	Namespace, Name string
}

func (o *Object) is(r *headline.Row) bool {
	return r.Name == o.Name && r.Namespace == o.Namespace && same(r.Resource, o.Resource)
}

func same(a, b event.Resource) bool { return a.Resource == b.Resource && a.Group == b.Group }

// key is the object as a key of maps.
func key(o Object) Object {
	return Object{event.Resource{Group: o.Resource.Group, Resource: o.Resource.Resource}, o.Namespace, o.Name}
}

func objectOf(r *headline.Row) Object { return key(Object{r.Resource, r.Namespace, r.Name}) }

// As is what an answer is worth.
type As string

// The values of As.
const (
	Exact         As = "exact"
	UnknownBefore As = "unknown-before" // nothing is recorded that early
	Gap           As = "gap"            // changes may have been missed
)

type gap struct {
	sequence uint64
	at       time.Time
	data     event.GapData
}

// gapScope is what a gap is of: the list after the next gap of one scope shows nothing that the
// list after the one before has not shown.
type gapScope struct{ watch, namespace, name string }

func (g *gap) scope() gapScope { return gapScope{g.data.Watch, g.data.Namespace, g.data.Name} }

func (g *gap) concerns(r *event.Resource, namespace, name string) bool {
	return (r == nil || same(g.data.Resource, *r)) &&
		(namespace == "" || g.data.Namespace == "" || g.data.Namespace == namespace) &&
		(name == "" || g.data.Name == "" || g.data.Name == name)
}

// end is the time from which on everything is known again.
func (g *gap) end() time.Time {
	if g.at.After(g.data.To) {
		return g.at
	}
	return g.data.To
}

// hides reports whether the state at the end of a past is uncertain: the one of the record before,
// which is followed by the one of the record next. 0 stands for none.
func (g *gap) hides(at past, before, next uint64) bool {
	between := before < g.sequence && (next == 0 || g.sequence < next)
	switch {
	case g.data.Name != "": // it could not be read, until the next record of it
		return between && (at.has(g.sequence, g.at) || !at.t.Before(g.data.From))
	case at.t.After(g.end()):
		return false
	case g.data.From.IsZero():
		return between
	}
	return g.begun(at)
}

// begun reports whether the gap began in a past. If it begins after its end, the clock was set back in it.
func (g *gap) begun(in past) bool {
	return !in.t.Before(g.data.From) || g.data.From.After(g.end()) && !in.latest.Before(g.data.From)
}

// quiet reports whether the objects that were there before and after it did not change in it.
func (g *gap) quiet() bool { return g.data.Cause == record.CauseQuiet }

// overlaps reports whether the gap has a part of the period between the ends of two pasts. One that
// begins after its end, by a clock that was set back, has its end.
func (g *gap) overlaps(from, to past) bool {
	if to.has(g.sequence, g.at) && !from.has(g.sequence, g.at) {
		return true
	}
	return !g.end().Before(from.t) && (g.begun(to) || !g.end().After(to.t))
}

// allGaps returns the gaps of the log. The error is store.ErrUnreadable if some may be missing.
func (r *Reader) allGaps() ([]gap, error) {
	k, err := r.look()
	if err == nil && k.damaged {
		err = fmt.Errorf("headlines: %w", store.ErrUnreadable)
	}
	return k.gaps, err
}

// look returns what the log has of gaps and clocks by now.
func (r *Reader) look() (known, error) {
	r.mu.Lock()
	k := r.known
	r.mu.Unlock()
	stats := r.store.LogStats()
	if k.damaged && k.first != stats.First {
		k = known{} // retention may have deleted what is damaged
	}
	if k.seen >= stats.Last {
		return k, nil
	}
	k.gaps = slices.DeleteFunc(slices.Clone(k.gaps), func(g gap) bool { return g.sequence < stats.First })
	k.backs = slices.DeleteFunc(slices.Clone(k.backs), func(b back) bool { return b.sequence <= stats.First })
	keep := func(row *headline.Row) bool {
		// The deletions that a list shows, which are unknown, have its time, and are committed after it.
		if row.Flags&(headline.State|headline.Unknown) == headline.State && row.Time().Before(k.latest.Add(-jitter)) {
			k.backs, k.latest = append(k.backs, back{row.Sequence, row.Time(), k.latest}), row.Time()
		}
		k.late = max(k.late, k.latest.Sub(row.Time()))
		if row.Time().After(k.latest) {
			k.latest = row.Time()
		}
		return row.Type == event.Gap
	}
	err := r.allRows(k.seen+1, stats.Last, "", keep, func(row *headline.Row) error {
		g := gap{sequence: row.Sequence, at: row.Time(), data: event.GapData{Resource: row.Resource, Namespace: strings.Clone(row.Namespace), Name: strings.Clone(row.Name), To: row.Time()}}
		rec, err := r.read(row.Sequence)
		if err != nil {
			return err
		}
		if rec != nil && rec.Event.Gap != nil {
			g.data = *rec.Event.Gap
		}
		if g.data.Cause != record.CauseRemoved { // of a sink
			k.gaps = append(k.gaps, g)
		}
		return nil
	})
	if ledger.IgnoreUnreadable(err) != nil {
		return k, err
	}
	k.seen, k.damaged, k.first = stats.Last, k.damaged || err != nil, stats.First
	r.mu.Lock()
	if r.known.seen <= k.seen {
		r.known = k
	}
	r.mu.Unlock()
	return k, nil
}

// past is what counts as recorded up to a time: the records of that time or before it, and all
// up to one, after which the clock has shown that time again.
type past struct {
	t       time.Time
	to      uint64
	ordered bool      // only those up to the one count; the time is about that of the one or the next
	latest  time.Time // the latest that the clock showed before it was set back to the time or before it; zero: it was not
}

func (p past) has(sequence uint64, at time.Time) bool {
	return sequence <= p.to || !p.ordered && !at.After(p.t)
}

// pastBefore is what was recorded before a record, which has a time.
func pastBefore(sequence uint64, at time.Time) past {
	return past{t: at.Add(-1), to: sequence - 1, ordered: true}
}

// until returns what counts as recorded up to a time.
func (r *Reader) until(t time.Time) (past, error) {
	k, err := r.look()
	p := past{t: t}
	for _, b := range k.backs {
		if !b.at.After(p.t) {
			p.to = b.sequence
			if b.from.After(p.latest) {
				p.latest = b.from
			}
		}
	}
	return p, err
}

// begin returns a sequence that the records since a time, and those that count as later, begin
// at or after.
func (r *Reader) begin(t time.Time) (uint64, error) {
	k, err := r.look()
	if len(k.backs) > 0 {
		return r.store.LogStats().First, err
	}
	return r.store.SequenceAt(t.Add(-max(disorder, k.late))), err
}

// newest is beyond the log's end. States in the ledger are read as soon as they are written, and the log has them when they
// are durable: what follows on a state is looked for in what is written, too.
const newest = math.MaxUint64

// rows calls f with the headlines of the records from one sequence to another, or from the
// newest on, that keep selects, which may see others, until the context ends. Of blocks without the text there may be
// none. A row is valid during the call only, and so are its texts.
func (r *Reader) rows(ctx context.Context, from, to uint64, newestFirst bool, text string, keep func(*headline.Row) bool, f func(*headline.Row) error) error {
	return r.scan(func() error { return stop(ctx) }, from, to, newestFirst, text, keep, f)
}

// allRows is rows from the oldest on, without an end before the last.
func (r *Reader) allRows(from, to uint64, text string, keep func(*headline.Row) bool, f func(*headline.Row) error) error {
	return r.scan(func() error { return nil }, from, to, false, text, keep, f)
}

func (r *Reader) scan(stop func() error, from, to uint64, newestFirst bool, text string, keep func(*headline.Row) bool, f func(*headline.Row) error) error {
	var in headline.Reader
	var list []headline.Row
	err := r.store.ScanHeadlines(from, to, newestFirst, func(blocks []byte) error {
		if err := stop(); err != nil {
			return err
		}
		list = list[:0]
		err := in.Read(blocks, text, func(row *headline.Row) error {
			switch {
			case row.Sequence < from || row.Sequence > to || !keep(row):
				return nil
			case newestFirst:
				list = append(list, *row)
				return nil
			default:
				return f(row)
			}
		})
		for i := len(list) - 1; i >= 0 && err == nil; i-- {
			err = f(&list[i])
		}
		return err
	})
	return malformed(err)
}

// malformed is an error of reading headlines as one of a store that is damaged, if they are.
func malformed(err error) error {
	if errors.Is(err, headline.ErrMalformed) {
		return fmt.Errorf("%w: %w", store.ErrUnreadable, err)
	}
	return err
}

// Headlines calls f with the headlines of the records after a sequence, in order, until f returns
// false. A row is valid during the call only. The error wraps store.ErrUnreadable for headlines that are damaged.
func (r *Reader) Headlines(after uint64, f func(*headline.Row) bool) error {
	err := r.allRows(after+1, r.store.LogStats().Last, "", func(*headline.Row) bool { return true }, func(row *headline.Row) error {
		if !f(row) {
			return errEnough
		}
		return nil
	})
	return ignoreEnough(err)
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

func ignoreEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// stored is a record of the log.
type stored struct {
	*record.Record
	sequence uint64
}

// read returns a record, nil if it is not in the log any more or cannot be read.
func (r *Reader) read(sequence uint64) (*stored, error) {
	rec, err := ReadRecord(r.store, sequence)
	if rec == nil {
		return nil, err
	}
	return &stored{rec, sequence}, nil
}

// ReadRecord returns a record, nil if it is not in the log any more or cannot be read.
func ReadRecord(log interface {
	ReadRecord(sequence uint64) (store.Item, bool, error)
}, sequence uint64,
) (*record.Record, error) {
	item, ok, err := log.ReadRecord(sequence)
	if err != nil || !ok {
		return nil, ledger.IgnoreUnreadable(err)
	}
	rec, err := record.Decode(item.Payload)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // like one that cannot be read
	}
	return rec, nil
}

// show returns a body of a record as onlookers may see it, nil if it cannot be read.
func (r *Reader) show(rec *record.Record, body compact.Body) []byte {
	raw, err := r.inflater.State(rec, body, "")
	if err != nil {
		return nil // like one that cannot be read
	}
	return raw
}

// never is the horizon of a log without records. JSON has no later year.
var never = time.Date(9999, time.January, 1, 0, 0, 0, 0, time.UTC)

// horizon returns the first sequence of the log, and a time that no record before it is later
// than.
func (r *Reader) horizon() (first uint64, at time.Time, err error) {
	stats := r.store.LogStats()
	r.mu.Lock()
	known := r.begins
	r.mu.Unlock()
	if known.first == stats.First && !known.at.IsZero() {
		return known.first, known.at, nil
	}
	at = never
	err = r.allRows(stats.First, stats.Last, "", func(*headline.Row) bool { return true }, func(row *headline.Row) error {
		if t := row.Time().Add(disorder); at.Equal(never) || t.After(at) {
			at = t
		}
		if row.Type == event.Updated && row.Flags&(headline.Left|headline.Entered) == 0 || row.Flags&(headline.State|headline.Unknown) == headline.State {
			return errEnough // others may be committed long after their time
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		r.mu.Lock()
		r.begins = horizon{stats.First, at}
		r.mu.Unlock()
	}
	return stats.First, at, ledger.IgnoreUnreadable(ignoreEnough(err))
}

// horizon is that of a log that begins with a record.
type horizon struct {
	first uint64
	at    time.Time
}

// disorder is how far the times of records are usually out of order: the deletions that a list shows
// have its time, and are committed in parts, longer ones only while the store has no room.
const disorder = time.Minute

// jitter is how far the times of other records may be out of order while the clock is not set.
const jitter = time.Second

// coverage is what the history has of a resource.
type coverage struct {
	low      time.Time // when the log begins
	since    time.Time // the time since when all changes are in the history, zero if they are not
	narrowed []narrowing
	apart    bool // some of it is read in single namespaces
}

// narrowing is when the rules by which the history is kept became narrower, as the clock may have shown it.
type narrowing struct{ from, to time.Time }

// changes reports whether all changes since a time are in the history.
func (c *coverage) changes(from time.Time) bool {
	return !c.since.IsZero() && !from.Before(c.since)
}

// absent reports whether an object of which nothing is recorded from one time until another, zero: until now, was not there
// at the first. If the rules became narrower meanwhile, no record may show its end.
func (c *coverage) absent(from, until time.Time) bool {
	return c.changes(from) && !slices.ContainsFunc(c.narrowed, func(n narrowing) bool {
		return !n.to.Before(from) && (until.IsZero() || !n.from.After(until))
	})
}

// concerns reports whether a feed reads objects of a resource, nil: of any, in a namespace, or in any if it is empty.
func concerns(feed string, resource *event.Resource, namespace string) bool {
	partition, in := ledger.SplitFeed(feed)
	gr, _ := ledger.SplitPartition(partition)
	return (resource == nil || gr.Group == resource.Group && gr.Resource == resource.Resource) && (namespace == "" || in == "" || in == namespace)
}

// coverage returns what the history has of a resource, in one namespace or in all if it is empty. A nil resource stands for all.
func (r *Reader) coverage(resource *event.Resource, namespace string) (c coverage, err error) {
	if _, c.low, err = r.horizon(); err != nil {
		return c, err
	}
	if r.store.LogStats().Trimmed {
		c.since = c.low
	}
	k, err := r.look()
	if err != nil {
		return c, err
	}
	found, all := false, true
	err = r.ledger.Checkpoints(func(feed string, cp ledger.Checkpoint) error {
		if !concerns(feed, resource, namespace) {
			return nil
		}
		_, in := ledger.SplitFeed(feed)
		c.apart = c.apart || in != ""
		begun := k.certain(cp.HistorySince)
		if found, all = true, all && !begun.IsZero(); begun.After(c.since) {
			c.since = begun
		}
		for i, at := range cp.Narrowed {
			n := narrowing{at, k.certain(at)}
			if i == 0 && len(cp.Narrowed) >= ledger.MaxNarrowed { // earlier ones are not known any more
				n.from = time.Time{}
			}
			c.narrowed = append(c.narrowed, n)
		}
		return nil
	})
	if !found || !all {
		c.since = time.Time{}
	}
	if err != nil {
		return c, err
	}
	return c, r.ledger.Expired(func(feed string, until time.Time) {
		if resource == nil || concerns(feed, resource, namespace) {
			c.narrowed = append(c.narrowed, narrowing{to: k.certain(until)})
		}
	})
}

// unselected returns a function that reports whether the watches with a history select no recorded state of an object, by
// rules that have been the same since a time, and since when they have been; nil and zero if that is not known.
func (r *Reader) unselected(resource event.Resource, t time.Time) (f func(o *compact.Object) bool, since time.Time, err error) {
	k, err := r.look()
	if err != nil {
		return nil, since, err
	}
	settled, may := true, []func(o *compact.Object) bool(nil)
	err = r.ledger.Checkpoints(func(feed string, c ledger.Checkpoint) error {
		partition, in := ledger.SplitFeed(feed)
		if gr, _ := ledger.SplitPartition(partition); gr.Group != resource.Group || gr.Resource != resource.Resource {
			return nil
		}
		if c.SettledSince.IsZero() || !t.After(k.certain(c.SettledSince)) { // others may have been in force at that very time
			settled = false
			return nil
		}
		selects, err := c.MaySelect()
		if err != nil { // as an earlier release has noted them
			settled = false
			return nil //nolint:nilerr // not known
		}
		if c.SettledSince.After(since) {
			since = c.SettledSince
		}
		may = append(may, func(o *compact.Object) bool { return (in == "" || in == o.GetNamespace()) && selects(o) })
		return nil
	})
	if err != nil || !settled || may == nil {
		return nil, time.Time{}, err
	}
	return func(o *compact.Object) bool {
		return !slices.ContainsFunc(may, func(f func(o *compact.Object) bool) bool { return f(o) })
	}, since, nil
}

// Span is how complete the answer about a period is.
type Span struct {
	From     time.Time       `json:"from"`
	To       time.Time       `json:"to"`
	Complete bool            `json:"complete"` // every change of the period is in the history
	Gaps     []event.GapData `json:"gaps"`     // those that changes may be missing in
	Unread   []Unread        `json:"unread,omitempty"`
	Since    time.Time       `json:"since,omitzero"` // the time since when every change is in the history, if it is within the period

	recorded bool // all that was read since then is in the log, and an object of which nothing is was not there
}

// span returns how complete the history of a period is, but for what is not read: see read.
func (r *Reader) span(resource *event.Resource, namespace, name string, from, to time.Time) (Span, error) {
	before, beforeErr := r.until(from)
	during, duringErr := r.until(to)
	if err := ledger.IgnoreUnreadable(cmp.Or(beforeErr, duringErr)); err != nil {
		return Span{From: from, To: to, Gaps: []event.GapData{}}, err
	}
	return r.spanOf(resource, namespace, name, before, during)
}

// read has the span say what was not read when the answer was begun, before a look at anything else: what is recorded meanwhile may be
// in no other part of it.
func (s *Span) read(unread []Unread) { s.Unread, s.Complete = unread, s.Complete && len(unread) == 0 }

// spanOf is span of the period between the ends of two pasts.
func (r *Reader) spanOf(resource *event.Resource, namespace, name string, before, during past) (Span, error) {
	from, to := before.t, during.t
	s := Span{From: from, To: to, Gaps: []event.GapData{}}
	gaps, err := r.allGaps()
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return s, err
	}
	for i := range gaps {
		if gaps[i].concerns(resource, namespace, name) && gaps[i].overlaps(before, during) {
			s.Gaps = append(s.Gaps, gaps[i].data)
		}
	}
	c, coverErr := r.coverage(resource, namespace)
	if from.IsZero() {
		from = c.low
	}
	known := err == nil && coverErr == nil
	s.recorded, s.Complete = known && c.absent(from, time.Time{}), known && c.changes(from)
	if !c.changes(from) && c.since.After(from) && c.since.Before(to) {
		s.Since = c.since
	}
	s.Complete = s.Complete && len(s.Gaps) == 0 && !to.Before(before.t) // or it is of the future
	return s, coverErr
}

// as is what a list of the objects at the time of the span is worth.
func (s *Span) as() As {
	switch {
	case len(s.Gaps) > 0:
		return Gap
	case !s.recorded:
		return UnknownBefore
	}
	return Exact
}

// unread is what is not read of a resource, of all that the config asks for if it is nil, before a time. What the watches have left of the resource
// is, of an object that no other part of the ledger has.
func (r *Reader) unread(resource *event.Resource, namespace, name string, to time.Time) (list []Unread, err error) {
	if list, err = r.unselectedNamespace(resource, namespace, to); r.reading == nil || len(list) > 0 || err != nil {
		return list, err
	}
	concerned := func(feed string) bool { return concerns(feed, resource, namespace) }
	running, known := r.reading(concerned, to)
	fresh := maps.Clone(running) // those that have never read anything, or keep no history
	var left leavings
	var entries []entry
	if resource != nil {
		if left, err = r.leavings(*resource); err == nil && name != "" {
			entries, err = r.entries(&Object{*resource, namespace, name}, left)
		}
		if err != nil {
			return nil, err
		}
	}
	add := func(feed, cause string, since time.Time) {
		partition, in := ledger.SplitFeed(feed)
		gr, _ := ledger.SplitPartition(partition)
		list = append(list, Unread{Resource: gr.String(), Namespace: in, Since: since, Cause: cause})
	}
	err = r.ledger.Checkpoints(func(feed string, c ledger.Checkpoint) error {
		if !concerned(feed) {
			return nil
		}
		partition, in := ledger.SplitFeed(feed)
		u, runs := running[feed]
		delete(fresh, feed)
		if !runs {
			if _, all := running[ledger.FeedID(partition, "")]; all || resource == nil && known {
				return nil
			}
			if resource == nil {
				if unwatched, err := r.ledger.Unwatched(partition); unwatched || err != nil {
					return err
				}
			}
			if left.of(partition, cmp.Or(namespace, in)).left && (len(entries) == 0 || !entries[0].left) {
				return nil
			}
			u = Unread{Cause: "no watch reads it"}
		} else if u == (Unread{}) {
			if c.Synced && c.HistorySince.IsZero() && len(c.Kept) == 0 {
				fresh[feed] = Unread{Cause: "its watches have history: false"}
			}
			return nil
		}
		if since := cmp.Or(u.Since, c.Time); since.Before(to) {
			add(feed, u.Cause, since)
		}
		return nil
	})
	maps.DeleteFunc(fresh, func(feed string, u Unread) bool {
		return !concerned(feed) || u == (Unread{}) || resource == nil && u.Forbidden
	})
	if err != nil || len(fresh) == 0 {
		return list, err
	}
	_, begun, err := r.horizon()
	if begun.After(to) {
		begun = to // the log has nothing before it
	}
	for _, feed := range slices.Sorted(maps.Keys(fresh)) {
		add(feed, fresh[feed].Cause, begun)
	}
	return list, err
}

// unselectedNamespace is what unread returns of a namespace that the watches of all recorded feeds leave out by its name.
func (r *Reader) unselectedNamespace(resource *event.Resource, namespace string, to time.Time) (list []Unread, err error) {
	if namespace == "" {
		return nil, nil
	}
	selected := false
	err = r.ledger.Checkpoints(func(feed string, c ledger.Checkpoint) error {
		partition, _ := ledger.SplitFeed(feed)
		gr, _ := ledger.SplitPartition(partition)
		switch {
		case resource != nil && (gr.Group != resource.Group || gr.Resource != resource.Resource):
		case c.HistorySince.IsZero() || c.MayRead(namespace):
			selected = true
		case c.HistorySince.Before(to): // the rules may have become narrower later: what is recorded of them does not have when
			list = append(list, Unread{Resource: gr.String(), Namespace: namespace, Since: c.HistorySince, Cause: "no watch selects the namespace"})
		}
		return nil
	})
	if selected {
		list = nil
	}
	return list, err
}

// Worth is what is known of a resource at a time.
type Worth struct {
	As     As              // of the list of its objects
	Since  time.Time       // when its history begins, or that of its lists, zero if there is none
	Near   []event.GapData // the gaps around the time
	Unread []Unread        // before the time
}

// near is how far from a time a gap may be to be worth a mention.
const near = 5 * time.Minute

// WorthAt returns what is known of a resource at a time, in one namespace or in all if it is
// empty.
func (r *Reader) WorthAt(resource event.Resource, namespace string, t time.Time) (w Worth, err error) {
	if w.Unread, err = r.unread(&resource, namespace, "", t); err != nil {
		return w, err
	}
	around, err := r.span(&resource, namespace, "", t.Add(-near), t.Add(near))
	if err != nil {
		return w, err
	}
	at, err := r.span(&resource, namespace, "", t, t)
	if err != nil {
		return w, err
	}
	w.Near, w.As = around.Gaps, at.as()
	c, err := r.coverage(&resource, namespace)
	if w.Since = c.since; w.Since.Equal(never) {
		w.Since = time.Time{}
	}
	for _, n := range c.narrowed {
		if !n.to.Before(t) && w.As == UnknownBefore && !w.Since.IsZero() {
			w.Since = later(w.Since, n.to)
		}
	}
	return w, err
}

// metadataKind is the kind that objects of all kinds have of which a watch reads the metadata alone.
const metadataKind = "PartialObjectMetadata"

// Known is a resource with a history. Its version and kind are empty if only the metadata of its objects is recorded, and none of
// its changes.
type Known struct {
	event.Resource
	Namespaced bool
}

// Resources returns the resources that have recorded changes or states, in no order.
func (r *Reader) Resources() ([]Known, error) {
	found := map[Object]Known{}
	add := func(k Known) {
		of := key(Object{Resource: k.Resource})
		before := found[of]
		if k.Kind == "" { // of an object's metadata
			k.Kind, k.Version = before.Kind, before.Version
		}
		k.Namespaced = k.Namespaced || before.Namespaced
		found[of] = k
	}
	stats := r.store.LogStats()
	err := r.allRows(stats.First, stats.Last, "", func(row *headline.Row) bool { return row.Type != event.Gap }, func(row *headline.Row) error {
		add(Known{row.Resource, row.Namespace != ""})
		return nil
	})
	if err = ledger.IgnoreUnreadable(err); err != nil {
		return nil, err
	}
	if err = r.stated(add); err != nil {
		return nil, err
	}
	return slices.Collect(maps.Values(found)), nil
}

// stated calls f with the resources that have recorded states.
func (r *Reader) stated(f func(Known)) error {
	for _, p := range r.store.Partitions() {
		gr, _ := ledger.SplitPartition(p)
		_, err := r.ledger.Scan(p, "", "", func(_ string, o *compact.Object) error {
			k := Known{event.Resource{Group: gr.Group, Resource: gr.Resource}, o.GetNamespace() != ""}
			if o.Kind() != metadataKind {
				k.Kind, k.Version = o.Kind(), strings.TrimPrefix(o.APIVersion(), gr.Group+"/")
			}
			f(k)
			return ledger.ErrEnough
		})
		if err = ledger.IgnoreUnreadable(err); err != nil {
			return err
		}
	}
	return nil
}

// stop returns the error of a reader that has gone away.
func stop(ctx context.Context) error { return context.Cause(ctx) }
