package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// logState is what is known of the log without reading it.
type logState struct {
	mu    sync.Mutex
	low   uint64         // guarded by mu; every record below is deleted
	tail  uint64         // guarded by mu; the last committed record, 0 = none ever
	live  layout.Counter // guarded by mu; what the log holds
	marks marks          // guarded by mu
	news  signal

	raised uint64 // guarded by mu; where sequences continued when the store was opened, or they were raised
	joined uint64 // the goroutine of Run's; headlines below are joined

	damage damageMap

	holds    map[int]uint64 // guarded by mu; sequences from which on nothing is deleted: of replays, fills, rewrites
	nextHold int            // guarded by mu
	held     uint64         // guarded by mu; the smallest of holds, those included that ended since retain began
}

// loadLog takes the last position ever used.
func (s *Store) loadLog(used uint64) (*logState, error) {
	c, err := s.counter(layout.KindLog, 0)
	if err != nil {
		return nil, err
	}
	l := &logState{low: max(c.High, 1), live: c, raised: s.next}
	if l.marks, err = s.loadMarks(l.low); err != nil {
		return nil, err
	}
	if n := len(l.marks); n > 0 {
		l.joined = l.marks[n-1].sequence
	}
	if len(l.marks) == 0 {
		l.low = max(l.low, s.next) // the log is empty
	}
	l.tail, err = s.lastRecord(l.low)
	if errors.Is(err, ErrUnreadable) { // readers report what is lost
		l.tail, err = used, nil
	}
	return l, err
}

// lastRecord finds the end of the log, 0 if it is empty; one seek.
func (s *Store) lastRecord(low uint64) (uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: layout.AppendLogKey(nil, low),
		UpperBound: layout.AppendLogKey(nil, ^uint64(0)),
	})
	if err != nil {
		return 0, salvage.ReadError(err)
	}
	defer it.Close()
	if !it.Last() {
		return 0, salvage.ReadError(it.Error())
	}
	sequence, ok := layout.PositionOfKey(it.Key())
	if !ok {
		return 0, layout.Malformed(it.Key())
	}
	return sequence, nil
}

// notBehind returns the time, or the one to which the log has come if that is later: the clock is behind then.
func (l *logState) notBehind(t time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.marks) > 0 && l.marks.trusted().After(t) {
		return l.marks.trusted()
	}
	return t
}

// totalLocked is how much has been appended since the store was made.
func (l *logState) totalLocked() (count, bytes int64) {
	if len(l.marks) > 0 {
		count, bytes = l.marks[0].count, l.marks[0].bytes
	}
	return count + l.live.Count, bytes + l.live.Bytes
}

// LogStats describe the log.
type LogStats struct {
	// First and Last are the bounds of the sequences in the log. Last is 0 when
	// nothing was ever appended; First is greater than Last when nothing is left.
	First, Last uint64
	// Next is above all sequences that this store, or the one that it is a copy of, has given to records: later records
	// are at or above it.
	Next uint64
	// Oldest is the sequence of the oldest record, First if there is none.
	Oldest uint64
	// Records and Bytes are what the log holds; Bytes are those of payloads.
	Records, Bytes int64
	// Trimmed reports whether records were deleted.
	Trimmed bool
}

// LogStats returns what the log holds, from memory.
func (s *Store) LogStats() LogStats {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	stats := LogStats{First: l.low, Last: l.tail, Next: max(l.raised, l.tail+1), Oldest: l.low, Records: l.live.Count, Bytes: l.live.Bytes, Trimmed: l.live.High > 0}
	if len(l.marks) > 0 { // the first is of the oldest record
		stats.Oldest = max(l.low, l.marks[0].sequence)
	}
	return stats
}

// readLogBytes is about how much payload one ReadLog returns at most.
const readLogBytes = 4 << 20

// ReadLog returns at most max records with sequences greater than after, in
// order, and stops after about 4 MiB of payload. Records retention removed are skipped: LogStats.First is greater
// than after+1 if some were. Unreadable records end the result before them; if they are the
// first, one item with Unreadable set stands for a run of them, whose last sequence
// it has, also where a repair has removed them: there are no items only after LogStats.Last.
// Payloads belong to the caller; those of one call share an allocation. The caller holds no lock that a repair needs: the right to append, or
// that of names.
func (s *Store) ReadLog(after uint64, max int) ([]Item, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	defer s.life.leave()
	s.log.mu.Lock()
	low, tail := s.log.low, s.log.tail
	s.log.mu.Unlock()
	if after+1 < low {
		after = low - 1
	}
	if after >= tail || max <= 0 {
		return nil, nil
	}
	for tables := 0; ; tables++ {
		items, damage, err := s.readLog(after, tail, max)
		if damage == nil {
			return items, err
		}
		// See skipDamage. In addition, records that are in memory alone cannot all be found behind damage.
		if repaired, err := s.awaitRepair(damage); err != nil {
			return nil, err
		} else if !repaired || tables >= maxDamagedTables {
			return s.unreadableAt(after+1, tail, damage)
		}
	}
}

// readLog is ReadLog up to a sequence. The damage is what keeps the first record from being read.
func (s *Store) readLog(after, tail uint64, max int) (items []Item, damage, err error) {
	lost, some, err := s.lostAfter(after)
	if err != nil {
		return nil, nil, err
	}
	end := tail
	if some {
		if end = min(tail, lost.first-1); end < after {
			end = after
		}
	}
	var buf payloads
	_, damage, err = salvage.Read(s.db, layout.AppendLogKey(nil, after+1), layout.AppendLogKey(nil, end+1), func(key, raw []byte) error {
		sequence, _ := layout.PositionOfKey(key)
		value, err := layout.ParseLogRecord(raw)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		items = append(items, Item{Position: sequence, Sequence: sequence, Lane: value.Lane, Time: value.Time, size: value.Size})
		if buf.add(value.Payload); len(items) >= max || len(buf.data) >= readLogBytes {
			return errEnough
		}
		return nil
	})
	switch err = ignore(cmp.Or(err, damage), errEnough); {
	case errors.Is(err, ErrUnreadable) && len(items) == 0:
		return nil, err, nil
	case err != nil && !errors.Is(err, ErrUnreadable):
		return nil, nil, err
	}
	if len(items) == 0 {
		if first := s.LogStats().First; after+1 < first { // retention has removed them meanwhile
			items, err := s.ReadLog(first-1, max)
			return items, nil, err
		}
		if some {
			tail = min(tail, lost.last)
		}
		items, buf = []Item{{Position: tail, Sequence: tail, Unreadable: true}}, payloads{}
	}
	buf.assign(items)
	return items, nil, nil
}

// unreadableAt returns the item for the record at or after from at which a reader
// failed. It may be readable by itself, as only the next block is damaged.
func (s *Store) unreadableAt(from, last uint64, cause error) ([]Item, error) {
	value, ok, err := s.recordAt(from)
	switch {
	case err == nil && ok:
		return []Item{{Position: from, Sequence: from, Lane: value.Lane, Time: value.Time, Payload: value.Payload, size: value.Size}}, nil
	case err != nil && !errors.Is(err, ErrUnreadable):
		return nil, err
	}
	if err := s.noteDamage(from, cause); !errors.Is(err, ErrUnreadable) {
		return nil, err
	}
	end := min(s.log.damage.end(from), last)
	return []Item{{Position: end, Sequence: end, Unreadable: true}}, nil
}

// ReadRecord returns one record of the log; false if there is none with the sequence, or
// retention removed it. One that a state is recorded with is there as soon as [Store.State] has that. The error is ErrUnreadable if it is damaged. The payload belongs to
// the caller.
func (s *Store) ReadRecord(sequence uint64) (Item, bool, error) {
	if err := s.use(); err != nil {
		return Item{}, false, err
	}
	defer s.life.leave()
	if sequence < s.LogStats().First {
		return Item{}, false, nil
	}
	value, ok, err := s.recordAt(sequence)
	if errors.Is(err, ErrUnreadable) {
		err = s.noteDamage(sequence, err)
	}
	if err != nil || !ok {
		return Item{}, false, err
	}
	return Item{Position: sequence, Sequence: sequence, Lane: value.Lane, Time: value.Time, Payload: value.Payload, size: value.Size}, true, nil
}

// Records reads records of the log one by one, in the form that they had at the first read. One
// that is near the one before it costs a fraction of a lookup. It is for one goroutine at a time,
// and the end of the store waits for its Close.
type Records struct{ find recordFinder }

// Records returns a reader of records.
func (s *Store) Records() (*Records, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	return &Records{recordFinder{s: s}}, nil
}

// ReadRecord is [Store.ReadRecord] with a payload that is valid until the next call, and
// ErrUnreadable for a record that the log lacks, too.
func (r *Records) ReadRecord(sequence uint64) (Item, bool, error) {
	if stats := r.find.s.LogStats(); sequence < stats.First || sequence > stats.Last {
		return Item{}, false, nil
	}
	value, err := r.find.find(sequence)
	if err != nil {
		return Item{}, false, err
	}
	return Item{Position: sequence, Sequence: sequence, Lane: value.Lane, Time: value.Time, Payload: value.Payload, size: value.Size}, true, nil
}

// Close ends the reading.
func (r *Records) Close() {
	r.find.close()
	r.find.s.life.leave()
}

// recordAt looks one record up; the payload is a copy.
func (s *Store) recordAt(sequence uint64) (layout.LogRecord, bool, error) {
	raw, ok, err := s.get(layout.AppendLogKey(nil, sequence))
	if err != nil || !ok {
		return layout.LogRecord{}, false, err
	}
	value, err := layout.ParseLogRecord(raw)
	if err != nil {
		return layout.LogRecord{}, false, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return value, true, nil
}

// WaitLog returns when the log has a record with a sequence greater than after,
// or with the context's error, ErrClosed or ErrFailed.
func (s *Store) WaitLog(ctx context.Context, after uint64) error {
	for {
		news := s.log.news.wait()
		if s.LogStats().Last > after {
			return nil
		}
		if err := s.await(ctx, news); err != nil {
			return err
		}
	}
}

// await waits for news, the end of the context or of the store.
func (s *Store) await(ctx context.Context, news <-chan struct{}) error {
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case <-news:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.failed:
		return s.failure
	case <-s.life.ended:
		return ErrClosed
	}
}

// payloads collects the payloads of items in one allocation that the caller
// will own.
type payloads struct {
	data []byte
	ends []int
}

func (p *payloads) add(payload []byte) {
	p.data = append(p.data, payload...)
	p.ends = append(p.ends, len(p.data))
}

// assign gives every item its payload; there was one add an item.
func (p *payloads) assign(items []Item) {
	begin := 0
	for i, end := range p.ends {
		items[i].Payload = p.data[begin:end:end]
		begin = end
	}
}

// firstAtOrAfter finds the first record whose time is not before t, starting at
// the segment t lies in. It reads at most a segment, and passes over damage.
func (s *Store) firstAtOrAfter(t time.Time) (uint64, error) {
	begin, tail := s.SequenceAt(t), s.LogStats().Last
	for after := begin - 1; ; {
		items, err := s.ReadLog(after, replayChunk)
		if err != nil {
			return 0, err
		}
		if len(items) == 0 {
			return tail + 1, nil
		}
		for i := range items {
			if after = items[i].Sequence; !items[i].Unreadable && !items[i].Time.Before(t) {
				return after, nil
			}
		}
	}
}

func (l *logState) dropMarksLocked(n int) {
	l.marks = slices.Delete(l.marks, 0, n)
}

// Sequences and positions only rise, for lost volumes and restored copies too: each Open
// continues from the later of the last one and the clock in microseconds. A store uses
// fewer than one a microsecond, so the clock is ahead of all used before. Sequences
// therefore have large gaps, and a difference of two is not a count.

// RaiseSequences has them continue from the clock, as Open does: those that follow are above all that other stores have
// given until then. It waits for a batch in progress, so none of the caller's may be. An implausible clock changes nothing.
func (s *Store) RaiseSequences() error {
	select {
	case s.appending <- struct{}{}:
	case <-s.failed:
		return s.failure
	}
	defer func() { <-s.appending }()
	if first, err := s.opts.first(); err == nil {
		s.next = max(s.next, first)
		s.log.mu.Lock()
		s.log.raised = s.next
		s.log.mu.Unlock()
	}
	return nil
}

// maxSequence is the largest integer that every JSON reader keeps exact.
const maxSequence = 1<<53 - 1

// The range of plausible clocks. Its end leaves room below maxSequence.
var (
	earliestClock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	latestClock   = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// buildTime returns the time of the program's commit; zero if the binary lacks it.
func buildTime() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t
			}
		}
	}
	return time.Time{}
}

// firstSequence returns the smallest sequence for a store opened now. It rejects an
// implausible clock: later sequences would fall behind, or have no room.
func firstSequence(now, built time.Time) (uint64, error) {
	earliest := earliestClock
	// A commit made under a wrong clock must not keep the binary from starting.
	if built.After(earliest) && built.Before(latestClock) {
		earliest = built
	}
	switch {
	case now.Before(earliest):
		return 0, fmt.Errorf("the clock is at %s, before this program was made (%s): %w",
			now.UTC().Format(time.RFC3339), earliest.UTC().Format(time.RFC3339), ErrClock)
	case !now.Before(latestClock):
		return 0, fmt.Errorf("the clock is at %s, after %s: %w",
			now.UTC().Format(time.RFC3339), latestClock.Format(time.RFC3339), ErrClock)
	}
	return uint64(now.UnixMicro()), nil
}

// errNoSequences: the sequences have reached maxSequence.
var errNoSequences = errors.New("no sequences are left")
