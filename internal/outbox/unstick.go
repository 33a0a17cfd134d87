package outbox

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// One entry that a sink cannot take, while it takes all others, would keep every
// later record in the log, until the budget is reached and ingest pauses for
// everyone. So entries that hold much of the log back while few are in flight
// get their payload copied into the queue.
const (
	stuckEntries = 256
	stuckPayload = 8 << 20
	stuckBehind  = 16 << 20 // bytes of log they hold back
)

// unstick does that for one queue, if it is called for.
func (s *Store) unstick(q *Queue) error {
	slots, first, next := q.stuck()
	if len(slots) == 0 || s.log.between(first, next) < stuckBehind {
		return nil
	}
	return q.inline(slots)
}

// stuck returns the entries in flight that refer to the log, none if they are
// too many, with the smallest sequence of them and the first position not read.
func (q *Queue) stuck() (slots []slot, first, next uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first, next = ^uint64(0), q.window.readTo+1
	size := 0
	for _, s := range q.window.slots {
		if s.acked || s.kind == entryInline {
			continue
		}
		slots = append(slots, s)
		first = min(first, s.sequence)
		size += int(s.size)
		if len(slots) > stuckEntries || size > stuckPayload {
			return nil, 0, 0
		}
	}
	return slots, first, next
}

// between is how many bytes of payload lie between two sequences, give or take
// a segment.
func (l *logState) between(from, to uint64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, j := l.marks.segmentOf(from), l.marks.segmentOf(to)
	if i < 0 || j < 0 {
		return 0
	}
	return l.marks[j].bytes - l.marks[i].bytes
}

// inline copies the payloads of entries in flight into the queue.
func (q *Queue) inline(slots []slot) error {
	entries := make([]entryAt, 0, len(slots))
	for _, s := range slots {
		value, ok, err := q.s.recordAt(s.sequence)
		if errors.Is(err, ErrUnreadable) || (err == nil && !ok) {
			continue // found out by who reads it again
		}
		if err != nil {
			return err
		}
		entries = append(entries, entryAt{s.position, entry{
			kind: entryInline, flags: s.flags, size: s.size, time: s.time,
			sequence: s.sequence, lane: value.lane, payload: value.payload,
		}})
	}
	b := q.s.db.NewBatch()
	if err := q.rewrite(b, entries); err != nil {
		return err
	}
	return b.Close()
}

// rewrite replaces those of the entries that are still in flight. It writes
// while it holds the lock, which it does not wait for the disk with: an ack that
// was written in between would come before the entry is written again.
func (q *Queue) rewrite(b *pebble.Batch, entries []entryAt) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		at := q.window.find(e.position)
		if at < 0 {
			continue
		}
		q.window.slots[at].kind = entryInline
		op := b.SetDeferred(queueKeyLen, e.encodedLen())
		appendSinkKey(op.Key[:0], prefixQueue, q.id, e.position)
		e.encode(op.Value)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	q.unpinLocked(b, q.window.needed())
	if b.Empty() {
		return nil
	}
	return q.s.applyLazily(b)
}
