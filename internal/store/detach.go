package store

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// A queue refers to the log, and the log is deleted from its beginning only. So one
// entry of a sink that is down, or gone from the configuration, would keep every
// later record of every other sink, until the budget is reached and ingest pauses
// for all. Where queues hold back more of the log than their own records, their first
// entries are detached: the payloads are copied into the queues, oldest first, in
// chunks, and the log is deleted up to there before more is copied. What that takes is
// bounded by the sinks' own backlogs. Sinks that most of the log is for, one or many
// together, are left alone: the copies would take as much as the log does.
const (
	detachEntries = 1024    // of one chunk
	detachBytes   = 1 << 20 // of one chunk, give or take one payload
)

// holdBound is how many bytes of the log queues may hold back, and how many of their
// own are detached at a time.
func (l Limits) holdBound() int64 { return engine.SizeFor(l.MaxBytes, 64, segmentBytes, 16<<20) }

// relieve detaches the entries that hold back records which retention, or the
// budget's excess, would delete. It reports whether some are left for another call.
func (s *Store) relieve(now time.Time, limits Limits, excess int64) (more bool, err error) {
	end := s.log.unneeded(now, limits, excess)
	bound := limits.holdBound()
	var fixed []*Queue // of which nothing can be detached
	for copied := int64(0); copied < bound; {
		q := s.holder(end, bound, excess > 0, fixed)
		if q == nil {
			return false, nil
		}
		n, moved, err := q.detach()
		if err != nil {
			return false, err
		}
		if !moved {
			fixed = append(fixed, q)
		}
		copied += n
	}
	return true, nil
}

// holder returns the queue that holds back the oldest part of the log before end; nil
// if too little is held back, or most of it is the own records of those that hold it: of
// this queue, and of those that would hold back the rest after it.
func (s *Store) holder(end uint64, bound int64, pressed bool, fixed []*Queue) *Queue {
	type holding struct {
		q     *Queue
		low   uint64
		at    int64   // of low, in bytes
		share float64 // of the log from there on that is the queue's own
	}
	total := s.log.offset(^uint64(0))
	var held []holding
	for _, q := range s.sinks.all() {
		low, own := q.needs()
		switch {
		case low >= end:
		case q.filling.Load(), slices.Contains(fixed, q): // Fill continues behind its last entry, and a pin holds the log for it
			end = low
		default:
			at := s.log.offset(low)
			held = append(held, holding{q, low, at, float64(own) / float64(max(total-at, 1))})
		}
	}
	slices.SortFunc(held, func(a, b holding) int { return cmp.Compare(a.low, b.low) })
	var shares, before float64 // of the queues so far: the sums of share, and of share*at
	for i, h := range held {
		shares += h.share
		before += h.share * float64(h.at)
		to := end
		if i+1 < len(held) {
			to = min(end, held[i+1].low)
		}
		upTo := s.log.offset(to)
		freed := upTo - held[0].at
		copied := int64(shares*float64(upTo) - before)
		if freed >= bound && worthwhile(freed, copied, pressed) {
			return held[0].q
		}
	}
	return nil
}

// worthwhile reports whether so many bytes are to be copied for so many to be deleted.
func worthwhile(freed, copied int64, pressed bool) bool {
	if pressed {
		return copied < freed-freed/8
	}
	return copied < freed/2
}

// unneeded is the sequence before which the log would be deleted if no queue
// needed it.
func (l *logState) unneeded(now time.Time, limits Limits, excess int64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.expiredLocked(l.tail+1, now, limits, excess)
	if n == 0 {
		return 0
	}
	return l.marks[n].sequence
}

// offset is how many bytes of payload had been appended before a sequence since the store
// was made, give or take a segment.
func (l *logState) offset(sequence uint64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.marks.segmentFrom(sequence)
	if i < 0 || sequence > l.tail {
		_, end := l.totalLocked()
		return end
	}
	return l.marks[i].bytes
}

// since is how many bytes of payload the log holds from a sequence on, give or take
// a segment.
func (l *logState) since(sequence uint64) int64 {
	return l.offset(^uint64(0)) - l.offset(sequence)
}

// timeOf is when the segment of a sequence began; zero if there is none.
func (l *logState) timeOf(sequence uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.marks.segmentFrom(sequence)
	if i < 0 || sequence > l.tail {
		return time.Time{}
	}
	return l.marks[i].time
}

// detach copies the payloads of the next chunk of entries into the queue and
// returns their size; moved is false if there are no more entries.
//
// The chunk is read without a lock. Acks wait for the write, as for any of their
// own: one that is written between the look at an entry and its rewrite would come
// undone.
func (q *Queue) detach() (copied int64, moved bool, err error) {
	if err := q.s.use(); err != nil {
		return 0, false, err
	}
	defer q.s.life.leave()
	c, err := q.attached()
	if err != nil || c.last == 0 {
		return 0, false, err
	}
	return q.carry(c)
}

func (q *Queue) carry(c attachedChunk) (copied int64, moved bool, err error) {
	unlock := q.lockSettling()
	defer unlock()
	if c.rewrites != q.s.rewrites.Load() {
		if c, err = q.attached(); err != nil || c.last == 0 {
			return 0, false, err
		}
	}
	entries, last := c.entries, c.last
	b := q.s.db.NewBatch()
	change := layout.Counter{High: last}
	q.mu.Lock()
	if q.purged {
		q.mu.Unlock()
		return 0, false, b.Close()
	}
	left := entries[:0]
	for i := range entries {
		if e := &entries[i]; e.position > q.window.readTo || q.window.find(e.position) >= 0 {
			left = append(left, *e)
			change.Count++
			change.Bytes += int64(e.Size)
		}
	}
	pins := q.passedLocked(max(q.window.needed(), last+1))
	q.mu.Unlock()
	for i := range left {
		b2 := b.SetDeferred(layout.QueueKeyLen, left[i].EncodedLen())
		layout.AppendSinkKey(b2.Key[:0], layout.PrefixQueue, q.id, left[i].position)
		left[i].Encode(b2.Value)
		if err := b2.Finish(); err != nil {
			return 0, false, err
		}
	}
	filled := errors.Join(q.deletePins(b, pins), b.Merge(layout.CounterKey(layout.KindDetached, q.id), change.Append(nil), nil))
	size := int64(b.Len())
	if err := q.s.applyLazily(b, filled); err != nil {
		return 0, false, err
	}
	q.s.gate.wrote(size)
	q.mu.Lock()
	q.detached = q.detached.Plus(change)
	for i := range left {
		if at := q.window.find(left[i].position); at >= 0 {
			q.window.slots[at].kind = layout.EntryInline
		}
	}
	q.pins = q.pins[len(pins):]
	q.mu.Unlock()
	return change.Bytes, true, nil
}

// attachedChunk is a chunk of entries with the payloads they refer to.
type attachedChunk struct {
	entries  []entryAt
	last     uint64 // the last position that was read; 0: none
	rewrites uint64 // Store.rewrites before the payloads were read
}

// attached reads the next entries that refer to the log, with their payloads. It skips
// unreadable entries and records: they do not hold the log, and the queue's reader
// reports them.
func (q *Queue) attached() (c attachedChunk, err error) {
	c.rewrites = q.s.rewrites.Load()
	q.mu.Lock()
	from, tail := max(q.detached.High+1, q.window.head()), q.tail
	q.mu.Unlock()
	if from > tail {
		return c, nil
	}
	records := recordFinder{s: q.s}
	defer records.close()
	size, most := 0, min(detachBytes, q.s.BatchBytes())
	err = salvage.Scan(q.s.db,
		layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, tail+1),
		func(key, value []byte) error {
			position, ok := layout.PositionOfKey(key)
			e, err := layout.ParseEntry(position, value)
			if !ok || err != nil {
				return nil //nolint:nilerr // passed over
			}
			c.last = position
			if e.Kind != layout.EntryInline {
				record, err := records.find(e.Sequence)
				if errors.Is(err, ErrUnreadable) {
					return nil
				}
				if err != nil {
					return err
				}
				e.Kind, e.Lane, e.Payload = layout.EntryInline, record.Lane, append([]byte(nil), record.Payload...)
				c.entries = append(c.entries, entryAt{position, e})
				size += len(e.Payload)
			}
			if len(c.entries) >= detachEntries || size >= most {
				return errEnough
			}
			return nil
		},
		func(salvage.LostSpan) error { return nil })
	if errors.Is(err, errEnough) {
		return c, nil
	}
	c.last = tail
	return c, err
}

// passedLocked returns the pins whose entries all lie before needed.
func (q *Queue) passedLocked(needed uint64) []pin {
	n := 0
	for n < len(q.pins) && q.pins[n].last < needed {
		n++
	}
	return q.pins[:n]
}

func (q *Queue) deletePins(b *pebble.Batch, pins []pin) error {
	var errs []error
	for _, p := range pins {
		errs = append(errs, b.Delete(layout.AppendSinkKey(nil, layout.PrefixPin, q.id, p.first), nil))
	}
	return errors.Join(errs...)
}

// neededLocked is the smallest position whose entry may refer to the log.
func (q *Queue) neededLocked() uint64 { return max(q.window.needed(), q.detached.High+1) }

// needs returns the smallest sequence the queue still needs, the largest number
// there is if it needs none, and how many bytes of the log are its own.
func (q *Queue) needs() (low uint64, own int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total.Count == q.detached.Count {
		return ^uint64(0), 0
	}
	if low = q.neededLocked(); low > q.tail { // entries that cannot be read are counted, and hold nothing
		low = ^uint64(0)
	}
	for _, p := range q.pins {
		low = min(low, p.sequence)
	}
	return low, q.total.Bytes - q.detached.Bytes
}

// holds is how much of the log the queue holds back, and from when on.
func (q *Queue) holds() (bytes int64, since time.Time) {
	low, _ := q.needs()
	return q.s.log.since(low), q.s.log.timeOf(low)
}
