// Package timer keeps what routes hold over time: one row for each object on a route with
// a throttle or a `for`, and an index of when it is due.
//
// Guarantees:
//
//   - Rows and index live in the store. Memory is a few words for each [Bucket], however
//     many objects are held; a row costs its record on disk.
//   - A row changes in the batch of the event that changes it, so that no crash separates
//     the two. So does the number of what a bucket holds, which no scan is needed for.
//   - The index is ordered by when the timers began. A bucket with another duration needs
//     no rewriting, and a row that began in the future, by a clock that was set back, is
//     found ([Table.Ahead]).
//
// A Table belongs to one goroutine. Only that which commits changes rows; others read with Tables of their own.
package timer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	rowPrefix   = "timer/row/"
	indexPrefix = "timer/due/"
	heldPrefix  = "timer/held/"
	rowVersion  = 1
)

// Store is the durable store as it is read here. *store.Store implements it.
type Store interface {
	Meta(key string) ([]byte, bool, error)
	ScanMetaFrom(prefix, from string, f func(key string, value []byte) error) error
}

// Batch is what changes are written with. *store.Batch implements it.
type Batch interface {
	PutMeta(key string, value []byte)
	DeleteMeta(key string)
}

// Row is what is held of one object. It is not modified once it is put.
type Row struct {
	Start    time.Time // of the timer
	Armed    bool      // the timer runs; otherwise it has fired
	UID      string    // of the object
	Version  string    // of the object, when the timer began
	Matching string    // of the route, see route.Spec
	Sequence uint64    // of the event that is held, 0 for none
	Record   []byte    // of that event, or of the one that was sent last
}

// Name names a bucket: a route's, for one sink or, for a `for`, for none.
type Name struct{ Route, Sink string }

func (n Name) String() string { return n.Route + "/" + n.Sink + "/" }

// Bucket has the rows of one name.
type Bucket struct {
	Name
	After  time.Duration // from the start of a timer until it is due
	Former bool          // not configured any more; gone once it holds nothing

	from time.Time // no timer that runs began earlier
	next time.Time // nothing is due before; zero: not known
	put  time.Time // the earliest of the timers that were put since the last look, which may not be committed; zero: none
	held int       // rows that wait
}

// Held is how many rows of the bucket wait: those of held events, and, of a `for`, those whose
// match has not lasted yet.
func (b *Bucket) Held() int { return b.held }

// waits is 1 for a row that waits.
func (b *Bucket) waits(r *Row) int {
	if r != nil && (r.Sequence != 0 || b.Sink == "" && r.Armed) {
		return 1
	}
	return 0
}

// Next is the time before which nothing of the bucket is due.
func (b *Bucket) Next() time.Time { return b.next }

// Postpone has nothing of the bucket be due before a time.
func (b *Bucket) Postpone(until time.Time) { b.next = until }

// Table reads and changes rows. What it has put is seen before it is committed.
type Table struct {
	store   Store
	overlay map[string]*Row // by key, as the batch leaves them; nil: deleted
	counted []*Bucket       // that hold more, or less, by the batch
}

// NewTable returns the table of a store.
func NewTable(s Store) *Table { return &Table{store: s, overlay: map[string]*Row{}} }

// Seal ends the changes of a batch. The buckets that it returns hold more, or less, than
// before it.
func (t *Table) Seal(w Batch) []*Bucket {
	for _, b := range t.counted {
		if b.held == 0 {
			w.DeleteMeta(heldPrefix + b.String())
		} else {
			w.PutMeta(heldPrefix+b.String(), binary.AppendUvarint(nil, uint64(b.held)))
		}
	}
	return t.counted
}

// Committed begins another batch: the last one is in the store.
func (t *Table) Committed() {
	clear(t.overlay)
	t.counted = t.counted[:0]
}

// Count reads how many rows of a bucket wait.
func (t *Table) Count(b *Bucket) error {
	value, _, err := t.store.Meta(heldPrefix + b.String())
	n, _ := binary.Uvarint(value)
	b.held = int(min(n, math.MaxInt32))
	return err
}

func (t *Table) count(b *Bucket, n int) {
	if n == b.held {
		return
	}
	b.held = max(n, 0)
	if !slices.Contains(t.counted, b) {
		t.counted = append(t.counted, b)
	}
}

// Row returns a bucket's row, nil if there is none.
func (t *Table) Row(b *Bucket, key string) (*Row, error) {
	at := rowPrefix + b.String() + key
	if row, ok := t.overlay[at]; ok {
		return row, nil
	}
	value, ok, err := t.store.Meta(at)
	if err != nil || !ok {
		return nil, err
	}
	return decode(value)
}

// Put replaces the row before, nil if there was none, by next, which is nil to
// delete it.
func (t *Table) Put(w Batch, b *Bucket, key string, before, next *Row) {
	at := rowPrefix + b.String() + key
	t.overlay[at] = next
	t.count(b, b.held+b.waits(next)-b.waits(before))
	was := before != nil && before.Armed
	is := next != nil && next.Armed
	if was && !(is && next.Start.Equal(before.Start)) {
		w.DeleteMeta(b.dueKey(before.Start, key))
	}
	if is && !(was && next.Start.Equal(before.Start)) {
		w.PutMeta(b.dueKey(next.Start, key), nil)
		if b.put.IsZero() || next.Start.Before(b.put) {
			b.put = next.Start
		}
		b.expect(next.Start)
	}
	if next == nil {
		w.DeleteMeta(at)
		return
	}
	w.PutMeta(at, next.encode())
}

// expect has a timer that began at a time found when it is due.
func (b *Bucket) expect(start time.Time) {
	if start.Before(b.from) {
		b.from = start
	}
	if due := start.Add(b.After); due.Before(b.next) {
		b.next = due
	}
}

// Due is a timer of the index. Its row, in the batch that is being made, may have changed
// since.
type Due struct {
	Key   string
	Start time.Time
}

var errEnough = errors.New("enough")

// Due returns at most so many committed timers that are due, the oldest first, and notes
// when the next one is. more is set if there are others that are due: they come after the
// last one returned, if that is given.
func (t *Table) Due(b *Bucket, now time.Time, after *Due, most int) (due []Due, more bool, err error) {
	from, first := "", after == nil
	switch {
	case after != nil:
		from = timeKey(after.Start) + "/" + after.Key + "\x00"
	case !b.from.IsZero():
		from = timeKey(b.from)
	}
	b.next = now.Add(idle)
	err = t.scan(b, from, func(d Due) error {
		if first {
			b.from, first = d.Start, false
		}
		switch at := d.Start.Add(b.After); {
		case at.After(now):
			b.next = at
			return errEnough
		case len(due) == most:
			b.next, more = now, true
			return errEnough
		}
		due = append(due, d)
		return nil
	})
	if first && err == nil && b.put.IsZero() {
		t.count(b, 0) // rows that are damaged were not counted down
	}
	if !b.put.IsZero() {
		b.expect(b.put)
		b.put = time.Time{}
	}
	return due, more, err
}

// idle is how long an empty bucket is not looked at.
const idle = 10 * time.Second

// Ahead returns at most so many timers that began in the future.
func (t *Table) Ahead(b *Bucket, now time.Time, most int) (ahead []Due, err error) {
	err = t.scan(b, timeKey(now.Add(1)), func(d Due) error {
		if len(ahead) == most {
			return errEnough
		}
		ahead = append(ahead, d)
		return nil
	})
	return ahead, err
}

// Unlist removes a timer from the index whose row is another one now.
func (t *Table) Unlist(w Batch, b *Bucket, d Due) { w.DeleteMeta(b.dueKey(d.Start, d.Key)) }

func (t *Table) scan(b *Bucket, from string, f func(Due) error) error {
	prefix := indexPrefix + b.String()
	err := t.store.ScanMetaFrom(prefix, from, func(key string, _ []byte) error {
		at, rest, ok := strings.Cut(key[len(prefix):], "/")
		ns, err := strconv.ParseUint(at, 16, 64)
		if !ok || err != nil {
			return fmt.Errorf("%w: key %q", ErrMalformed, key)
		}
		return f(Due{Key: rest, Start: time.Unix(0, int64(ns))})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func timeKey(t time.Time) string { return fmt.Sprintf("%016x", uint64(max(t.UnixNano(), 0))) }

func (b *Bucket) dueKey(start time.Time, key string) string {
	return indexPrefix + b.String() + timeKey(start) + "/" + key
}

// Names are the names of all buckets that have rows. With an error they are those that
// could be read.
func (t *Table) Names() (names []Name, err error) {
	var faults []error
	for _, prefix := range [...]string{rowPrefix, heldPrefix} {
		for from := ""; ; {
			var last *Name
			err := t.store.ScanMetaFrom(prefix, from, func(key string, _ []byte) error {
				route, rest, _ := strings.Cut(key[len(prefix):], "/")
				sink, _, _ := strings.Cut(rest, "/")
				last = &Name{route, sink}
				return errEnough
			})
			if last == nil {
				faults = append(faults, err)
				break
			}
			if !slices.Contains(names, *last) {
				names = append(names, *last)
			}
			from = strings.TrimSuffix(last.String(), "/") + "0" // which follows the slash
		}
	}
	return names, errors.Join(faults...)
}

// Clear deletes at most so many rows and timers of a bucket that nothing is put into, and
// returns how many. Those that are damaged are deleted, too.
func (t *Table) Clear(w Batch, b *Bucket, most int) (n int, err error) {
	for _, prefix := range [...]string{rowPrefix, indexPrefix} {
		err := t.store.ScanMetaFrom(prefix+b.String(), "", func(key string, _ []byte) error {
			if n == most {
				return errEnough
			}
			n++
			w.DeleteMeta(key)
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return n, err
		}
	}
	if n < most {
		t.count(b, 0)
		w.DeleteMeta(heldPrefix + b.String())
	}
	return n, nil
}

// Rows calls f for the committed rows of a bucket, in order, from a key on; all buckets'
// if b is nil. The key that f gets is for [Revise], or as the from of a later call; the row is
// nil if it is damaged.
func (t *Table) Rows(b *Bucket, from string, f func(key string, row *Row) error) error {
	prefix := rowPrefix
	if b != nil {
		prefix += b.String()
	}
	return t.store.ScanMetaFrom(prefix, from, func(key string, value []byte) error {
		row, err := decode(value)
		if err != nil {
			row = nil
		}
		return f(key[len(prefix):], row)
	})
}

// Revise replaces the record of a committed row, by its key among all rows.
func Revise(w Batch, key string, row *Row, record []byte) {
	revised := *row
	revised.Record = record
	w.PutMeta(rowPrefix+key, revised.encode())
}

// ReviseValue returns what a key of the store has, a row with what revise returns in place of its record. Other values, and
// rows without a record, are as they are; a damaged row is an error.
func ReviseValue(key string, value []byte, revise func(record []byte) ([]byte, error)) ([]byte, error) {
	if !strings.HasPrefix(key, rowPrefix) {
		return value, nil
	}
	row, err := decode(value)
	if err != nil || len(row.Record) == 0 {
		return value, err
	}
	if row.Record, err = revise(row.Record); err != nil {
		return nil, err
	}
	return row.encode(), nil
}

func (r *Row) encode() []byte {
	armed := byte(0)
	if r.Armed {
		armed = 1
	}
	dst := make([]byte, 0, 64+len(r.Record))
	dst = append(dst, rowVersion, armed)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Start.UnixNano()))
	dst = binary.BigEndian.AppendUint64(dst, r.Sequence)
	for _, s := range [...]string{r.UID, r.Version, r.Matching} {
		dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
	}
	return append(dst, r.Record...)
}

// ErrMalformed is the error of a row that is damaged.
var ErrMalformed = errors.New("malformed timer")

func decode(value []byte) (*Row, error) {
	if len(value) < 18 || value[0] != rowVersion {
		return nil, ErrMalformed
	}
	r := &Row{Armed: value[1] != 0, Start: time.Unix(0, int64(binary.BigEndian.Uint64(value[2:]))), Sequence: binary.BigEndian.Uint64(value[10:])}
	rest := value[18:]
	for _, field := range [...]*string{&r.UID, &r.Version, &r.Matching} {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return nil, ErrMalformed
		}
		*field = string(rest[size : size+int(n)])
		rest = rest[size+int(n):]
	}
	r.Record = append([]byte(nil), rest...)
	return r, nil
}
