package store

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
)

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
// meanwhile. A sink that has left, or is not filled yet, stays unchanged.
func (s *Store) LeaveSink(name string) error {
	q, err := s.Queue(name)
	if err != nil {
		return err
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	q.unhold()
	if q.member.state != memberJoined {
		return nil
	}
	s.log.mu.Lock()
	count, _ := s.log.totalLocked()
	left := membership{state: memberLeft, after: s.log.tail, count: count, time: s.opts.Now().UTC()}
	s.log.mu.Unlock()
	return s.setMembership(q, left)
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
	}
	return nil
}

// Absence is the time between LeaveSink and RejoinSink.
type Absence struct {
	Since  time.Time // when the sink left
	Begun  bool      // the fill has queued some records
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
	q.mu.Lock()
	for _, p := range q.pins {
		a.Begun = a.Begun || p.first > m.position
	}
	q.mu.Unlock()
	s.log.mu.Lock()
	if len(s.log.marks) > 0 {
		a.Lost, a.LostTo = s.log.marks[0].count > m.count, s.log.marks[0].time
	}
	s.log.mu.Unlock()
	return a, true
}

// setMembership writes a membership, durably; the caller holds sinkTable.ensuring.
func (s *Store) setMembership(q *Queue, m membership) error {
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
