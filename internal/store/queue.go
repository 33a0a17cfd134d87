package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// Queue has the pending events of one sink. Its methods may be called from any
// goroutine. One worker at a time uses it: Read returns the same entries to every
// caller.
type Queue struct {
	s    *Store
	id   uint32
	name string
	news signal

	filling atomic.Bool // written under sinkTable.ensuring; Filled is still to come
	member  membership  // guarded by sinkTable.ensuring, and to change it naming, too
	filled  uint64      // guarded by sinkTable.ensuring; the last sequence of Fill in this process
	release func()      // guarded by sinkTable.ensuring; ends the hold on the log for the fill; nil = none

	// settling is held from the read of the window to the end of the write: for
	// reading while the worker acknowledges entries, for writing while they are
	// rewritten, or removed by others, such as the worker's reader. Taken before mu. Of the
	// store's locks it is one that is held over writes, and over the journal's answer to
	// them: acks wait as long as the write that they must not overtake.
	settling sync.RWMutex

	mu       sync.Mutex
	purged   bool           // guarded by mu; the sink was purged
	total    layout.Counter // guarded by mu; unacknowledged entries
	detached layout.Counter // guarded by mu; those of total with their own payload; up to High there are no others
	tail     uint64         // guarded by mu; position of the last entry
	window   window         // guarded by mu
	pins     []pin          // guarded by mu; in order of position
	dead     layout.Counter // guarded by mu; dead letters
	deadAge  letterAge      // guarded by mu
	nextAge  struct {       // guarded by mu; the first entry after the window, if position is greater than readTo
		position uint64
		time     time.Time
	}
}

// Item is an entry of a queue, or a record of the log.
type Item struct {
	// Position is the entry's place in its queue.
	Position uint64
	// Sequence is the record's place in the log; it stays the same when a
	// record is replayed.
	Sequence uint64
	// Flags are those of the Route or the Replay.
	Flags uint32
	// Lane and Time are the record's.
	Lane uint64
	Time time.Time
	// Payload belongs to the caller.
	Payload []byte

	size uint32 // that a record of the log counts with
	// Unreadable marks a damaged record in the result of ReadLog. Read makes a dead
	// letter of such a record instead.
	Unreadable bool
}

// Stats describe a queue.
type Stats struct {
	// Length is the number of unacknowledged entries, Bytes the size of their
	// payloads.
	Length int64
	Bytes  int64
	// OldestTime is the time of the record at the head; zero for an empty queue.
	OldestTime time.Time
	// Head is the smallest position that may be unacknowledged, Tail the largest
	// ever queued.
	Head uint64
	Tail uint64
	// DeadLetterBytes is the size of the dead letters' payloads.
	DeadLetters     int64
	DeadLetterBytes int64
	// DeadLetterOldest is the last attempt of the oldest dead letter; zero if there
	// is none, or before Run finds it.
	DeadLetterOldest time.Time
	// HeldBytes are the payload bytes of the log that cannot be deleted because of
	// this queue, other sinks' records included; HeldSince is the time of the first.
	// Both are zero for a queue that needs none.
	HeldBytes int64
	HeldSince time.Time
}

func (q *Queue) load() error {
	var err error
	for kind, c := range map[byte]*layout.Counter{layout.KindQueue: &q.total, layout.KindDetached: &q.detached, layout.KindDeadLetter: &q.dead} {
		if *c, err = q.s.counter(kind, q.id); err != nil {
			return err
		}
	}
	q.window.readTo = max(q.total.High, 1) - 1
	// The clock may have raised the next sequence, and another life may begin below it.
	used, err := q.s.counter(layout.KindPosition, 0)
	if err != nil {
		return err
	}
	q.tail = used.High
	q.pins, err = q.loadPins()
	return err
}

// isPurged reports whether the sink was purged. The result holds while the caller has
// settling or the right to append.
func (q *Queue) isPurged() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.purged
}

// Name is the name of the sink.
func (q *Queue) Name() string { return q.name }

func (q *Queue) added(d queueDelta) {
	q.mu.Lock()
	if q.total.Count == 0 {
		q.nextAge.position, q.nextAge.time = d.first, d.firstTime
	}
	q.total = q.total.Plus(layout.Counter{Count: d.count, Bytes: d.bytes})
	q.detached = q.detached.Plus(d.detached)
	q.tail = max(q.tail, d.last)
	q.mu.Unlock()
	q.news.notify()
}

// Wait returns when the queue has an entry with a position greater than after,
// or with the context's error, ErrClosed or ErrFailed.
func (q *Queue) Wait(ctx context.Context, after uint64) error {
	for {
		news := q.news.wait()
		q.mu.Lock()
		ready := q.total.Count > 0 && q.tail > after
		q.mu.Unlock()
		if ready {
			return nil
		}
		if err := q.s.await(ctx, news); err != nil {
			return err
		}
	}
}

// Stats returns the queue's figures from memory. Only OldestTime of an unread backlog
// takes one read of its first entry.
func (q *Queue) Stats() Stats {
	q.lookAhead()
	heldBytes, heldSince := q.holds()
	q.mu.Lock()
	defer q.mu.Unlock()
	st := Stats{
		HeldBytes: heldBytes, HeldSince: heldSince, Length: q.total.Count, Bytes: q.total.Bytes, Head: q.window.head(),
		Tail: q.tail, DeadLetters: q.dead.Count, DeadLetterBytes: q.dead.Bytes,
	}
	if q.dead.Count > 0 && q.deadAge.known {
		st.DeadLetterOldest = q.deadAge.oldest
	}
	switch {
	case st.Length == 0:
	case len(q.window.slots) > 0:
		st.OldestTime = q.window.slots[0].time
	case q.nextAge.position > q.window.readTo:
		st.OldestTime = q.nextAge.time
	}
	return st
}

// lookAhead finds the time of the first unread entry, if it is the oldest and unknown.
func (q *Queue) lookAhead() {
	q.mu.Lock()
	known := q.total.Count == 0 || len(q.window.slots) > 0 || q.nextAge.position > q.window.readTo
	from := q.window.readTo + 1
	q.mu.Unlock()
	if known || q.s.use() != nil {
		return
	}
	defer q.s.life.leave()
	_, upper := layout.SinkRange(layout.PrefixQueue, q.id)
	it, err := q.s.db.NewIter(&pebble.IterOptions{LowerBound: layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), UpperBound: upper})
	if err != nil {
		return
	}
	defer it.Close()
	if !it.First() {
		return
	}
	position, ok := layout.PositionOfKey(it.Key())
	e, err := layout.ParseEntry(position, it.Value())
	if !ok || err != nil {
		return
	}
	q.mu.Lock()
	q.nextAge.position, q.nextAge.time = position, e.Time
	q.mu.Unlock()
}

// Read returns at most max unacknowledged entries with positions greater than after, in
// order, and stops early when their payloads exceed maxBytes (the first is always
// returned). It returns none only at the end of the queue, and does not wait for new
// entries.
//
// Begin with after = 0 and continue with the last position returned. A Read that begins
// before an unacknowledged entry returns it again.
//
// Payloads belong to the caller; those of one call share an allocation, so keeping one
// keeps all.
//
// Entries whose record is damaged become dead letters with the reason "unreadable".
func (q *Queue) Read(after uint64, max, maxBytes int) (items []Item, err error) {
	if err := q.s.use(); err != nil {
		return nil, err
	}
	defer q.s.life.leave()
	q.mu.Lock()
	// There may be no gap after the last read: see window.
	from := min(after, q.window.readTo)
	head, tail := q.window.head(), q.tail
	q.mu.Unlock()
	if from+1 < head {
		from = head - 1
	}
	if max <= 0 {
		return nil, nil
	}
	for from < tail {
		r := queueReader{q: q, max: max, maxBytes: maxBytes}
		if from, err = r.entries(from, tail); err != nil {
			return nil, fmt.Errorf("read the queue of sink %s: %w", q.name, err)
		}
		if err := r.records(); err != nil {
			return nil, fmt.Errorf("read the log for sink %s: %w", q.name, err)
		}
		if len(r.items) > 0 {
			return r.items, nil
		}
	}
	return nil, nil
}

func (q *Queue) entryAt(position uint64) (layout.Entry, error) {
	if err := q.s.use(); err != nil {
		return layout.Entry{}, err
	}
	defer q.s.life.leave()
	raw, ok, err := q.s.get(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, position))
	if err == nil && !ok {
		err = fmt.Errorf("%w: entry %d is missing", ErrUnreadable, position)
	}
	if err != nil {
		return layout.Entry{}, err
	}
	return layout.ParseEntry(position, raw)
}

// Ack removes entries that Read returned, in any order. It ignores positions that are
// not in flight (acknowledged before, or never read), and does not wait for the disk:
// see the package comment.
func (q *Queue) Ack(positions ...uint64) error {
	if err := q.s.use(); err != nil {
		return err
	}
	defer q.s.life.leave()
	q.settling.RLock()
	defer q.settling.RUnlock()
	b := q.s.db.NewBatch()
	acked := q.take(b, positions)
	if acked.Count == 0 {
		return b.Close()
	}
	return q.s.acknowledge(b)
}

// take removes entries from the window and writes their deletion, with the
// counters, into b. The caller holds settling until b is written.
func (q *Queue) take(b *pebble.Batch, positions []uint64) layout.Counter {
	var acked, detached layout.Counter
	var key [layout.QueueKeyLen]byte
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, position := range positions {
		s, ok := q.window.ack(position)
		if !ok {
			continue
		}
		acked = acked.Plus(layout.Counter{Count: -1, Bytes: -int64(s.size)})
		if s.kind == layout.EntryInline {
			detached = detached.Plus(layout.Counter{Count: -1, Bytes: -int64(s.size)})
		}
		layout.AppendSinkKey(key[:0], layout.PrefixQueue, q.id, position)
		// Not SingleDelete: a compaction that meets damage below one panics.
		_ = b.Delete(key[:], nil) // fails only for an indexed batch
	}
	if acked.Count == 0 {
		return acked
	}
	acked.High = q.window.head()
	q.mergeLocked(b, acked, detached)
	pins := q.passedLocked(q.neededLocked())
	_ = q.deletePins(b, pins) // as above
	q.pins = q.pins[len(pins):]
	return acked
}

func (q *Queue) mergeLocked(b *pebble.Batch, total, detached layout.Counter) {
	var value [layout.CounterLen]byte
	q.total = q.total.Plus(total)
	_ = b.Merge(layout.CounterKey(layout.KindQueue, q.id), total.Append(value[:0]), nil) // fails only for an indexed batch
	if detached != (layout.Counter{}) {
		q.detached = q.detached.Plus(detached)
		_ = b.Merge(layout.CounterKey(layout.KindDetached, q.id), detached.Append(value[:0]), nil)
	}
}

// PutNote keeps a small blob for the sink, such as the state of its backoff. It
// does not wait for the disk, like Ack, and does nothing for a purged sink.
func (q *Queue) PutNote(value []byte) error {
	if err := q.s.use(); err != nil {
		return err
	}
	defer q.s.life.leave()
	q.settling.RLock()
	defer q.settling.RUnlock()
	if q.isPurged() {
		return nil
	}
	b := q.s.db.NewBatch()
	return errors.Join(b.Set(layout.NoteKey(q.id), value, nil), q.s.acknowledge(b))
}

// Note returns a copy of the last value of PutNote.
func (q *Queue) Note() ([]byte, bool, error) {
	if err := q.s.use(); err != nil {
		return nil, false, err
	}
	defer q.s.life.leave()
	if q.s.sequencer != nil { // what PutNote was given before is written then
		if err := q.s.apply(q.s.db.NewBatch(), pebble.NoSync); err != nil {
			return nil, false, err
		}
	}
	return q.s.get(layout.NoteKey(q.id))
}
