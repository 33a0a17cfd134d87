package store

import (
	"context"
	"encoding/binary"
	"slices"
	"sort"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
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

// needed is the smallest sequence that must stay as some queue has an entry for it. What was
// acknowledged by then has been written: after a crash no entry refers to what is deleted now.
func (s *Store) needed() uint64 {
	// The log's end first: an entry committed after this is above it.
	low := s.LogStats().Last + 1
	for _, q := range s.sinks.all() {
		q.settling.Lock()
		need, _ := q.needs()
		q.settling.Unlock()
		low = min(low, need)
	}
	return low
}

// retain deletes delivered segments for age, size or the budget's excess. It returns
// how many bytes of payload went. One call at a time.
func (s *Store) retain(now time.Time, limits Limits, excess int64) (int64, error) {
	if err := s.use(); err != nil {
		return 0, err
	}
	defer s.life.leave()
	l := s.log
	if l.unneeded(now, limits, excess) == 0 {
		return 0, nil
	}
	l.mu.Lock()
	l.held = ^uint64(0)
	for _, sequence := range l.holds {
		l.held = min(l.held, sequence)
	}
	l.mu.Unlock()
	needed := s.needed()
	l.mu.Lock()
	// Who takes a hold finds afterwards what it holds, or that it is gone. One that has ended meanwhile counts: what
	// was queued under it may not be part of needed.
	needed = min(needed, l.held)
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

func (s *Store) deleteLog(from, to uint64, gone layout.Counter) error {
	b := s.db.NewBatch()
	change := layout.Counter{Count: -gone.Count, Bytes: -gone.Bytes, High: to}
	return s.applyLazily(b,
		b.DeleteRange(layout.AppendLogKey(nil, from), layout.AppendLogKey(nil, to), nil),
		b.DeleteRange(layout.MarkKey(from), layout.MarkKey(to), nil),
		b.DeleteRange(layout.HeadlineKey(from), layout.HeadlineKey(to), nil),
		b.Merge(layout.CounterKey(layout.KindLog, 0), change.Append(nil), nil))
}

// letterAge is the time of the oldest dead letter of a queue. Removing letters
// makes it unknown, until they are looked through again.
type letterAge struct {
	known  bool
	oldest time.Time // zero if there is none
}

func (a *letterAge) add(t time.Time) {
	if a.oldest.IsZero() || t.Before(a.oldest) {
		a.oldest = t
	}
}

// expireChunk is how many dead letters are deleted at a time.
const expireChunk = 1024

func (s *Store) expireLoop(ctx context.Context) {
	ticker := time.NewTicker(retainEvery)
	defer ticker.Stop()
	for {
		for _, q := range s.sinks.all() {
			if err := q.expireLetters(ctx, s.Age(), s.limits().DeadLetterMaxAge); err != nil {
				if ended(ctx, err) == nil || s.Err() != nil {
					return
				}
				s.opts.Logger.Warn("the age of dead letters was not checked", "sink", q.name, "error", salvage.FirstLine(err))
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		}
	}
}

// expireLetters deletes the dead letters whose last attempt is longer ago than
// maxAge, if that is not zero, and finds the time of the oldest of the others.
func (q *Queue) expireLetters(ctx context.Context, now time.Time, maxAge time.Duration) error {
	q.mu.Lock()
	due := q.dead.Count > 0 && (!q.deadAge.known || (maxAge > 0 && now.Sub(q.deadAge.oldest) > maxAge))
	if due {
		q.deadAge = letterAge{known: true} // what is added meanwhile adds to this
	}
	q.mu.Unlock()
	if !due {
		return nil
	}
	var expired []uint64
	var oldest time.Time
	if err := q.scanLetters(ctx, func(position uint64, d *layout.DeadLetter) {
		if maxAge > 0 && now.Sub(d.Last) > maxAge {
			expired = append(expired, position)
		} else if oldest.IsZero() || d.Last.Before(oldest) {
			oldest = d.Last
		}
	}); err != nil {
		q.mu.Lock()
		q.deadAge.known = false
		q.mu.Unlock()
		return err
	}
	gone := 0
	for len(expired) > 0 && ctx.Err() == nil {
		chunk := expired[:min(len(expired), expireChunk)]
		expired = expired[len(chunk):]
		n, err := q.DropDeadLetters(chunk...)
		if err != nil {
			return err
		}
		gone += n
	}
	if gone > 0 {
		q.s.metrics.expired.Add(float64(gone))
		q.s.opts.Logger.Warn("dead letters expired", "sink", q.name, "count", gone, "maxAge", maxAge)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !oldest.IsZero() {
		q.deadAge.add(oldest)
	}
	// Letters removed by others leave an oldest that is too old: looked at again
	// when that is due.
	q.deadAge.known = true
	return ctx.Err()
}

func (q *Queue) scanLetters(ctx context.Context, f func(position uint64, d *layout.DeadLetter)) error {
	if err := q.s.use(); err != nil {
		return err
	}
	defer q.s.life.leave()
	lower, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	return salvage.Scan(q.s.db, lower, upper, func(key, value []byte) error {
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(value)
		if ok && err == nil {
			f(position, &d)
		}
		return ctx.Err()
	}, func(salvage.LostSpan) error { return nil })
}

// The log is cut into segments by marks, so that retention and replay by time
// need not read it. A mark has where a segment begins, when, and how much had
// been appended before it since the store was made; the size of a segment is
// the difference of two marks.
type mark struct {
	sequence uint64
	clock    time.Time // what the clock said
	time     time.Time // what is believed: never before the mark before it; see date
	count    int64
	bytes    int64
}

// A segment ends after this many bytes or this much time, whichever is first.
// 10 GiB of backlog are 10,000 marks.
const (
	segmentBytes = 1 << 20
	segmentAge   = time.Minute
)

const markLen = 24

func (m mark) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, layout.Nanos(m.clock))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.count))
	return binary.BigEndian.AppendUint64(dst, uint64(m.bytes))
}

func parseMark(sequence uint64, value []byte) (mark, error) {
	if len(value) != markLen {
		return mark{}, layout.Malformed(layout.MarkKey(sequence))
	}
	return mark{
		sequence: sequence, clock: layout.UnixNano(value), time: layout.UnixNano(value),
		count: int64(binary.BigEndian.Uint64(value[8:])), bytes: int64(binary.BigEndian.Uint64(value[16:])),
	}, nil
}

// loadMarks reads the marks of the log from low on. Those that are unreadable are made again of the records, unless all are.
func (s *Store) loadMarks(low uint64) (marks, error) {
	var all marks
	var lost []int // the indexes before which some are unreadable
	var damage error
	err := salvage.Scan(s.db, layout.MarkKey(low), layout.MarkKey(^uint64(0)), func(key, value []byte) error {
		sequence, ok := layout.PositionOfKey(key)
		if !ok {
			return layout.Malformed(key)
		}
		m, err := parseMark(sequence, value)
		all = append(all, m)
		return err
	}, func(span salvage.LostSpan) error {
		lost, damage = append(lost, len(all)), span.Err
		return nil
	})
	if err == nil && len(all) == 0 {
		err = damage
	}
	if err != nil {
		return nil, err
	}
	for _, i := range slices.Backward(lost) { // those behind keep their indexes
		again, err := s.marksOf(low, all[:i], all[i:])
		if err != nil {
			return nil, err
		}
		all = slices.Insert(all, i, again...)
	}
	all.date()
	return all, nil
}

// marksOf makes the marks of the records between two runs of marks, of which one may be empty.
func (s *Store) marksOf(low uint64, before, behind marks) (again marks, err error) {
	from, to := mark{sequence: low}, mark{sequence: ^uint64(0)}
	known := marks(nil)
	if n := len(before); n > 0 {
		from, known = before[n-1], before[n-1:n:n]
	}
	if len(behind) > 0 {
		to = behind[0]
	}
	at := from
	err = salvage.Scan(s.db, layout.AppendLogKey(nil, from.sequence), layout.AppendLogKey(nil, to.sequence), func(key, value []byte) error {
		r, err := layout.ParseLogRecord(value)
		if err != nil {
			return nil //nolint:nilerr // as the spans that are lost
		}
		if at.sequence, _ = layout.PositionOfKey(key); known.due(r.Time, at.bytes) {
			at.clock, at.time = r.Time, r.Time
			again, known = append(again, at), marks{at}
		}
		at.count++
		at.bytes += int64(r.Size)
		return nil
	}, func(salvage.LostSpan) error { return nil })
	if len(before) > 0 || err != nil {
		return again, err
	}
	for i := range again { // they count from the first one
		again[i].count += to.count - at.count
		again[i].bytes += to.bytes - at.bytes
	}
	return again, nil
}

// marks are in order of sequence, under the lock of logState.
type marks []mark

// due reports whether a batch whose first record is at t begins a segment, when
// bytes have been appended so far.
func (m marks) due(t time.Time, bytes int64) bool {
	if len(m) == 0 {
		return true
	}
	last := m[len(m)-1]
	// Also when the clock was set back, so that it is seen.
	return bytes-last.bytes >= segmentBytes || t.Sub(last.clock).Abs() >= segmentAge
}

func (m marks) add(next mark) marks {
	n := len(m)
	m = append(m, next)
	if n > 0 && next.clock.Before(m[n-1].time) {
		m.date()
	}
	return m
}

// date decides which clocks to believe where they are not in order: those of the
// longest chain of marks that is, the earlier one of two that end equally long. A
// mark outside of it (from a moment when the clock was wrong) gets the time of the
// next one in it, or of the last. So one jump of the clock is put right by the next
// mark after it, and a long wrong time by as many right marks.
func (m marks) date() {
	// chain[k] is the mark that ends, earliest, a chain of k+1 marks.
	var chain []int
	before := make([]int, len(m))
	for i := range m {
		k := sort.Search(len(chain), func(k int) bool { return m[chain[k]].clock.After(m[i].clock) })
		before[i] = -1
		if k > 0 {
			before[i] = chain[k-1]
		}
		if k == len(chain) {
			chain = append(chain, i)
		} else {
			chain[k] = i
		}
	}
	if len(chain) == 0 {
		return
	}
	believed := chain[len(chain)-1]
	t := m[believed].clock
	for i := len(m) - 1; i >= 0; i-- {
		if i == believed {
			t, believed = m[i].clock, before[i]
		}
		m[i].time = t
	}
}

// segmentOf is the index of the segment that holds the sequence; -1 if it lies
// before the first.
func (m marks) segmentOf(sequence uint64) int {
	return sort.Search(len(m), func(i int) bool { return m[i].sequence > sequence }) - 1
}

// segmentFrom is the index of the first segment with records at or after the sequence;
// -1 if there is no segment.
func (m marks) segmentFrom(sequence uint64) int {
	return max(m.segmentOf(sequence), min(len(m), 1)-1)
}

// before is the index of the last segment that began at or before t; -1 if
// none did. Records at or after t are in it or in later ones.
func (m marks) before(t time.Time) int {
	return sort.Search(len(m), func(i int) bool { return m[i].time.After(t) }) - 1
}
