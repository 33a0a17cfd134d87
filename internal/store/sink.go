package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// Start is the point of the log at which a new sink's queue begins.
type Start uint8

const (
	// FromNow begins with the records appended after EnsureSink.
	FromNow Start = iota
	// FromLogStart begins with records still in the log: those that [Store.Fill]
	// selects. Until [Store.Filled] the queue must not be read or routed to.
	FromLogStart
)

type sinkTable struct {
	mu     sync.RWMutex
	byName map[string]*Queue // guarded by mu
	lastID uint32            // guarded by mu; IDs of purged sinks are not reused

	ensuring sync.Mutex // held while a sink is created or filled; taken before naming
	naming   sync.Mutex // held while a name or a membership changes; taken before the right to append
}

func (t *sinkTable) get(name string) *Queue {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byName[name]
}

func (t *sinkTable) all() []*Queue {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.byName), func(a, b *Queue) int { return cmp.Compare(a.name, b.name) })
}

func (s *Store) loadSinks() (*sinkTable, error) {
	numbers, err := s.counter(layout.KindSinkNumber, 0)
	if err != nil {
		return nil, err
	}
	t := &sinkTable{byName: make(map[string]*Queue), lastID: uint32(numbers.High)}
	err = s.scanNames(layout.KindSink, func(name string, id uint32, rest []byte) error {
		member, ok := parseMembership(rest)
		if !ok {
			return fmt.Errorf("%w: sink %q", layout.ErrMalformed, name)
		}
		q := &Queue{s: s, id: id, name: name, member: member}
		q.filling.Store(member.state == memberFilling)
		t.byName[name] = q
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, q := range t.byName {
		if err := q.load(); err != nil {
			return nil, fmt.Errorf("queue of sink %s: %w", q.name, err)
		}
	}
	return t, nil
}

// EnsureSink returns the queue of a sink. If there is none, it creates one, durably,
// that begins at from. Every call with the same name returns the same Queue.
func (s *Store) EnsureSink(name string, from Start) (*Queue, error) {
	if name == "" {
		return nil, fmt.Errorf("%w: empty name", ErrUnknownSink)
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	if q := s.sinks.get(name); q != nil {
		return q, nil
	}
	return s.createSink(name, from == FromLogStart)
}

func (s *Store) createSink(name string, filling bool) (*Queue, error) {
	s.sinks.naming.Lock()
	defer s.sinks.naming.Unlock()
	s.sinks.mu.Lock()
	s.sinks.lastID++
	q := &Queue{s: s, id: s.sinks.lastID, name: name}
	if filling {
		q.member.state = memberFilling
		q.filling.Store(true)
	}
	s.sinks.mu.Unlock()
	if err := s.saveSink(q); err != nil {
		return nil, err
	}
	s.sinks.mu.Lock()
	defer s.sinks.mu.Unlock()
	s.sinks.byName[name] = q
	return q, nil
}

func (s *Store) saveSink(q *Queue) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	q.settling.RLock()
	defer q.settling.RUnlock()
	if q.isPurged() {
		return fmt.Errorf("%w %q", ErrUnknownSink, q.name)
	}
	b := s.db.NewBatch()
	return s.apply(b, pebble.Sync,
		b.Set(layout.NameKey(layout.KindSink, q.name), q.member.append(layout.ID32(q.id)), nil),
		b.Merge(layout.CounterKey(layout.KindSinkNumber, 0), layout.Counter{High: uint64(q.id)}.Append(nil), nil))
}

// Sinks returns the sorted names of all sinks that have a queue, ensured since Open or
// not.
func (s *Store) Sinks() []string {
	s.sinks.mu.RLock()
	defer s.sinks.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.sinks.byName))
}

// Queue returns the queue of an existing sink.
func (s *Store) Queue(name string) (*Queue, error) {
	if q := s.sinks.get(name); q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownSink, name)
}

// PurgeSink deletes a sink's queue, dead letters and note, durably. It waits for a batch
// in progress. Later additions through a Queue of the sink fail with ErrUnknownSink.
func (s *Store) PurgeSink(name string) error {
	q, err := s.Queue(name)
	if err != nil {
		return err
	}
	b := s.NewBatch()
	defer b.Discard()
	if b.err != nil {
		return b.err
	}
	b.hold()
	unlock := q.lockSettling()
	defer unlock()
	for _, prefix := range []byte{layout.PrefixQueue, layout.PrefixDeadLetter, layout.PrefixPin} {
		lower, upper := layout.SinkRange(prefix, q.id)
		b.misuseIf(b.pb.DeleteRange(lower, upper, nil))
	}
	for _, key := range [][]byte{
		layout.NameKey(layout.KindSink, name), layout.NoteKey(q.id),
		layout.CounterKey(layout.KindQueue, q.id), layout.CounterKey(layout.KindDetached, q.id), layout.CounterKey(layout.KindDeadLetter, q.id),
	} {
		b.misuseIf(b.pb.Delete(key, nil))
	}
	b.committed = append(b.committed, func() {
		s.sinks.mu.Lock()
		delete(s.sinks.byName, name)
		s.sinks.mu.Unlock()
		q.purge()
	})
	return s.Commit(b)
}

func (q *Queue) purge() {
	q.s.shrunk.Store(true)
	q.s.dropped.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.purged = true
	q.total, q.detached, q.dead, q.pins = layout.Counter{}, layout.Counter{}, layout.Counter{}, nil
	q.window = window{readTo: q.tail}
}

// Filling reports whether the sink was ensured FromLogStart or rejoined, and neither
// Filled nor LeaveSink has been called since.
func (q *Queue) Filling() bool {
	return q.filling.Load()
}

// Joined reports whether records are queued for the sink: it has not left, and is not Filling.
func (q *Queue) Joined() bool {
	q.s.sinks.ensuring.Lock()
	defer q.s.sinks.ensuring.Unlock()
	return q.member.state == memberJoined
}

// Fill queues, for a sink that is Filling, the records that selected accepts, with its
// flags, and returns their number. It begins at the start of the log, or where the sink
// left, and stops at the present end; the next Fill continues from there. Call it once
// more while nothing is appended, then Filled.
//
// After a cancelled context or a crash, the first part is queued and the next Fill
// continues behind it. It does not wait while ingest is paused: entries are small beside
// the records, which exist already, and selected gives payloads of its own only while there
// is room: it is asked again before those are more than BatchBytes. No other method of the
// queue may be used meanwhile.
func (s *Store) Fill(ctx context.Context, sink string, selected Selector) (int, error) {
	q, err := s.Queue(sink)
	if err != nil {
		return 0, err
	}
	s.sinks.ensuring.Lock() // for long, and not naming, for which the repair of what is read here may wait
	defer s.sinks.ensuring.Unlock()
	if !q.filling.Load() {
		return 0, nil
	}
	from, err := q.fillFrom()
	if err != nil {
		return 0, err
	}
	to := s.LogStats().Last
	n, err := s.enqueueSelected(q, max(from, q.filled+1), to, selected, ctx.Err, nil)
	if err = ignore(err, ErrOvertaken); err == nil { // what is filled is what the log has
		q.filled = to
	}
	return n, err
}

// fillFrom returns the first sequence that is not filled yet. What is behind the last entry
// of a fill that can be read is filled again.
func (q *Queue) fillFrom() (uint64, error) {
	q.mu.Lock()
	pins := slices.Clone(q.pins)
	q.mu.Unlock()
	pins = slices.DeleteFunc(pins, func(p pin) bool { return p.first <= q.member.position })
	for _, p := range slices.Backward(pins) {
		for position := p.last; position >= p.first; position-- {
			last, err := q.entryAt(position)
			if err == nil {
				return last.Sequence + 1, nil
			}
			if !errors.Is(err, ErrUnreadable) {
				return 0, err
			}
		}
	}
	return q.member.after + 1, nil
}

// Filled ends the Filling of a sink, durably.
func (s *Store) Filled(sink string) error {
	q, err := s.Queue(sink)
	if err != nil {
		return err
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	if q.member.state != memberFilling {
		return nil
	}
	err = s.setMembership(q, membership{})
	if err == nil {
		q.unhold()
	}
	return err
}

// membership is the state of a sink's queue: which records are queued for it.
type membership struct {
	state byte

	// When the sink left: the end of the log, the number of records ever appended, and
	// the time. Kept while it is filled; zero for a new sink.
	after uint64
	count int64
	time  time.Time

	// The entries of the fill come after this position.
	position uint64
}

// The states of a membership. They are stored.
const (
	memberJoined  = 0
	memberFilling = 1 // Fill queues old records
	memberLeft    = 2 // nothing is queued
)

const membershipLen = 1 + 8*4

func (m *membership) append(dst []byte) []byte {
	if m.state == memberJoined {
		return dst
	}
	dst = append(dst, m.state)
	dst = binary.BigEndian.AppendUint64(dst, m.after)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.count))
	dst = binary.BigEndian.AppendUint64(dst, layout.Nanos(m.time))
	return binary.BigEndian.AppendUint64(dst, m.position)
}

func parseMembership(b []byte) (m membership, ok bool) {
	if len(b) == 0 {
		return m, true
	}
	if len(b) != membershipLen || b[0] != memberFilling && b[0] != memberLeft {
		return m, false
	}
	return membership{
		state: b[0], after: binary.BigEndian.Uint64(b[1:]), count: int64(binary.BigEndian.Uint64(b[9:])),
		time: layout.UnixNano(b[17:]), position: binary.BigEndian.Uint64(b[25:]),
	}, true
}

// LeaveSink ends the queueing of records for a sink, durably. The caller appends nothing
// meanwhile. A sink that has left stays unchanged. The fill of one that is not filled yet
// is interrupted: what is queued stays, and RejoinSink continues behind it. Call it again after Open: until
// then, what the fill has queued holds the log.
func (s *Store) LeaveSink(name string) error {
	q, err := s.Queue(name)
	if err != nil {
		return err
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	q.unhold()
	switch q.member.state {
	case memberFilling:
		return s.interruptFill(q)
	case memberLeft:
		return nil
	}
	s.log.mu.Lock()
	count, _ := s.log.totalLocked()
	left := membership{state: memberLeft, after: s.log.tail, count: count, time: s.opts.Now().UTC()}
	s.log.mu.Unlock()
	return s.setMembership(q, left)
}

// interruptFill notes how far a fill came, so that its entries need not stay as they are:
// those of a sink that is not configured are detached like any others. The caller holds
// sinkTable.ensuring.
func (s *Store) interruptFill(q *Queue) error {
	from, err := q.fillFrom()
	if err != nil {
		return fmt.Errorf("sink %s: %w", q.name, err)
	}
	if next := q.member; from > next.after+1 {
		count, err := s.countBefore(from)
		if err != nil {
			return fmt.Errorf("sink %s: %w", q.name, err)
		}
		next.after = from - 1
		if !s.lostSince(&next) { // else it stays to be reported
			next.count = max(next.count, count)
		}
		if next.time.IsZero() { // from now on it misses what is removed
			next.time = s.opts.Now().UTC()
		}
		q.mu.Lock()
		next.position = q.tail
		q.mu.Unlock()
		if err := s.setMembership(q, next); err != nil {
			return err
		}
	}
	q.filling.Store(false)
	return nil
}

// countBefore returns how many records had been appended before a sequence since the store
// was made; fewer if some are unreadable or deleted.
func (s *Store) countBefore(sequence uint64) (int64, error) {
	var m mark
	s.log.mu.Lock()
	if i := s.log.marks.segmentOf(sequence); i >= 0 {
		m = s.log.marks[i]
	}
	s.log.mu.Unlock()
	for after := max(m.sequence, 1) - 1; ; {
		items, err := s.ReadLog(after, replayChunk)
		if err != nil || len(items) == 0 {
			return m.count, err
		}
		for i := range items {
			if after = items[i].Sequence; after >= sequence {
				return m.count, nil
			}
			if !items[i].Unreadable {
				m.count++
			}
		}
	}
}

// RejoinSink makes a sink that left Filling: [Store.Fill] queues the records since it
// left, or those from the log's beginning. The log is kept until [Store.Filled]. A sink
// that did not leave stays unchanged.
func (s *Store) RejoinSink(name string, from Start) error {
	q, err := s.Queue(name)
	if err != nil {
		return err
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	if q.member.state == memberLeft {
		next := q.member
		next.state = memberFilling
		q.mu.Lock()
		next.position = q.tail
		q.mu.Unlock()
		if from == FromLogStart {
			next.after = 0
		}
		if err := s.setMembership(q, next); err != nil {
			return err
		}
		q.filled = 0
	}
	if q.member.state == memberFilling && q.release == nil {
		q.release = s.log.hold(q.member.after + 1)
		q.filling.Store(true)
	}
	return nil
}

// Absence is the time between LeaveSink and RejoinSink.
type Absence struct {
	Since  time.Time // when the sink left
	Lost   bool      // retention has removed records of that time
	LostTo time.Time // when the log begins; only if Lost
}

// Absence returns what a sink that is Filling missed; not ok if it did not leave.
func (q *Queue) Absence() (a Absence, ok bool) {
	s := q.s
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	m := &q.member
	if m.state != memberFilling || m.time.IsZero() {
		return a, false
	}
	a.Since = m.time
	a.Lost = s.lostSince(m)
	s.log.mu.Lock()
	if len(s.log.marks) > 0 {
		a.LostTo = s.log.marks[0].time
	}
	s.log.mu.Unlock()
	return a, true
}

// lostSince reports whether retention has removed records since the sink left.
func (s *Store) lostSince(m *membership) bool {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return !m.time.IsZero() && len(s.log.marks) > 0 && s.log.marks[0].count > m.count
}

// setMembership writes a membership, durably; the caller holds sinkTable.ensuring.
func (s *Store) setMembership(q *Queue, m membership) error {
	s.sinks.naming.Lock()
	defer s.sinks.naming.Unlock()
	before := q.member
	q.member = m
	if err := s.saveSink(q); err != nil {
		q.member = before
		return fmt.Errorf("sink %s: %w", q.name, err)
	}
	q.filling.Store(m.state == memberFilling)
	return nil
}

// unhold ends the hold on the log; the caller holds sinkTable.ensuring.
func (q *Queue) unhold() {
	if q.release != nil {
		q.release()
		q.release = nil
	}
}
