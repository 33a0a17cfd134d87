package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// damageMap has the unreadable records of the log. Reading damage is expensive, as the
// storage engine searches for the flipped bit, so it is done once a block.
type damageMap struct {
	mu    sync.Mutex
	spans []damagedSpan // guarded by mu
}

// damagedSpan is the records from first to last.
type damagedSpan struct {
	first, last uint64
	err         error
}

// logDamage is the error of the records of a span.
type logDamage struct {
	from, upTo uint64
	cause      error
}

func (d *logDamage) Error() string {
	return fmt.Sprintf("%v: the log from %d up to %d", ErrUnreadable, d.from, d.upTo)
}

func (d *logDamage) Unwrap() error { return d.cause }

// maxDamagedSpans bounds the map; damage beyond it is found again by each read.
const maxDamagedSpans = 1024

func (m *damageMap) at(sequence uint64) error {
	span, _ := m.find(sequence)
	return span.err
}

func (m *damageMap) end(sequence uint64) uint64 {
	if span, ok := m.find(sequence); ok {
		return span.last
	}
	return sequence
}

func (m *damageMap) find(sequence uint64) (damagedSpan, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.spans {
		if s.first <= sequence && sequence <= s.last {
			return s, true
		}
	}
	return damagedSpan{}, false
}

// add reports whether the span is new: a part of a known block, found from another
// record, is not.
func (m *damageMap) add(span damagedSpan) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.spans {
		if s := &m.spans[i]; s.last == span.last {
			s.first = min(s.first, span.first)
			return false
		}
	}
	if len(m.spans) < maxDamagedSpans {
		m.spans = append(m.spans, span)
	}
	return true
}

// Spans that end before low are removed.
func (m *damageMap) forget(low uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spans = slices.DeleteFunc(m.spans, func(s damagedSpan) bool { return s.last < low })
}

// noteDamage records a span of damage, from an unreadable record to the next readable
// one, and returns the error for each record in it.
func (s *Store) noteDamage(sequence uint64, cause error) error {
	tail := s.LogStats().Last
	next, ok, err := s.nextReadable(layout.AppendLogKey(nil, sequence), layout.AppendLogKey(nil, tail+1))
	if err != nil {
		return err
	}
	if !ok {
		next = tail + 1
	}
	if next, err = s.endOfDamage(sequence, next); err != nil {
		return err
	}
	span := damagedSpan{first: sequence, last: max(next-1, sequence), err: &logDamage{sequence, next, cause}}
	if s.log.damage.add(span) {
		s.opts.Logger.Error("a part of the log cannot be read; entries of queues for it become dead letters",
			"from", span.first, "to", span.last, "error", salvage.FirstLine(cause))
	}
	return span.err
}

// endOfDamage returns the first record that can be read by itself behind one that cannot, and before next. The search for another
// block does not see what was written since and is in memory alone.
func (s *Store) endOfDamage(sequence, next uint64) (uint64, error) {
	for sequence+1 < next {
		middle := sequence + (next-sequence)/2
		_, ok, err := s.recordAt(middle)
		switch {
		case err != nil && !errors.Is(err, ErrUnreadable):
			return 0, err
		case err == nil && ok:
			next = middle
		default:
			sequence = middle
		}
	}
	return next, nil
}

// skipDamage returns the position from which to read on behind unreadable queue entries. The table is repaired, which leaves what other
// tables and the memory have of its keys, and so of a failure to read that passes. Otherwise one dead letter takes the place of all entries up
// to the first one in another block.
func (q *Queue) skipDamage(from, tail uint64, cause error) (uint64, error) {
	begin, end := layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, tail+1)
	for damage, tables := cause, 0; tables < maxDamagedTables; tables++ {
		repaired, err := q.s.awaitRepair(damage)
		if err != nil {
			return 0, err
		}
		if !repaired {
			break
		}
		if _, damage, err = salvage.Read(q.s.db, begin, end, func(_, _ []byte) error { return errEnough }); damage == nil {
			return from - 1, ignore(err, errEnough)
		}
	}
	next, ok, err := q.s.nextReadable(begin, end)
	if err != nil {
		return 0, err
	}
	if !ok {
		next = tail + 1
	}
	next = max(next, from+1) // that one may be malformed
	unlock := q.lockSettling()
	defer unlock()
	if q.isPurged() {
		return tail, nil
	}
	b := q.s.db.NewBatch()
	gone := b.DeleteRange(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, next), nil)
	at, lost, err := q.standIn(from, next)
	if err != nil {
		return 0, errors.Join(err, b.Close())
	}
	if !lost {
		return next - 1, q.s.applyLazily(b, gone)
	}
	q.s.metrics.unreadable.Inc()
	q.s.opts.Logger.Error("a part of a queue cannot be read; one dead letter stands for it",
		"sink", q.name, "from", from, "to", next-1, "error", salvage.FirstLine(cause))
	now := q.s.opts.Now()
	d := layout.DeadLetter{
		First:  now,
		Last:   now,
		Reason: fmt.Sprintf("%s: queue entries %d to %d are lost", ReasonUnreadable, from, next-1),
	}
	letter := layout.Counter{Count: 1}
	if err := q.s.applyLazily(b,
		gone,
		b.Set(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, at), d.Encode(), nil),
		b.Merge(layout.CounterKey(layout.KindDeadLetter, q.id), letter.Append(nil), nil),
		q.loseEntries(b, from, next),
	); err != nil {
		return 0, err
	}
	q.countDead(letter, now)
	return next - 1, nil
}

// standIn returns the position in [from, next) for the dead letter of unreadable entries;
// not lost if all entries there were removed: acknowledged, or dead letters, or another
// reader has dealt with the damage. The caller holds settling.
func (q *Queue) standIn(from, next uint64) (at uint64, lost bool, err error) {
	q.mu.Lock()
	lost = q.window.readTo < next-1 || q.window.holds(from, next)
	q.mu.Unlock()
	for at = from; lost && at < next; at++ {
		_, ok, err := q.s.get(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, at))
		if !ok {
			return at, true, ignore(err, ErrUnreadable) // one that cannot be read is lost, too
		}
	}
	return 0, false, nil
}

// loseEntries removes the entries in [from, next) from the window and corrects the
// counters with b; the caller holds settling.
func (q *Queue) loseEntries(b *pebble.Batch, from, next uint64) error {
	q.mu.Lock()
	q.window.lose(from, next)
	q.window.readTo = max(q.window.readTo, next-1)
	q.mu.Unlock()
	_, err := q.recount(b, func(salvage.LostSpan) error { return nil }) // counted again when the reader gets there
	return err
}

// recount corrects the counters, in memory and with b, after a loss of entries: it
// counts those left and returns the number of missing ones. Entries may be added
// meanwhile; the caller holds settling.
func (q *Queue) recount(b *pebble.Batch, lost func(salvage.LostSpan) error) (missing int64, err error) {
	q.mu.Lock()
	var total, detached layout.Counter // in flight, then all
	for _, s := range q.window.slots {
		if s.acked {
			continue
		}
		total = total.Plus(layout.Counter{Count: 1, Bytes: int64(s.size)})
		if s.kind == layout.EntryInline {
			detached = detached.Plus(layout.Counter{Count: 1, Bytes: int64(s.size)})
		}
	}
	readTo, tail := q.window.readTo, q.tail
	change, changeDetached := q.total.Negative(), q.detached.Negative()
	q.mu.Unlock()
	err = salvage.Scan(q.s.db,
		layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, readTo+1), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, max(tail, readTo)+1),
		func(_, value []byte) error {
			e, err := layout.ParseEntry(0, value)
			if err != nil {
				return nil //nolint:nilerr // as the spans that are lost
			}
			total = total.Plus(layout.Counter{Count: 1, Bytes: int64(e.Size)})
			if e.Kind == layout.EntryInline {
				detached = detached.Plus(layout.Counter{Count: 1, Bytes: int64(e.Size)})
			}
			return nil
		},
		lost)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// Entries added meanwhile are counted; settling excludes other changes.
	change, changeDetached = change.Plus(total), changeDetached.Plus(detached)
	change.High = q.window.head()
	missing = -change.Count
	q.mergeLocked(b, change, changeDetached)
	return missing, nil
}

// nextReadable returns the position or sequence of the first readable key in [from, upper).
func (s *Store) nextReadable(from, upper []byte) (position uint64, ok bool, err error) {
	err = salvage.Scan(s.db, from, upper, func(key, _ []byte) error {
		position, ok = layout.PositionOfKey(key)
		return errEnough
	}, func(salvage.LostSpan) error { return nil })
	return position, ok, ignore(err, errEnough)
}
