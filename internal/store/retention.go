package store

import (
	"sort"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// The reasons for which records leave the log, as the metrics name them.
const (
	deletedAge    = "age"
	deletedBytes  = "bytes"
	deletedBudget = "budget"
)

// The log keeps records for longer than RetentionMaxAge, by one part in historyLag, and
// Old is as far back as that: so the state before any record of the retention time is in
// that record or in one that is still in the log. Of RetentionMaxBytes, which bounds the
// disk, one part in historyLag+1 serves for it.
const historyLag = 3

// Old returns the sequence below which a record may have left the log while one that is
// appended now must still be explained.
func (s *Store) Old(now time.Time) uint64 {
	limits := s.limits()
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if limits.RetentionMaxAge > 0 && limits.RetentionMaxAge < segmentAge {
		return l.low // nothing is kept for long
	}
	from := 0 // the first segment that is new
	if limits.RetentionMaxAge > 0 {
		from = l.marks.before(now.Add(-limits.RetentionMaxAge/historyLag)) + 1
	}
	if most := limits.RetentionMaxBytes / (historyLag + 1); most > 0 {
		_, bytes := l.totalLocked()
		from = max(from, sort.Search(len(l.marks), func(i int) bool { return bytes-l.marks[i].bytes <= most }))
	}
	if from < len(l.marks) {
		return max(l.low, l.marks[from].sequence)
	}
	return max(l.low, l.tail+1)
}

// needed is the smallest sequence that must stay as some queue has an entry for it.
func (s *Store) needed() uint64 {
	// The log's end first: an entry committed after this is above it.
	s.log.mu.Lock()
	low := s.log.tail + 1
	s.log.mu.Unlock()
	for _, q := range s.sinks.all() {
		need, _ := q.needs()
		low = min(low, need)
	}
	return low
}

// retain deletes delivered segments for age, size or the budget's excess. It returns
// how many bytes of payload went.
func (s *Store) retain(now time.Time, limits Limits, excess int64) (int64, error) {
	if err := s.use(); err != nil {
		return 0, err
	}
	defer s.life.leave()
	needed := s.needed()
	l := s.log
	l.mu.Lock()
	// Who takes a hold finds afterwards what it holds, or that it is gone.
	for _, sequence := range l.holds {
		needed = min(needed, sequence)
	}
	n, reason := l.expiredLocked(needed, now, limits, excess)
	if n == 0 {
		l.mu.Unlock()
		return 0, nil
	}
	low, end := l.low, l.marks[n]
	gone := layout.Counter{Count: end.count - l.marks[0].count, Bytes: end.bytes - l.marks[0].bytes}
	// Readers stop seeing the records before they go.
	l.low, l.live.High = end.sequence, end.sequence
	l.dropMarksLocked(n)
	l.live.Count -= gone.Count
	l.live.Bytes -= gone.Bytes
	l.mu.Unlock()

	if err := s.deleteLog(low, end.sequence, gone); err != nil {
		return 0, err
	}
	s.metrics.deleted(reason, gone)
	l.damage.forget(end.sequence)
	return gone.Bytes, nil
}

// expiredLocked counts the segments to delete from the front. The last segment
// is still being written and stays.
func (l *logState) expiredLocked(needed uint64, now time.Time, limits Limits, excess int64) (n int, reason string) {
	delivered := l.marks.segmentOf(needed)
	if delivered <= 0 {
		return 0, ""
	}
	begin := l.marks[0].bytes
	for n < delivered {
		end := l.marks[n+1]
		switch {
		case limits.RetentionMaxAge > 0 && now.Sub(end.time) > limits.RetentionMaxAge+limits.RetentionMaxAge/historyLag:
			reason = deletedAge
		case limits.RetentionMaxBytes > 0 && l.marks[delivered].bytes-l.marks[n].bytes > limits.RetentionMaxBytes:
			reason = deletedBytes
		case l.marks[n].bytes-begin < excess:
			reason = deletedBudget
		default:
			return n, reason
		}
		n++
	}
	return n, reason
}

// deleteLog removes the records and marks in [from, to).
func (s *Store) deleteLog(from, to uint64, gone layout.Counter) error {
	b := s.db.NewBatch()
	if err := b.DeleteRange(layout.AppendLogKey(nil, from), layout.AppendLogKey(nil, to), nil); err != nil {
		return err
	}
	if err := b.DeleteRange(layout.MarkKey(from), layout.MarkKey(to), nil); err != nil {
		return err
	}
	if err := b.DeleteRange(layout.HeadlineKey(from), layout.HeadlineKey(to), nil); err != nil {
		return err
	}
	change := layout.Counter{Count: -gone.Count, Bytes: -gone.Bytes, High: to}
	if err := b.Merge(layout.CounterKey(layout.KindLog, 0), change.Append(nil), nil); err != nil {
		return err
	}
	if err := s.applyLazily(b); err != nil {
		return err
	}
	return b.Close()
}
