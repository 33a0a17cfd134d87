package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// ReplayRange is the range of records to replay. Zero bounds are open.
type ReplayRange struct {
	FromSequence uint64    // the first record
	FromTime     time.Time // the first record not before this, and all that follow
	ToSequence   uint64    // the last record
	ToTime       time.Time // records before this, in any place
}

// replayChunk is how many entries one commit of a replay enqueues.
const replayChunk = 2048

// Selector decides whether a record is replayed, and how. It must not keep the record, and
// holds up nothing. An unreadable record has no payload. It may be asked again for a record.
type Selector func(it *Item) (s Selected, ok bool, err error)

// Selected is how a record is replayed.
type Selected struct {
	Flags   uint32
	Payload []byte // is delivered in place of the record's own, and takes room of its own; nil: that is
}

// Replay enqueues the records of the log that selected accepts again, for one sink, in the
// form that it gives them, with new positions after everything queued so far, and returns
// how many. Records that retention removed are not replayed: the log begins at
// LogStats.First. The records stay in the log until the entries are acknowledged.
//
// Replay commits every few thousand entries: after an error or a crash a first part of them
// is queued. It waits while ingest is paused.
func (s *Store) Replay(ctx context.Context, sink string, r ReplayRange, selected Selector) (int, error) {
	q, err := s.Queue(sink)
	if err != nil {
		return 0, err
	}
	from, to, err := s.bounds(r)
	if err != nil {
		return 0, err
	}
	within := selected
	if !r.ToTime.IsZero() {
		late := false // as the clock may have been set back, until the end; what cannot be read is where the record before is
		within = func(it *Item) (Selected, bool, error) {
			if !it.Unreadable {
				late = !it.Time.Before(r.ToTime)
			}
			if late {
				return Selected{}, false, nil
			}
			return selected(it)
		}
	}
	return s.enqueueSelected(q, from, to, within, func() error { return s.WaitIngest(ctx) }, &s.sinks.ensuring)
}

// ErrNotJoined means that a sink left, or has to be filled first.
var ErrNotJoined = errors.New("the sink is not configured any more, or was not filled yet since it is again")

// bounds turns a range into sequences, both included. The records before ToTime are among them.
func (s *Store) bounds(r ReplayRange) (from, to uint64, err error) {
	if err := s.use(); err != nil {
		return 0, 0, err
	}
	defer s.life.leave()
	from, to = r.FromSequence, s.LogStats().Last
	if r.ToSequence != 0 {
		to = min(to, r.ToSequence)
	}
	if !r.FromTime.IsZero() {
		first, err := s.firstAtOrAfter(r.FromTime)
		if err != nil {
			return 0, 0, err
		}
		from = max(from, first)
	}
	return max(from, 1), to, nil
}

// SequenceAt returns a sequence that no record of a time or later is below; at most two
// segments of earlier ones are not.
func (s *Store) SequenceAt(t time.Time) uint64 {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	// A record slightly out of order may lie one segment earlier.
	if i := s.log.marks.before(t) - 1; i > 0 {
		return max(s.log.low, s.log.marks[i].sequence)
	}
	return s.log.low
}

// ErrOvertaken means that retention deleted records before a replay had come to them. All others are queued.
var ErrOvertaken = errors.New("retention deleted records that were to be replayed while the replay waited for room: the others are queued")

// enqueueSelected enqueues those of the records from and to included that are selected. The error is ErrOvertaken if some are gone.
// It calls wait before each chunk, and keeps no part of the log meanwhile: the wait may be
// for the room that the log takes. With joined the sink must have joined, and that is locked for
// each commit; a fill has it locked already.
func (s *Store) enqueueSelected(q *Queue, from, to uint64, selected Selector, wait func() error, joined sync.Locker) (int, error) {
	total := 0
	var overtaken error
	for after := from - 1; after < to; {
		if err := wait(); err != nil {
			return total, err
		}
		if first := s.LogStats().First; first > after+1 && after >= from && overtaken == nil {
			overtaken = ErrOvertaken
			s.opts.Logger.Warn("records were deleted while a replay waited for room", "sink", q.name, "after", after, "before", first)
		}
		n, last, err := s.enqueueNext(q, after, to, selected, joined)
		total += n
		if err != nil {
			return total, err
		}
		if last == 0 {
			break
		}
		after = last
	}
	return total, overtaken
}

// enqueueNext enqueues a chunk of the records after one sequence, up to another, and
// returns the last that it looked at, 0 if there are none.
func (s *Store) enqueueNext(q *Queue, after, to uint64, selected Selector, joined sync.Locker) (n int, last uint64, err error) {
	release := s.log.hold(after + 1)
	defer release()
	for {
		rewrites := s.rewrites.Load()
		items, err := s.ReadLog(after, replayChunk)
		if err != nil || len(items) == 0 {
			return 0, 0, err
		}
		if it := &items[0]; it.Unreadable { // up to the end of the damage
			it.Position, it.Sequence = min(it.Position, to), min(it.Sequence, to)
		}
		if items[0].Sequence > to {
			return 0, 0, nil
		}
		entries, seen, err := s.entriesOf(items, to, selected)
		if err == nil && len(entries) > 0 {
			err = s.enqueueChunk(q, entries, rewrites, joined)
		}
		if errors.Is(err, errRewritten) {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		return len(entries), seen, nil
	}
}

// entriesOf are the entries for the selected items up to the sequence to, or until the payloads that
// selected gives are a batch, and the last sequence that it looked at. An unreadable record may be among them: the
// reader of the queue reports it.
func (s *Store) entriesOf(items []Item, to uint64, selected Selector) (entries []layout.Entry, last uint64, err error) {
	bytes, most := 0, s.BatchBytes()
	for i := range items {
		it := &items[i]
		if it.Sequence > to || bytes >= most {
			break
		}
		last = it.Sequence
		chosen, ok, err := selected(it)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			continue
		}
		e := layout.Entry{Kind: layout.EntryReplay, Flags: chosen.Flags, Size: it.size, Time: it.Time, Sequence: it.Sequence}
		if chosen.Payload != nil {
			bytes += len(chosen.Payload)
			e.Kind, e.Size, e.Lane, e.Payload = layout.EntryInline, uint32(len(chosen.Payload)), it.Lane, chosen.Payload
		}
		entries = append(entries, e)
	}
	return entries, last, nil
}

// errRewritten means that payloads were made of records that have been rewritten since.
var errRewritten = errors.New("the log was rewritten")

// enqueueChunk commits entries with a pin. rewrites is what it was before the records were
// read.
func (s *Store) enqueueChunk(q *Queue, entries []layout.Entry, rewrites uint64, joined sync.Locker) error {
	if joined != nil {
		joined.Lock()
		defer joined.Unlock()
		if q.member.state != memberJoined { // a fill would take the entries for its own
			return fmt.Errorf("sink %s: %w", q.name, ErrNotJoined)
		}
	}
	b := s.NewBatch()
	defer b.Discard()
	if b.err != nil {
		return b.err
	}
	b.hold()
	unlock := q.lockSettling() // the queue is rewritten after the log
	defer unlock()
	if rewrites != s.rewrites.Load() {
		return errRewritten
	}
	p := pin{sequence: entries[0].Sequence}
	for i := range entries {
		p.last = b.position()
		if i == 0 {
			p.first = p.last
		}
		b.enqueue(q, p.last, &entries[i])
	}
	b.pin(q, p)
	return s.Commit(b)
}

// hold keeps the log from the given sequence on until release is called.
func (l *logState) hold(sequence uint64) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.nextHold
	l.nextHold++
	if l.holds == nil {
		l.holds = make(map[int]uint64)
	}
	l.holds[id] = sequence
	l.held = min(l.held, sequence)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.holds, id)
	}
}

// pin keeps old records in the log for entries of a replay, one chunk of them: those
// at the positions first to last refer to records from sequence on.
type pin struct {
	first, last uint64
	sequence    uint64
}

// loadPins returns the pins of a queue. In place of unreadable ones, one keeps the whole log until the queue is
// delivered up to its tail; a fill that was interrupted needs all.
func (q *Queue) loadPins() ([]pin, error) {
	s := q.s
	var pins []pin
	lower, upper := layout.SinkRange(layout.PrefixPin, q.id)
	err := salvage.Scan(s.db, lower, upper, func(key, value []byte) error {
		first, ok := layout.PositionOfKey(key)
		if !ok || len(value) != 16 {
			return layout.Malformed(key)
		}
		pins = append(pins, pin{
			first:    first,
			last:     binary.BigEndian.Uint64(value),
			sequence: binary.BigEndian.Uint64(value[8:]),
		})
		return nil
	}, func(span salvage.LostSpan) error {
		if q.member.state == memberFilling {
			return span.Err
		}
		first := uint64(1)
		if n := len(pins); n > 0 {
			first = pins[n-1].first + 1
		}
		pins = append(pins, pin{first: first, last: q.tail, sequence: s.log.low})
		return nil
	})
	return pins, err
}

func (p pin) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, p.last)
	return binary.BigEndian.AppendUint64(dst, p.sequence)
}

func (b *Batch) pin(q *Queue, p pin) {
	b.misuseIf(b.pb.Set(layout.AppendSinkKey(nil, layout.PrefixPin, q.id, p.first), p.append(nil), nil))
	b.committed = append(b.committed, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.pins = append(q.pins, p)
	})
}
