package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Letter is the reason and the attempts of a dead letter.
type Letter struct {
	Reason   string // a class, or "class: text"
	Attempts int
	// First and Time are the times of the first and the last attempt.
	First time.Time
	Time  time.Time
}

// without marks the letter as unreadable if err is ErrUnreadable; it returns any other
// error.
func (l *Letter) without(err error) error {
	if !errors.Is(err, ErrUnreadable) {
		return err
	}
	if !strings.HasPrefix(l.Reason, ReasonUnreadable) {
		l.Reason = ReasonUnreadable + ": " + l.Reason
	}
	return nil
}

// ReasonClass is a letter's reason without its text.
func ReasonClass(reason string) string { return layout.ReasonClass(reason) }

// ReasonUnreadable begins the reason of a dead letter whose record, or queue
// entry, is damaged; it has no payload.
const ReasonUnreadable = "unreadable"

// DeadLetter is an entry that its sink rejected for good. Its Position is the one it
// had in the queue, and identifies it.
type DeadLetter struct {
	Item
	Letter
}

// DeadLetter moves an entry in flight, with its payload, to the dead letters in one
// write. Like Ack it does not wait for the disk, and ignores an entry that is not in
// flight. It fails with ErrDeadLettersFull when there is no room for it within
// Limits.DeadLetterMaxBytes.
func (q *Queue) DeadLetter(position uint64, l Letter) error {
	if err := q.s.use(); err != nil {
		return err
	}
	defer q.s.life.leave()
	q.mu.Lock()
	sl, ok := q.window.get(position)
	q.mu.Unlock()
	if !ok {
		return nil
	}
	rewrites := q.s.rewrites.Load()
	value, err := q.payload(sl)
	if err = l.without(err); err != nil {
		return err
	}
	if most := q.s.limits().deadLetterBytes(); most > 0 && !q.roomForLetter(int64(len(value.Payload)), most) {
		return fmt.Errorf("%w (%d bytes)", ErrDeadLettersFull, most)
	}
	return q.setAside(sl, value, rewrites, l)
}

// roomForLetter reports whether one more dead letter has room in so many bytes for those of all sinks. Half of them are
// divided among the sinks: no other sink takes what one leaves of its part, so that the dead letters of one do not
// stop another. A sink without dead letters may have one of any size.
func (q *Queue) roomForLetter(size, most int64) bool {
	all := q.s.sinks.all()
	part := most / int64(2*max(len(all), 1))
	own := q.letterBytes()
	taken := own + size
	if own == 0 || taken <= part {
		return true
	}
	for _, other := range all {
		if other != q {
			taken += max(other.letterBytes(), part)
		}
	}
	return taken <= most
}

func (q *Queue) letterBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dead.Bytes
}

func (q *Queue) payload(sl slot) (layout.LogRecord, error) {
	if sl.kind == layout.EntryInline {
		return q.carried(sl.position, nil)
	}
	value, ok, err := q.s.recordAt(sl.sequence)
	if err == nil && !ok {
		err = fmt.Errorf("%w: record %d is missing", ErrUnreadable, sl.sequence)
	}
	if errors.Is(err, ErrUnreadable) {
		return q.carried(sl.position, err)
	}
	return value, err
}

// carried returns the payload of an entry that carries it, else the error otherwise: a
// missing record may mean that the entry was detached (detach.go) after it was read.
func (q *Queue) carried(position uint64, otherwise error) (layout.LogRecord, error) {
	e, err := q.entryAt(position)
	switch {
	case err == nil && e.Kind == layout.EntryInline:
		return layout.LogRecord{Time: e.Time, Lane: e.Lane, Payload: e.Payload}, nil
	case otherwise != nil:
		return layout.LogRecord{}, otherwise
	case err == nil:
		err = fmt.Errorf("%w: entry %d: %w", ErrUnreadable, position, layout.ErrMalformed)
	}
	return layout.LogRecord{}, err
}

// setUnreadable makes a dead letter of an entry whose record is damaged. noteDamage
// logs it.
func (q *Queue) setUnreadable(position uint64) error {
	q.mu.Lock()
	sl, ok := q.window.get(position)
	q.mu.Unlock()
	if !ok {
		return nil
	}
	q.s.metrics.unreadable.Inc()
	now := q.s.opts.Now()
	return q.setAside(sl, layout.LogRecord{}, q.s.rewrites.Load(), Letter{Reason: ReasonUnreadable, First: now, Time: now})
}

// setAside moves an entry in flight to the dead letters. rewrites is the value of
// Store.rewrites before its payload was read.
func (q *Queue) setAside(sl slot, value layout.LogRecord, rewrites uint64, l Letter) error {
	// Not only for reading: the head that take counts must not be on disk before an
	// acknowledgement that it includes.
	unlock := q.lockSettling()
	defer unlock()
	if rewrites != q.s.rewrites.Load() {
		var err error
		value, err = q.payload(sl)
		if err = l.without(err); err != nil {
			return err
		}
	}
	b := q.s.db.NewBatch()
	taken := q.take(b, []uint64{sl.position})
	if taken.Count == 0 {
		return b.Close()
	}
	l.Time = q.s.log.notBehind(l.Time)
	d := layout.DeadLetter{
		Sequence: sl.sequence, Lane: value.Lane, Time: sl.time, Flags: sl.flags, Attempts: uint32(l.Attempts), First: l.First,
		Last: l.Time, Reason: l.Reason, Payload: value.Payload,
	}
	change := layout.Counter{Count: 1, Bytes: int64(len(value.Payload))}
	if err := q.s.applyLazily(b,
		b.Set(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, sl.position), d.Encode(), nil),
		b.Merge(layout.CounterKey(layout.KindDeadLetter, q.id), change.Append(nil), nil),
	); err != nil {
		return err
	}
	q.countDead(change, l.Time)
	return nil
}

// countDead counts dead letters: added ones with the time of the oldest, removed ones
// with the zero time.
func (q *Queue) countDead(change layout.Counter, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead.Count == 0 {
		q.deadAge = letterAge{known: true}
	}
	q.dead = q.dead.Plus(change)
	if change.Count > 0 {
		q.deadAge.add(oldest)
	} else {
		q.deadAge.known = false
		q.s.dropped.Store(true)
	}
}

// withoutPayload reports whether the record of a dead letter was unreadable.
func withoutPayload(d *layout.DeadLetter) bool {
	return strings.HasPrefix(d.Reason, ReasonUnreadable) && len(d.Payload) == 0
}

func deadLetter(position uint64, d layout.DeadLetter) DeadLetter {
	return DeadLetter{
		Item: Item{
			Position: position, Sequence: d.Sequence, Flags: d.Flags, Lane: d.Lane, Time: d.Time, Payload: d.Payload,
			Unreadable: withoutPayload(&d),
		},
		Letter: Letter{Reason: d.Reason, Attempts: int(d.Attempts), First: d.First, Time: d.Last},
	}
}

// DeadLetters returns at most max dead letters with positions greater than
// after, in order, without those that cannot be read, and stops after about 4 MiB of payload.
// There are no more if it returns none. Payloads belong to the caller.
func (q *Queue) DeadLetters(after uint64, max int) ([]DeadLetter, error) {
	if err := q.s.use(); err != nil {
		return nil, err
	}
	defer q.s.life.leave()
	var letters []DeadLetter
	size := 0
	lower := layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, after+1)
	_, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	err := salvage.Scan(q.s.db, lower, upper, func(key, value []byte) error {
		if len(letters) >= max || size >= readLogBytes {
			return errEnough
		}
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(append([]byte(nil), value...))
		if !ok || err != nil {
			return layout.Malformed(key)
		}
		letters = append(letters, deadLetter(position, d))
		size += len(d.Payload)
		return nil
	}, func(salvage.LostSpan) error { return nil }) // DataCorruption has logged it
	return letters, ignore(err, errEnough)
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

func (q *Queue) deadLetterAt(position uint64) (layout.DeadLetter, bool, error) {
	raw, ok, err := q.s.get(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, position))
	if err != nil || !ok {
		return layout.DeadLetter{}, false, err
	}
	d, err := layout.ParseDeadLetter(raw)
	return d, err == nil, err
}

// RetryDeadLetters moves dead letters to the end of the queue, durably, and returns
// their number. They keep their order by position, so letters of one object stay in
// order; flags are added to their own. It ignores positions without a letter, and
// letters whose record is still unreadable.
func (q *Queue) RetryDeadLetters(flags uint32, positions ...uint64) (int, error) {
	return q.settle(positions, func(b *Batch, position uint64, d *layout.DeadLetter) (bool, error) {
		if withoutPayload(d) {
			value, ok, err := q.s.recordAt(d.Sequence)
			if errors.Is(err, ErrUnreadable) || (err == nil && !ok) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			d.Payload, d.Lane, d.Time = value.Payload, value.Lane, value.Time
		}
		e := layout.Entry{
			Kind: layout.EntryInline, Flags: d.Flags | flags, Size: uint32(len(d.Payload)), Time: d.Time, Sequence: d.Sequence,
			Lane: d.Lane, Payload: d.Payload,
		}
		b.enqueue(q, b.position(), &e)
		return true, nil
	})
}

// DropDeadLetters deletes dead letters, durably, and returns their number.
func (q *Queue) DropDeadLetters(positions ...uint64) (int, error) {
	return q.settle(positions, func(*Batch, uint64, *layout.DeadLetter) (bool, error) { return true, nil })
}

// settle removes the letters that f accepts, each in one commit with what f adds for it. A
// commit has about 4 MiB.
func (q *Queue) settle(positions []uint64, f func(*Batch, uint64, *layout.DeadLetter) (bool, error)) (int, error) {
	total := 0
	for positions = slices.Compact(slices.Sorted(slices.Values(positions))); len(positions) > 0; {
		n, rest, err := q.settleSome(positions, f)
		if total += n; err != nil {
			return total, err
		}
		positions = rest
	}
	return total, nil
}

// settleSome is settle for the first of them. The right to append keeps two callers from
// settling the same letter.
func (q *Queue) settleSome(positions []uint64, f func(*Batch, uint64, *layout.DeadLetter) (bool, error)) (n int, rest []uint64, err error) {
	b := q.s.NewBatch()
	defer b.Discard()
	if b.err != nil {
		return 0, nil, b.err
	}
	b.hold()
	var change layout.Counter
	bytes := 0
	for rest = positions; len(rest) > 0 && bytes < readLogBytes; rest = rest[1:] {
		position := rest[0]
		d, ok, err := q.deadLetterAt(position)
		if err != nil {
			return 0, nil, err
		}
		if !ok {
			continue
		}
		size := int64(len(d.Payload))
		if ok, err = f(b, position, &d); err != nil {
			return 0, nil, err
		}
		if !ok {
			continue
		}
		bytes += len(d.Payload)
		b.misuseIf(b.pb.Delete(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, position), nil))
		change = change.Plus(layout.Counter{Count: -1, Bytes: -size})
	}
	if change.Count == 0 {
		return 0, rest, nil
	}
	b.merge(layout.CounterKey(layout.KindDeadLetter, q.id), change)
	b.committed = append(b.committed, func() { q.countDead(change, time.Time{}) })
	if err := q.s.Commit(b); err != nil {
		return 0, nil, err
	}
	return int(-change.Count), rest, nil
}
