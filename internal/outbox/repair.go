package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Repair of tables. A damaged block costs what was in it. Left in its table it would
// cost more: every compaction of the table fails, level 0 grows, and writes stop. So
// Run takes the damaged blocks out of a table (tablerepair.go) once a compaction has
// failed on it:
//
//  1. One synced write restates what memory knows of the lost keys (counters, names,
//     marks, pins, entries in flight, positions that are acknowledged), and notes the
//     lost ranges.
//  2. The blocks are overwritten and synced.
//  3. One synced write recounts the queues and dead letters in the lost ranges, adds a
//     dead letter for the entries that are missing, and removes the note.
//
// After a crash between 1 and 3 the note makes the next Run do the last step; a block
// that is still damaged is found again.

// compactionPause is how long a compaction waits before it reads a table again on
// which one failed, unless the table is repaired earlier.
const compactionPause = time.Second

// compactionShun is how long Pebble leaves tables alone after a compaction of them
// failed on damage, repaired or not, unless asked.
const compactionShun = 5 * time.Minute

// maxDamagedTables bounds the tables that wait for a repair; others are reported again.
const maxDamagedTables = 64

// damagedTables are the tables on which compactions failed.
type damagedTables struct {
	news signal

	mu     sync.Mutex
	tables map[string]*damagedTable // guarded by mu; by path
	shun   time.Time                // guarded by mu; until then, Pebble may leave tables alone

	uncounted []keyRange // ranges to count when no other damage is in the way; of Run
}

type damagedTable struct {
	bounds   keyRange
	failed   error         // of the repair
	repaired chan struct{} // closed when the table need not be waited for
}

// add notes a failed compaction.
func (d *damagedTables) add(info *pebble.DataCorruptionInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shun = time.Now().Add(compactionShun)
	if d.tables[info.Path] != nil || len(d.tables) >= maxDamagedTables {
		return
	}
	if d.tables == nil {
		d.tables = make(map[string]*damagedTable)
	}
	d.tables[info.Path] = &damagedTable{
		bounds:   keyRange{lower: bytes.Clone(info.Bounds.Start), upper: bytes.Clone(info.Bounds.End.Key)},
		repaired: make(chan struct{}),
	}
	d.news.notify()
}

// report notes the table that an error of reading is about.
func (d *damagedTables) report(err error) {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		d.add(info)
	}
}

// next returns a table to repair.
func (d *damagedTables) next() (string, *damagedTable) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, t := range d.tables {
		if t.failed == nil {
			return path, t
		}
	}
	return "", nil
}

// done ends the repair of a table.
func (d *damagedTables) done(path string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.tables[path].failed = fmt.Errorf("table %s: %w", filepath.Base(path), err) // readers and compactions of it stay slow
		return
	}
	close(d.tables[path].repaired)
	delete(d.tables, path)
}

// cause is why a table cannot be repaired; nil if all can.
func (d *damagedTables) cause() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.tables {
		if t.failed != nil {
			return t.failed
		}
	}
	return nil
}

// shunned reports whether Pebble may leave tables alone that it should compact.
func (d *damagedTables) shunned() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.shun)
}

// waitForRepair delays a compaction that reads damage in a table on which one failed:
// Pebble tries such a compaction again at once, and each try is expensive. Other readers
// hold locks that the repair needs.
func (s *Store) waitForRepair(path string) {
	if !inBackground() {
		return
	}
	s.damaged.mu.Lock()
	t := s.damaged.tables[path]
	s.damaged.mu.Unlock()
	if t == nil {
		return
	}
	timer := time.NewTimer(compactionPause)
	defer timer.Stop()
	select {
	case <-t.repaired:
	case <-timer.C:
	case <-s.failed:
	case <-s.life.ended:
	}
}

// inBackground reports whether the caller is one of Pebble's own goroutines. Pebble does
// not tell who reads; the stack does.
func inBackground() bool {
	var callers [64]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "pebble/v2.(*DB).runCompaction") || strings.HasSuffix(frame.Function, "pebble/v2.(*DB).collectTableStats") {
			return true
		}
		if !more {
			return false
		}
	}
}

// repairTables repairs what compactions have failed on. Called by Run.
func (s *Store) repairTables() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	for {
		path, table := s.damaged.next()
		if table == nil {
			return nil
		}
		lost, err := s.repairTable(path, table.bounds)
		if failure := s.Err(); failure != nil {
			return failure
		}
		s.damaged.done(path, err)
		if err != nil {
			s.opts.Logger.Error("a damaged table cannot be repaired and is not compacted; export the store and begin a new one",
				"file", filepath.Base(path), "error", firstLine(err))
			continue
		}
		for _, r := range lost {
			s.metrics.repaired.Inc()
			s.opts.Logger.Error("a damaged block was taken out of a table; what only it held is lost",
				"file", filepath.Base(path), "lost", r.String())
		}
	}
}

// repairTable takes the damaged blocks out of a table and returns what was lost.
func (s *Store) repairTable(path string, bounds keyRange) ([]keyRange, error) {
	content, err := readFile(s.opts.FS, path)
	if err != nil {
		return nil, err
	}
	patches, err := findPatches(content, bounds)
	if err != nil || len(patches) == 0 {
		return nil, err
	}
	lost := make([]keyRange, len(patches))
	for i := range patches {
		lost[i] = patches[i].lost
	}
	uncounted := append(s.damaged.uncounted, lost...)
	steps := []func() error{
		func() error { return s.restate(lost, uncounted) },
		func() error { return s.overwrite(path, patches) },
	}
	if int(s.db.Metrics().Levels[0].Sublevels) >= level0StopWrites(s.opts.MaxBytes) {
		slices.Reverse(steps) // nothing can be written before
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return lost, s.recountLost(uncounted)
}

// overwrite writes patches into a table and syncs it.
func (s *Store) overwrite(path string, patches []patch) error {
	f, err := s.files.FS().OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	for _, p := range patches {
		if _, err := f.WriteAt(p.data, p.offset); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// restate writes again what memory knows of lost keys, with a note of the loss.
func (s *Store) restate(lost, uncounted []keyRange) error {
	// Nothing that changes what is restated goes on meanwhile. Counters and names need
	// all locks; others are left alone, as a Fill holds them for long.
	if slices.ContainsFunc(lost, func(r keyRange) bool { return r.overlaps([]byte{prefixCounter}, []byte{prefixName + 1}) }) {
		s.sinks.ensuring.Lock()
		defer s.sinks.ensuring.Unlock()
		select {
		case s.appending <- struct{}{}:
		case <-s.failed:
			return s.failure
		}
		defer func() { <-s.appending }()
	}
	queues := s.sinks.all()
	for _, q := range queues {
		q.settling.Lock()
	}
	defer func() {
		for _, q := range queues {
			q.settling.Unlock()
		}
	}()
	b := s.db.NewBatch()
	if err := b.Set(repairKey(), appendRanges(nil, uncounted), nil); err != nil {
		return err
	}
	for _, r := range lost {
		if err := s.restateRange(b, r, queues); err != nil {
			return err
		}
	}
	if err := s.apply(b, pebble.Sync); err != nil {
		return err
	}
	return b.Close()
}

func (s *Store) restateRange(b *pebble.Batch, r keyRange, queues []*Queue) error {
	var errs []error
	set := func(key, value []byte) {
		if r.overlaps(key, append(slices.Clip(key), 0)) {
			errs = append(errs, b.Set(key, value, nil))
		}
	}
	setCounter := func(kind byte, id uint32, c counter) { set(counterKey(kind, id), c.append(nil)) }
	for _, q := range queues {
		q.restate(b, r, set, setCounter)
	}
	if !r.overlaps([]byte{prefixCounter}, []byte{prefixName + 1}) {
		return errors.Join(errs...)
	}
	set(formatKey(), id32(layoutVersion))
	setCounter(kindPosition, 0, counter{high: s.next - 1})
	s.log.restate(set, setCounter)
	s.sinks.mu.RLock()
	lastID := s.sinks.lastID
	s.sinks.mu.RUnlock()
	setCounter(kindSinkNumber, 0, counter{high: uint64(lastID)})
	for _, q := range queues {
		set(nameKey(kindSink, q.name), q.member.append(id32(q.id)))
	}
	s.partitions.mu.Lock()
	defer s.partitions.mu.Unlock()
	for name, p := range s.partitions.byName {
		if p.saved.Load() {
			set(nameKey(kindPartition, name), id32(p.id))
		}
	}
	return errors.Join(errs...)
}

func (l *logState) restate(set func(key, value []byte), setCounter func(kind byte, id uint32, c counter)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := l.live
	live.high = max(live.high, l.low)
	setCounter(kindLog, 0, live)
	for _, m := range l.marks {
		set(markKey(m.sequence), m.append(nil))
	}
}

// restate writes the queue's counters, pins and entries in flight that lie in a
// range, and deletes the positions between these, which are acknowledged: their
// tombstones may be lost.
func (q *Queue) restate(b *pebble.Batch, r keyRange, set func(key, value []byte), setCounter func(kind byte, id uint32, c counter)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	total := q.total
	total.high = max(total.high, q.window.head())
	setCounter(kindQueue, q.id, total)
	setCounter(kindDetached, q.id, q.detached)
	setCounter(kindDeadLetter, q.id, q.dead)
	for _, p := range q.pins {
		set(appendSinkKey(nil, prefixPin, q.id, p.first), p.append(nil))
	}
	first, last, ok := r.positions(prefixQueue, q.id)
	last = min(last, q.window.readTo)
	if !ok || first > last {
		return
	}
	acked := func(from, to uint64) { // [from, to)
		if from < to {
			_ = b.DeleteRange(appendSinkKey(nil, prefixQueue, q.id, from), appendSinkKey(nil, prefixQueue, q.id, to), nil) // fails only for an indexed batch
		}
	}
	for _, sl := range q.window.slots {
		if sl.acked || sl.position < first || sl.position > last {
			continue
		}
		acked(first, sl.position)
		first = sl.position + 1
		if sl.kind != entryInline {
			e := entry{kind: sl.kind, flags: sl.flags, size: sl.size, time: sl.time, sequence: sl.sequence}
			value := make([]byte, e.encodedLen())
			e.encode(value)
			set(appendSinkKey(nil, prefixQueue, q.id, sl.position), value)
		}
	}
	acked(first, last+1)
}

// recountLost corrects the counters of what was lost and removes the note. Where
// other damage is in the way, it has that repaired, and leaves the counting to then.
func (s *Store) recountLost(lost []keyRange) error {
	s.damaged.uncounted = lost
	for _, q := range s.sinks.all() {
		for _, r := range lost {
			err := errors.Join(q.recountEntries(r), q.recountLetters(r))
			if errors.Is(err, ErrUnreadable) {
				s.damaged.report(err)
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
	s.damaged.uncounted = nil
	b := s.db.NewBatch()
	if err := b.Delete(repairKey(), nil); err != nil {
		return err
	}
	if err := s.apply(b, pebble.Sync); err != nil {
		return err
	}
	return b.Close()
}

// resumeRepair does the last step of a repair that a crash interrupted.
func (s *Store) resumeRepair() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	value, ok, err := s.get(repairKey())
	if err == nil && !ok {
		return nil
	}
	var lost []keyRange
	if err == nil {
		lost, err = parseRanges(value)
	}
	if errors.Is(err, ErrUnreadable) || errors.Is(err, errMalformed) {
		// Whatever it was, everything is counted, after the repair of this damage.
		s.damaged.uncounted = []keyRange{{lower: []byte{0}, upper: []byte{0xff}}}
		s.damaged.report(err)
		return nil
	}
	if err != nil {
		return err
	}
	return s.recountLost(lost)
}

// recountEntries counts a queue whose entries in a range may be lost. One dead letter
// stands for those that are missing.
func (q *Queue) recountEntries(r keyRange) error {
	first, last, ok := r.positions(prefixQueue, q.id)
	if !ok {
		return nil
	}
	q.settling.Lock()
	defer q.settling.Unlock()
	b := q.s.db.NewBatch()
	q.mu.Lock()
	before, head, tail := q.total.count, q.window.head(), q.tail
	q.mu.Unlock()
	first, last = max(first, head), min(last, tail)
	if first > last {
		return b.Close()
	}
	missing, err := q.recount(b, func(l lostSpan) error { return l.err })
	if err != nil {
		return errors.Join(err, b.Close())
	}
	var letter counter
	now := q.s.opts.Now()
	if missing > 0 {
		letter.count = 1
		d := deadLetterValue{
			sequence: first, first: now, last: now,
			reason: fmt.Sprintf("%s: %d of the queue entries %d to %d are lost", ReasonUnreadable, missing, first, last),
		}
		if err := errors.Join(
			b.Set(appendSinkKey(nil, prefixDeadLetter, q.id, first), d.encode(), nil),
			b.Merge(counterKey(kindDeadLetter, q.id), letter.append(nil), nil),
		); err != nil {
			return err
		}
		q.s.metrics.unreadable.Add(float64(missing))
		q.s.opts.Logger.Error("entries of a queue are lost; one dead letter stands for them",
			"sink", q.name, "missing", missing, "of", before, "from", first, "to", last)
	}
	if err := q.s.applyLazily(b); err != nil {
		return err
	}
	if letter.count > 0 {
		q.countDead(letter, now)
	}
	return b.Close()
}

// recountLetters counts dead letters, of which some in a range may be lost.
func (q *Queue) recountLetters(r keyRange) error {
	if _, _, ok := r.positions(prefixDeadLetter, q.id); !ok {
		return nil
	}
	select { // letters are settled by who has the right to append
	case q.s.appending <- struct{}{}:
	case <-q.s.failed:
		return q.s.failure
	}
	defer func() { <-q.s.appending }()
	q.settling.Lock()
	defer q.settling.Unlock()
	var found counter
	lower, upper := sinkRange(prefixDeadLetter, q.id)
	err := scanReadable(q.s.db, lower, upper, func(_, value []byte) error {
		if d, err := parseDeadLetter(value); err == nil {
			found = found.plus(counter{count: 1, bytes: int64(len(d.payload))})
		}
		return nil
	}, func(l lostSpan) error { return l.err })
	if err != nil {
		return err
	}
	q.mu.Lock()
	change := q.dead.negative().plus(found)
	q.mu.Unlock()
	if change.count == 0 {
		return nil
	}
	q.s.opts.Logger.Error("dead letters are lost", "sink", q.name, "missing", -change.count)
	b := q.s.db.NewBatch()
	if err := b.Merge(counterKey(kindDeadLetter, q.id), change.append(nil), nil); err != nil {
		return err
	}
	if err := q.s.applyLazily(b); err != nil {
		return err
	}
	q.countDead(change, time.Time{})
	return b.Close()
}

// relieveLevel0 compacts level 0 while Pebble does not do it by itself, which it
// leaves for minutes after damage in the level below, repaired or not. All tables of
// level 0 have counters, so a compaction of these takes them all.
func (s *Store) relieveLevel0(ctx context.Context) error {
	if !s.damaged.shunned() {
		return nil
	}
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	stop := level0StopWrites(s.opts.MaxBytes)
	sublevels := int(s.db.Metrics().Levels[0].Sublevels)
	if sublevels < stop/2 {
		return nil
	}
	if cause := s.damaged.cause(); cause != nil && sublevels >= stop*3/4 {
		s.fail(fmt.Errorf("writes stand still: %w; `watcherd store export` copies out what is there, for a new store to begin", cause))
		return nil
	}
	lower, upper := prefixRange(prefixCounter)
	return s.db.Compact(ctx, lower, upper, false)
}
