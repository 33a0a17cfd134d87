package store

import (
	"cmp"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// queueReader is one Queue.Read: it takes the entries first, so that their
// payloads fit one allocation, and then the records.
type queueReader struct {
	q        *Queue
	max      int
	maxBytes int

	taken []entryAt
	bytes int
	items []Item
}

type entryAt struct {
	position uint64
	layout.Entry
}

// entries reads entries after from, up to and including tail, and returns the
// position it has come to.
func (r *queueReader) entries(from, tail uint64) (reached uint64, err error) {
	for {
		next, err := r.entriesFrom(from+1, tail)
		if err == nil || !errors.Is(err, ErrUnreadable) {
			return next - 1, err
		}
		if len(r.taken) > 0 {
			return next - 1, nil // deal with the damage when it is first
		}
		if from, err = r.q.skipDamage(next, tail, err); err != nil || from >= tail {
			return from, err
		}
	}
}

// entriesFrom stops at the first damage, and returns the position after the last it
// has read.
func (r *queueReader) entriesFrom(from, tail uint64) (next uint64, err error) {
	next = from
	_, damage, err := salvage.Read(r.q.s.db,
		layout.AppendSinkKey(nil, layout.PrefixQueue, r.q.id, from), layout.AppendSinkKey(nil, layout.PrefixQueue, r.q.id, tail+1),
		func(key, value []byte) error {
			position, ok := layout.PositionOfKey(key)
			if !ok {
				return fmt.Errorf("%w: %w", ErrUnreadable, layout.Malformed(key))
			}
			e, err := layout.ParseEntry(position, value)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrUnreadable, err)
			}
			if len(r.taken) > 0 && r.bytes+int(e.Size) > r.maxBytes {
				return errEnough
			}
			if err := r.take(position, e); err != nil {
				return err
			}
			next = position + 1
			if len(r.taken) >= r.max {
				return errEnough
			}
			return nil
		})
	switch {
	case errors.Is(err, errEnough):
		return next, nil
	case err != nil || damage != nil:
		return next, cmp.Or(err, damage)
	default:
		return tail + 1, nil
	}
}

// take adds an entry, unless it was acknowledged since the iterator was made.
func (r *queueReader) take(position uint64, e layout.Entry) error {
	q := r.q
	q.mu.Lock()
	if e.Kind != layout.EntryInline && position <= q.detached.High {
		// Perhaps rewritten since the iterator was made.
		q.mu.Unlock()
		now, err := q.entryAt(position)
		switch {
		case err == nil:
			e = now
		case !errors.Is(err, ErrUnreadable):
			return err
		}
		q.mu.Lock()
	}
	inFlight := q.window.add(slot{
		position: position, sequence: e.Sequence, time: e.Time, size: e.Size, kind: e.Kind, flags: e.Flags,
	})
	q.mu.Unlock()
	if inFlight {
		e.Payload = append([]byte(nil), e.Payload...)
		r.taken = append(r.taken, entryAt{position, e})
		r.bytes += int(e.Size)
	}
	return nil
}

// records fills the items. An entry whose record is damaged becomes a dead
// letter instead.
func (r *queueReader) records() error {
	if len(r.taken) == 0 {
		return nil
	}
	log := recordFinder{s: r.q.s}
	defer log.close()
	r.items = make([]Item, 0, len(r.taken))
	buf := make([]byte, 0, r.bytes)
	for i := range r.taken {
		e := &r.taken[i]
		item := Item{Position: e.position, Sequence: e.Sequence, Flags: e.Flags, Lane: e.Lane, Time: e.Time}
		payload := e.Payload
		if e.Kind != layout.EntryInline {
			value, err := log.find(e.Sequence)
			if errors.Is(err, ErrUnreadable) {
				value, err = r.q.carried(e.position, err)
			}
			if errors.Is(err, ErrUnreadable) {
				value, err = r.repaired(&log, e.Sequence, err)
			}
			if errors.Is(err, ErrUnreadable) {
				if err = r.q.setUnreadable(e.position); err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
			item.Lane, payload = value.Lane, value.Payload
		}
		begin := len(buf)
		buf = append(buf, payload...)
		item.Payload = buf[begin:len(buf):len(buf)]
		r.items = append(r.items, item)
	}
	return nil
}

// repaired finds a record again if the table in which it is unreadable has been repaired: others may have the record, or it can be read now.
func (r *queueReader) repaired(log *recordFinder, sequence uint64, damage error) (layout.LogRecord, error) {
	repaired, err := r.q.s.awaitRepair(damage)
	if err != nil {
		return layout.LogRecord{}, err
	}
	if !repaired {
		return layout.LogRecord{}, damage
	}
	log.close()
	return log.find(sequence)
}

// recordReader reads log records with one iterator: for a queue that takes most
// records, stepping is several times cheaper than a lookup each.
type recordReader struct {
	it  *pebble.Iterator
	key []byte
}

// steps are the most records that are stepped over: a search costs more than these.
const steps = 8

// newRecordReader returns a reader that the caller closes.
func (s *Store) newRecordReader() (*recordReader, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: layout.AppendLogKey(nil, 0),
		UpperBound: layout.AppendLogKey(nil, ^uint64(0)),
	})
	if err != nil {
		return nil, salvage.ReadError(err)
	}
	return &recordReader{it: it, key: make([]byte, 0, layout.LogKeyLen)}, nil
}

func (r *recordReader) close() { _ = r.it.Close() } // its error was seen while reading

// next returns the first record from sequence from up to and including last.
// The value is valid until the next call.
func (r *recordReader) next(from, last uint64) (uint64, layout.LogRecord, bool, error) {
	for at, ok := r.position(); ok && at < from && from-at <= steps; at, ok = r.position() {
		r.it.Next() // usually to the very next one
	}
	if at, ok := r.position(); !ok || at < from {
		r.key = layout.AppendLogKey(r.key[:0], from)
		r.it.SeekGE(r.key)
	}
	at, ok := r.position()
	if !ok || at > last {
		return 0, layout.LogRecord{}, false, salvage.ReadError(r.it.Error())
	}
	raw, err := r.it.ValueAndErr()
	if err != nil {
		return 0, layout.LogRecord{}, false, salvage.ReadError(err)
	}
	value, err := layout.ParseLogRecord(raw)
	if err != nil {
		return 0, layout.LogRecord{}, false, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return at, value, true, nil
}

func (r *recordReader) exact(sequence uint64) (layout.LogRecord, bool, error) {
	for at, ok := r.position(); ok && at > sequence && at-sequence <= steps; at, ok = r.position() {
		r.it.Prev() // usually to the one before
	}
	if at, ok := r.position(); ok && at > sequence {
		r.key = layout.AppendLogKey(r.key[:0], sequence)
		r.it.SeekGE(r.key)
	}
	_, value, ok, err := r.next(sequence, sequence)
	return value, ok, err
}

func (r *recordReader) position() (uint64, bool) {
	if !r.it.Valid() {
		return 0, false
	}
	return layout.PositionOfKey(r.it.Key())
}

// recordFinder reads the log records of queue entries, mostly in order.
type recordFinder struct {
	s       *Store
	log     *recordReader // nil at the beginning and after damage
	damaged bool          // the last record could not be read
}

// find returns a record; the payload is valid until the next call. The error is
// ErrUnreadable also for a record that is not there, which cannot come back.
func (f *recordFinder) find(sequence uint64) (layout.LogRecord, error) {
	if err := f.s.log.damage.at(sequence); err != nil {
		return layout.LogRecord{}, err
	}
	if !f.damaged {
		value, ok, err := f.iterate(sequence)
		if err == nil && ok {
			return value, nil
		}
	}
	// The iterator may have failed on a neighbour in the same block or file.
	value, ok, err := f.s.recordAt(sequence)
	switch {
	case err == nil && !ok:
		err = fmt.Errorf("%w: record %d is missing", ErrUnreadable, sequence)
	case errors.Is(err, ErrUnreadable):
		err = f.s.noteDamage(sequence, err)
	}
	// Try the iterator again only when the damage is over.
	f.damaged = err != nil
	return value, err
}

func (f *recordFinder) iterate(sequence uint64) (layout.LogRecord, bool, error) {
	if f.log == nil {
		var err error
		if f.log, err = f.s.newRecordReader(); err != nil {
			return layout.LogRecord{}, false, err
		}
	}
	value, ok, err := f.log.exact(sequence)
	if err != nil {
		f.close()
	}
	return value, ok, err
}

func (f *recordFinder) close() {
	if f.log != nil {
		f.log.close()
		f.log = nil
	}
}

// window holds the entries of a queue that were read and not acknowledged. Its
// size follows what readers have in flight, not the backlog.
//
// Everything at or below readTo has been read: such an entry is either in the
// window or acknowledged. That makes acks exact (a second ack of an entry finds
// nothing) and gives the head of the queue without looking at the disk. The queue's mu
// guards it.
type window struct {
	slots  []slot // in order of position
	dead   int    // acknowledged slots that are still in the slice
	readTo uint64
}

// slot is an entry in flight.
type slot struct {
	position uint64
	sequence uint64
	time     time.Time
	size     uint32
	kind     byte
	flags    uint32
	acked    bool
}

func (w *window) find(position uint64) int {
	i := sort.Search(len(w.slots), func(i int) bool { return w.slots[i].position >= position })
	if i < len(w.slots) && w.slots[i].position == position && !w.slots[i].acked {
		return i
	}
	return -1
}

func (w *window) get(position uint64) (slot, bool) {
	if i := w.find(position); i >= 0 {
		return w.slots[i], true
	}
	return slot{}, false
}

// add records an entry that was read; false if it was acknowledged meanwhile.
func (w *window) add(s slot) bool {
	if s.position <= w.readTo {
		return w.find(s.position) >= 0
	}
	w.slots = append(w.slots, s)
	w.readTo = s.position
	return true
}

// ack removes an entry; false if it is not in flight.
func (w *window) ack(position uint64) (slot, bool) {
	i := w.find(position)
	if i < 0 {
		return slot{}, false
	}
	s := w.slots[i]
	w.slots[i].acked = true
	w.dead++
	w.trim()
	return s, true
}

// holds reports whether an entry of [from, next) is in flight.
func (w *window) holds(from, next uint64) bool {
	i := sort.Search(len(w.slots), func(i int) bool { return w.slots[i].position >= from })
	for ; i < len(w.slots) && w.slots[i].position < next; i++ {
		if !w.slots[i].acked {
			return true
		}
	}
	return false
}

// lose removes what is in flight of [from, next).
func (w *window) lose(from, next uint64) {
	for i := range w.slots {
		if s := &w.slots[i]; !s.acked && from <= s.position && s.position < next {
			s.acked = true
			w.dead++
		}
	}
	w.trim()
}

// trim drops acknowledged slots from the front, and all of them once they are
// the majority, so that a single entry stuck for days does not keep everything
// acknowledged behind it in memory.
func (w *window) trim() {
	front := 0
	for front < len(w.slots) && w.slots[front].acked {
		front++
	}
	w.slots = w.slots[front:]
	w.dead -= front
	if w.dead < 64 || w.dead*2 < len(w.slots) {
		return
	}
	live := make([]slot, 0, len(w.slots)-w.dead)
	for _, s := range w.slots {
		if !s.acked {
			live = append(live, s)
		}
	}
	w.slots, w.dead = live, 0
}

// head is the smallest position that is not known to be acknowledged.
func (w *window) head() uint64 {
	if len(w.slots) > 0 {
		return w.slots[0].position
	}
	return w.readTo + 1
}

// needed is the smallest position whose entry may refer to the log.
func (w *window) needed() uint64 {
	for i := range w.slots {
		if !w.slots[i].acked && w.slots[i].kind != layout.EntryInline {
			return w.slots[i].position
		}
	}
	return w.readTo + 1
}
