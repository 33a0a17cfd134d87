package outbox

import (
	"context"
	"slices"
)

// Filling reports whether the queue was ensured FromLogStart, or its sink came back,
// and it is not filled yet.
func (q *Queue) Filling() bool {
	return q.filling.Load()
}

// Fill queues for a sink that is Filling the records that selected accepts, each
// with the flags it says, from the log's start, or the one after which the sink
// left, to its present end, and returns how many. The next Fill goes on from there, so that a log that grows meanwhile is
// caught up with: call it once more when nothing is appended, and then Filled.
//
// An end of ctx or a crash leaves a first part of them queued, and the sink
// Filling; Fill then goes on behind that part. It does not wait while ingest is
// paused: entries are small beside the records, which are there already. No other
// method of the queue may be used meanwhile.
func (s *Store) Fill(ctx context.Context, sink string, selected Selector) (int, error) {
	q, err := s.Queue(sink)
	if err != nil {
		return 0, err
	}
	s.sinks.ensuring.Lock()
	defer s.sinks.ensuring.Unlock()
	if !q.filling.Load() {
		return 0, nil
	}
	from, err := q.fillFrom()
	if err != nil {
		return 0, err
	}
	to := s.LogStats().Last
	n, err := s.enqueueSelected(q, max(from, q.filled+1), to, selected, ctx.Err)
	if err == nil {
		q.filled = to
	}
	return n, err
}

// fillFrom returns the first sequence after what is filled already.
func (q *Queue) fillFrom() (uint64, error) {
	q.mu.Lock()
	pins := slices.Clone(q.pins)
	q.mu.Unlock()
	pins = slices.DeleteFunc(pins, func(p pin) bool { return p.first <= q.member.position })
	if len(pins) == 0 {
		return q.member.after + 1, nil
	}
	last, err := q.entryAt(pins[len(pins)-1].last)
	if err != nil {
		return 0, err
	}
	return last.Sequence + 1, nil
}

// Filled makes a sink that is Filling one like all others, durably.
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
	if err := s.setMembership(q, membership{}); err != nil {
		return err
	}
	q.unhold()
	return nil
}
