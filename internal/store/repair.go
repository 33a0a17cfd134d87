package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Repair of tables. A damaged block fails every compaction of its table: level 0 grows,
// and writes stop. So Run removes the damaged blocks (package salvage) from a table on
// which a compaction failed:
//
//  1. One synced write restores the lost keys that memory has (counters, names, marks,
//     pins, entries in flight, acknowledged positions), and notes the lost ranges, those of the ledger until the caller has
//     recorded the states again (loststate.go). What is lost of the log is noted before (lostlog.go).
//  2. The blocks are overwritten, in a copy of the table that takes its place: backups have links to the table, and not
//     what 1 and 3 write. They meet the damage themselves. A backup that is being made ends.
//  3. One synced write recounts the queues and dead letters in the lost ranges, adds a
//     dead letter for missing entries, and removes the note.
//
// After a crash between 1 and 3, the next Run finds the note and does the last step; a
// block that is still damaged is found again. Where a full level 0 blocks writes, 2 is the first step, behind a note in a
// file, which 1 makes obsolete; the keys of 1 are lost with the process that crashes between them.
//
// A journal has the note, but not the loss: the directory in which the next Run finds it may be another, and complete. So
// a directory with a journal notes its own loss in a file, before 2, for good: once another directory has led, it is no
// copy of that, with all that counts (see Replica.Loss).

// compactionPause is how long a compaction waits for the repair of a table on which an
// earlier one failed.
const compactionPause = time.Second

// compactionShun is how long Pebble does not compact tables by itself after a
// compaction of them failed on damage, repaired or not.
const compactionShun = 5 * time.Minute

// repairRetry is how long a repair waits after an error of the operating system, such as a full disk.
const repairRetry = 10 * time.Second

// maxDamagedTables bounds the tables that wait for a repair; others are reported again.
const maxDamagedTables = 64

// damagedTables are the tables on which compactions failed.
type damagedTables struct {
	news signal

	mu     sync.Mutex
	tables map[string]*damagedTable // guarded by mu; by path
	shun   time.Time                // guarded by mu; until then, Pebble may postpone compactions

	uncounted []layout.Range // used by Run only; lost ranges that are not counted yet, for other damage
}

type damagedTable struct {
	failed   error         // the error of the last repair
	retry    time.Time     // of the next one after an error; zero: none
	repaired chan struct{} // closed after the repair
	tried    chan struct{} // closed after the first attempt
}

// add returns the table, nil if too many wait.
func (d *damagedTables) add(info *pebble.DataCorruptionInfo) *damagedTable {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !now.Before(d.shun) {
		d.news.notify()
	}
	d.shun = now.Add(compactionShun)
	if t := d.tables[info.Path]; t != nil || len(d.tables) >= maxDamagedTables {
		return t
	}
	if d.tables == nil {
		d.tables = make(map[string]*damagedTable)
	}
	t := &damagedTable{repaired: make(chan struct{}), tried: make(chan struct{})}
	d.tables[info.Path] = t
	d.news.notify()
	return t
}

// report adds the table that a read error is about.
func (d *damagedTables) report(err error) {
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		d.add(info)
	}
}

func (d *damagedTables) next() (string, *damagedTable) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for path, t := range d.tables {
		if t.failed == nil || !t.retry.IsZero() && !now.Before(t.retry) {
			return path, t
		}
	}
	return "", nil
}

func (d *damagedTables) done(path string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tables[path]
	if t.failed == nil {
		defer close(t.tried)
	}
	if err != nil {
		t.failed = fmt.Errorf("table %s: %w", filepath.Base(path), err) // its reads and compactions stay slow
		if t.retry = (time.Time{}); passes(err) {
			t.retry = time.Now().Add(repairRetry)
		}
		return
	}
	close(t.repaired)
	delete(d.tables, path)
}

// passes reports whether the error of a repair may pass.
func passes(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// first returns the name of a table that is damaged, "" if none is known.
func (d *damagedTables) first() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.tables {
		return filepath.Base(path)
	}
	return ""
}

// cause returns the error of a failed repair, nil if there is none.
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

// shunned reports whether Pebble may postpone due compactions.
func (d *damagedTables) shunned() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.shun)
}

// waitForRepair delays a compaction that reads known damage: Pebble retries it at once,
// and each attempt is expensive. Other readers hold locks that the repair needs.
func (s *Store) waitForRepair(path string) {
	if !inBackground() {
		return
	}
	s.damaged.mu.Lock()
	t := s.damaged.tables[path]
	s.damaged.mu.Unlock()
	if t != nil {
		s.awaitFor(t.repaired, compactionPause)
	}
}

func (s *Store) awaitFor(done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-s.failed:
	case <-s.life.ended:
	}
}

// repairWait bounds how long a reader waits for the repair of a table.
const repairWait = 10 * time.Second

// awaitRepair has Run repair the table that a read error is about, and reports whether it has. The error is that of a store that failed or
// was closed meanwhile. The caller holds no lock of the store.
func (s *Store) awaitRepair(damage error) (repaired bool, err error) {
	info := pebble.ExtractDataCorruptionInfo(damage)
	if info == nil || !s.running.Load() {
		return false, nil
	}
	t := s.damaged.add(info)
	if t == nil {
		return false, nil
	}
	s.awaitFor(t.tried, repairWait)
	select {
	case <-t.repaired:
		return true, nil
	default:
	}
	if err := s.use(); err != nil {
		return false, err
	}
	s.life.leave()
	return false, nil
}

// inBackground reports whether the caller is one of Pebble's own goroutines. Only the
// stack shows it.
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

func (s *Store) repairTables() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	if err := s.saveLostStates(); err != nil {
		return err
	}
	for {
		path, table := s.damaged.next()
		if table == nil {
			return nil
		}
		err := s.repairTable(path)
		if failure := s.Err(); failure != nil {
			return failure
		}
		if errors.Is(err, ErrClosed) {
			return err
		}
		s.damaged.done(path, err)
		s.log.damage.forget(math.MaxUint64) // some may be readable now
		if err != nil && passes(err) {
			if suppressed, ok := s.limit.Allow("repair"); ok {
				s.opts.Logger.Warn("a damaged table cannot be repaired yet; the store retries", "file", filepath.Base(path), "error", salvage.FirstLine(err), "suppressed", suppressed)
			}
			continue
		}
		if err != nil {
			s.opts.Logger.Error("a damaged table cannot be repaired and is not compacted; export the store and start a new one",
				"file", filepath.Base(path), "error", salvage.FirstLine(err))
		}
	}
}

// patchesOf returns what removes the damage from a table; none if there is no damage, or no such table. Damaged blocks are not in the cache
// from then on.
func (s *Store) patchesOf(path string) ([]salvage.Patch, error) {
	levels, err := s.db.SSTables()
	if err != nil {
		return nil, err
	}
	tables := slices.Concat(levels...)
	i := slices.IndexFunc(tables, func(t pebble.SSTableInfo) bool {
		return filepath.Base(path) == t.BackingSSTNum.String()+".sst"
	})
	if i < 0 {
		return nil, nil // no compaction reads it any more
	}
	content, err := engine.ReadTable(s.opts.FS, path)
	if err != nil {
		return nil, err
	}
	patches, err := salvage.FindPatches(content, tables[i].Smallest, tables[i].Largest)
	if len(patches) > 0 {
		// What was read before the damage must not count as kept, nor an index lead to blocks that are no longer there.
		s.cache.Reserve(engine.BlockCacheSize)() // evicts all
	}
	return patches, err
}

// withRepairs calls f, and again behind each damaged index or filter that it meets and that is made again without a loss: what a store
// needs to be opened may be behind it.
func (s *Store) withRepairs(f func() error) error {
	for tables := 0; ; tables++ {
		err := f()
		info := pebble.ExtractDataCorruptionInfo(err)
		if info == nil || tables == maxDamagedTables {
			return err
		}
		patches, patchErr := s.patchesOf(info.Path)
		if patchErr != nil || len(patches) == 0 || len(lostBy(patches)) > 0 {
			return err
		}
		if failed := s.files.Repair(func() error { return s.overwrite(info.Path, patches) }); failed != nil {
			return errors.Join(err, failed)
		}
	}
}

// getAtStart is get of what a start does without if it cannot be read.
func (s *Store) getAtStart(key []byte) (value []byte, ok bool, err error) {
	err = s.withRepairs(func() (err error) {
		value, ok, err = s.get(key)
		return err
	})
	return value, ok, err
}

// repairTable removes the damaged blocks from a table. After an error it may be called again.
func (s *Store) repairTable(path string) error {
	patches, err := s.patchesOf(path)
	if err != nil {
		return err
	}
	if len(patches) == 0 {
		return s.recountLost()
	}
	for _, lost := range lostBy(patches) {
		if !slices.ContainsFunc(s.damaged.uncounted, lost.Equal) { // else by an attempt that failed, and may have removed it
			s.damaged.uncounted = append(s.damaged.uncounted, lost)
		}
	}
	// Writes are blocked until the overwrite.
	blocked := int(s.db.Metrics().Levels[0].Sublevels) >= engine.Level0StopWrites(s.opts.MaxBytes)
	if err := s.removeBlocks(path, patches, blocked); err != nil {
		return err
	}
	return s.recountLost()
}

// removeBlocks does the steps 1 and 2, the second first if writes are blocked.
func (s *Store) removeBlocks(path string, patches []salvage.Patch, blocked bool) error {
	lost := lostBy(patches)
	if len(lost) == 0 {
		return s.files.Repair(func() error { return s.overwrite(path, patches) })
	}
	s.loseStates(lost...)
	return s.files.Repair(func() error {
		if !blocked {
			if err := s.restate(lost); err != nil {
				return err
			}
			return s.overwrite(path, patches)
		}
		if err := s.files.NoteRepair(layout.AppendRanges(nil, s.damaged.uncounted)); err != nil {
			return err
		}
		if err := s.overwrite(path, patches); err != nil {
			return err
		}
		if err := s.restate(lost); err != nil {
			return err
		}
		return s.files.EndRepair()
	})
}

func lostBy(patches []salvage.Patch) (lost []layout.Range) {
	for _, p := range patches {
		if p.Loses() {
			lost = append(lost, p.Lost)
		}
	}
	return lost
}

// overwrite replaces the table by one with the patches.
func (s *Store) overwrite(path string, patches []salvage.Patch) error {
	if s.sequencer != nil && len(lostBy(patches)) > 0 {
		if err := s.files.NoteLoss(); err != nil {
			return err
		}
	}
	content, err := engine.ReadTable(s.opts.FS, path)
	if err != nil {
		return err
	}
	for _, p := range patches {
		copy(content[p.Offset:], p.Data)
	}
	if err := s.files.ReplaceTable(path, content); err != nil {
		return err
	}
	for _, p := range patches {
		if !p.Loses() {
			s.opts.Logger.Warn("a damaged index or filter of a table was made again; nothing is lost", "file", filepath.Base(path))
			continue
		}
		s.metrics.repaired.Inc()
		s.opts.Logger.Error("removed a damaged block from a table; keys that only it held are lost",
			"file", filepath.Base(path), "lost", p.Lost.String())
	}
	return nil
}

// restate writes the lost keys that memory has, with a note of all that is not counted.
func (s *Store) restate(lost []layout.Range) error {
	if err := s.loseLog(lost...); err != nil {
		return err
	}
	// The locks exclude changes of the restated keys. Only counters and names need all of them.
	if slices.ContainsFunc(lost, hasCounters) {
		s.sinks.naming.Lock()
		defer s.sinks.naming.Unlock()
		select {
		case s.appending <- struct{}{}:
		case <-s.failed:
			return s.failure
		}
		defer func() { <-s.appending }()
	}
	queues := s.sinks.all()
	var unlock []func()
	for _, q := range queues {
		unlock = append(unlock, q.lockSettling())
	}
	defer func() {
		for _, f := range unlock {
			f()
		}
	}()
	b := s.db.NewBatch()
	errs := []error{b.Set(layout.RepairKey(), layout.AppendRanges(nil, s.damaged.uncounted), nil), s.lost.put(b)}
	for _, r := range lost {
		errs = append(errs, s.restateRange(b, r, queues))
	}
	return s.apply(b, pebble.Sync, errs...)
}

// hasCounters reports whether counters or names are in a range.
func hasCounters(r layout.Range) bool {
	for _, prefix := range []byte{layout.PrefixCounter, layout.PrefixName} {
		if lower, upper := layout.PrefixRange(prefix); r.Overlaps(lower, upper) {
			return true
		}
	}
	return false
}

func (s *Store) restateRange(b *pebble.Batch, r layout.Range, queues []*Queue) error {
	var errs []error
	set := func(key, value []byte) {
		if r.Overlaps(key, append(slices.Clip(key), 0)) {
			errs = append(errs, b.Set(key, value, nil))
		}
	}
	setCounter := func(kind byte, id uint32, c layout.Counter) { set(layout.CounterKey(kind, id), c.Append(nil)) }
	for _, q := range queues {
		lost, err := q.lostInFlight(r)
		if err != nil {
			return err
		}
		q.restate(b, r, lost, set, setCounter)
	}
	set(layout.FormatKey(), layout.ID32(layout.Version))
	s.log.restate(set, setCounter)
	if !hasCounters(r) {
		return errors.Join(errs...)
	}
	setCounter(layout.KindPosition, 0, layout.Counter{High: s.next - 1})
	s.sinks.mu.RLock()
	lastID := s.sinks.lastID
	s.sinks.mu.RUnlock()
	setCounter(layout.KindSinkNumber, 0, layout.Counter{High: uint64(lastID)})
	for _, q := range queues {
		set(layout.NameKey(layout.KindSink, q.name), q.member.append(layout.ID32(q.id)))
	}
	s.partitions.mu.Lock()
	defer s.partitions.mu.Unlock()
	for name, p := range s.partitions.byName {
		if p.saved.Load() {
			set(layout.NameKey(layout.KindPartition, name), layout.ID32(p.id))
		}
	}
	return errors.Join(errs...)
}

func (l *logState) restate(set func(key, value []byte), setCounter func(kind byte, id uint32, c layout.Counter)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := l.live
	live.High = max(live.High, l.low)
	setCounter(layout.KindLog, 0, live)
	for _, m := range l.marks {
		set(layout.MarkKey(m.sequence), m.append(nil))
	}
}

// lostInFlight returns the positions of the entries in flight in a range whose payloads are lost with them. The caller
// holds settling.
func (q *Queue) lostInFlight(r layout.Range) (map[uint64]bool, error) {
	first, last, ok := r.Positions(layout.PrefixQueue, q.id)
	if !ok {
		return nil, nil
	}
	lost := map[uint64]bool{}
	q.mu.Lock()
	for _, sl := range q.window.slots {
		if !sl.acked && sl.kind == layout.EntryInline && first <= sl.position && sl.position <= last {
			lost[sl.position] = true
		}
	}
	last = min(last, q.window.readTo)
	q.mu.Unlock()
	if len(lost) == 0 {
		return nil, nil
	}
	return lost, salvage.Scan(q.s.db,
		layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, first), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, last+1),
		func(key, value []byte) error {
			position, _ := layout.PositionOfKey(key)
			if _, err := layout.ParseEntry(position, value); err == nil {
				delete(lost, position)
			}
			return nil
		},
		func(salvage.LostSpan) error { return nil })
}

// restate writes the queue's counters, pins and entries in flight in a range. Those whose payloads are lost refer to the log
// from then on: if it has the record, that is delivered, and else they become dead letters. restate deletes
// the acknowledged positions between the entries again: their tombstones may be lost.
func (q *Queue) restate(b *pebble.Batch, r layout.Range, lost map[uint64]bool, set func(key, value []byte), setCounter func(kind byte, id uint32, c layout.Counter)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var attached layout.Counter
	for i := range q.window.slots {
		if sl := &q.window.slots[i]; lost[sl.position] {
			sl.kind = layout.EntryReplay
			attached = attached.Plus(layout.Counter{Count: -1, Bytes: -int64(sl.size)})
		}
	}
	if attached.Count != 0 {
		q.mergeLocked(b, layout.Counter{}, attached)
	}
	total := q.total
	total.High = max(total.High, q.window.head())
	setCounter(layout.KindQueue, q.id, total)
	setCounter(layout.KindDetached, q.id, q.detached)
	setCounter(layout.KindDeadLetter, q.id, q.dead)
	for _, p := range q.pins {
		set(layout.AppendSinkKey(nil, layout.PrefixPin, q.id, p.first), p.append(nil))
	}
	first, last, ok := r.Positions(layout.PrefixQueue, q.id)
	last = min(last, q.window.readTo)
	if !ok || first > last {
		return
	}
	acked := func(from, to uint64) { // [from, to)
		if from < to {
			_ = b.DeleteRange(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, to), nil) // fails only for an indexed batch
		}
	}
	for _, sl := range q.window.slots {
		if sl.acked || sl.position < first || sl.position > last {
			continue
		}
		acked(first, sl.position)
		first = sl.position + 1
		if sl.kind != layout.EntryInline {
			e := layout.Entry{Kind: sl.kind, Flags: sl.flags, Size: sl.size, Time: sl.time, Sequence: sl.sequence}
			value := make([]byte, e.EncodedLen())
			e.Encode(value)
			set(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, sl.position), value)
		}
	}
	acked(first, last+1)
}

// recountLost corrects the counters after a loss, if there is one that is not counted, and removes the note. If it meets other
// damage, it reports that, and the next repair counts.
func (s *Store) recountLost() error {
	lost := s.damaged.uncounted
	if len(lost) == 0 {
		return nil
	}
	for _, q := range s.sinks.all() {
		err := errors.Join(q.recountEntries(lost), q.recountLetters(lost))
		if errors.Is(err, ErrUnreadable) {
			s.damaged.report(err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	s.damaged.uncounted = nil
	b := s.db.NewBatch()
	return s.apply(b, pebble.Sync, b.Delete(layout.RepairKey(), nil))
}

// everything is the range of all keys.
var everything = layout.Range{Lower: []byte{0}, Upper: []byte{0xff}}

// resumeRepair does the last step of a repair that a crash interrupted.
func (s *Store) resumeRepair() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	if err := s.adoptRepair(); err != nil {
		return err
	}
	value, ok, err := s.get(layout.RepairKey())
	if err == nil && !ok {
		return nil
	}
	var lost []layout.Range
	if err == nil {
		lost, err = layout.ParseRanges(value)
	}
	if errors.Is(err, ErrUnreadable) || errors.Is(err, layout.ErrMalformed) {
		// The ranges are lost: everything is counted, after the repair of this damage.
		s.damaged.uncounted = []layout.Range{everything}
		s.damaged.report(err)
		return nil
	}
	if err != nil {
		return err
	}
	s.damaged.uncounted = lost
	return s.recountLost()
}

// notedRepair returns what a repair may have removed that a file notes; all if that cannot be read.
func (s *Store) notedRepair() (lost []layout.Range, err error) {
	removed, noted, err := s.files.HasRepair()
	if err != nil || !noted {
		return nil, err
	}
	if lost, err = layout.ParseRanges(removed); err != nil || len(lost) == 0 {
		lost = []layout.Range{everything}
	}
	return lost, nil
}

// loadRepair has what such a repair has removed be unreadable from the beginning.
func (s *Store) loadRepair() error {
	lost, err := s.notedRepair()
	s.loseStates(lost...)
	s.lostLog.add(sequences{s.log.low, s.log.tail}, lost...)
	return err
}

// adoptRepair makes the note of a file one of the store.
func (s *Store) adoptRepair() error {
	lost, err := s.notedRepair()
	if err != nil || len(lost) == 0 {
		return err
	}
	value, _, err := s.get(layout.RepairKey())
	if ignore(err, ErrUnreadable) != nil {
		return err
	}
	before, malformed := layout.ParseRanges(value)
	if err != nil || malformed != nil {
		before = []layout.Range{everything}
	}
	if err := s.saveLostLog(); err != nil {
		return err
	}
	b := s.db.NewBatch()
	if err := s.apply(b, pebble.Sync, b.Set(layout.RepairKey(), layout.AppendRanges(nil, append(before, lost...)), nil), s.lost.put(b)); err != nil {
		return err
	}
	return s.files.EndRepair()
}

// lostOf returns the positions from the first to the last that may be lost of a queue or its dead letters.
func (q *Queue) lostOf(lost []layout.Range, prefix byte) (first, last uint64, ok bool) {
	first = math.MaxUint64
	for _, r := range lost {
		if from, to, some := r.Positions(prefix, q.id); some {
			first, last, ok = min(first, from), max(last, to), true
		}
	}
	return first, last, ok
}

// recountEntries counts the queue after a loss of entries. One dead letter stands for the missing ones, of
// all ranges: a count does not show from which they are missing.
func (q *Queue) recountEntries(lost []layout.Range) error {
	first, last, ok := q.lostOf(lost, layout.PrefixQueue)
	if !ok {
		return nil
	}
	unlock := q.lockSettling()
	defer unlock()
	b := q.s.db.NewBatch()
	q.mu.Lock()
	before, head, tail := q.total.Count, q.window.head(), q.tail
	q.mu.Unlock()
	at := max(first, 1)
	for last = min(last, tail); at <= last; at++ {
		if occupied, err := q.occupied(at); err != nil {
			return errors.Join(err, b.Close())
		} else if !occupied {
			break
		}
	}
	if at > last { // nothing is lost
		return b.Close()
	}
	missing, err := q.recount(b, func(l salvage.LostSpan) error { return l.Err })
	if err != nil {
		return errors.Join(err, b.Close())
	}
	if head <= last { // else the reader has passed the loss since it can be read
		first = max(first, head)
	}
	var letter layout.Counter
	var errs []error
	now := q.s.opts.Now()
	if missing > 0 {
		errs = append(errs, q.deleteMissing(b, layout.PrefixQueue, first, last))
		letter.Count = 1
		d := layout.DeadLetter{
			First: now, Last: now,
			Reason: fmt.Sprintf("%s: %d of the queue entries %d to %d are lost", ReasonUnreadable, missing, first, last),
		}
		errs = append(errs, b.Set(layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, at), d.Encode(), nil),
			b.Merge(layout.CounterKey(layout.KindDeadLetter, q.id), letter.Append(nil), nil))
		q.s.metrics.unreadable.Add(float64(missing))
		q.s.opts.Logger.Error("entries of a queue are lost; one dead letter stands for them",
			"sink", q.name, "missing", missing, "of", before, "from", first, "to", last)
	}
	if err := q.s.applyLazily(b, errs...); err != nil {
		return err
	}
	if letter.Count > 0 {
		q.countDead(letter, now)
	}
	return nil
}

// deleteMissing deletes, if there is a journal, the keys in [first, last] that are not there: they
// are not counted any more, and the journal's other directories may have them.
func (q *Queue) deleteMissing(b *pebble.Batch, prefix byte, first, last uint64) error {
	if q.s.sequencer == nil {
		return nil
	}
	next, end := layout.AppendSinkKey(nil, prefix, q.id, first), append(layout.AppendSinkKey(nil, prefix, q.id, last), 0)
	err := q.s.scan(next, end, func(key, _ []byte) error {
		before := next
		position, ok := layout.PositionOfKey(key)
		if next = layout.AppendSinkKey(nil, prefix, q.id, position+1); !ok || bytes.Equal(before, key) {
			return nil
		}
		return b.DeleteRange(before, key, nil)
	})
	if err == nil && bytes.Compare(next, end) < 0 {
		err = b.DeleteRange(next, end, nil)
	}
	return err
}

// occupied reports whether there is an entry or a dead letter at a position.
func (q *Queue) occupied(position uint64) (bool, error) {
	for _, prefix := range []byte{layout.PrefixQueue, layout.PrefixDeadLetter} {
		if _, ok, err := q.s.get(layout.AppendSinkKey(nil, prefix, q.id, position)); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// recountLetters counts the dead letters after a loss.
func (q *Queue) recountLetters(lost []layout.Range) error {
	first, last, ok := q.lostOf(lost, layout.PrefixDeadLetter)
	if !ok {
		return nil
	}
	select { // the right to append excludes settle
	case q.s.appending <- struct{}{}:
	case <-q.s.failed:
		return q.s.failure
	}
	defer func() { <-q.s.appending }()
	unlock := q.lockSettling()
	defer unlock()
	var found layout.Counter
	lower, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	err := salvage.Scan(q.s.db, lower, upper, func(_, value []byte) error {
		if d, err := layout.ParseDeadLetter(value); err == nil {
			found = found.Plus(layout.Counter{Count: 1, Bytes: int64(len(d.Payload))})
		}
		return nil
	}, func(l salvage.LostSpan) error { return l.Err })
	if err != nil {
		return err
	}
	q.mu.Lock()
	change := q.dead.Negative().Plus(found)
	q.mu.Unlock()
	if change.Count == 0 {
		return nil
	}
	q.s.opts.Logger.Error("dead letters are lost", "sink", q.name, "missing", -change.Count)
	b := q.s.db.NewBatch()
	if err := q.s.applyLazily(b,
		q.deleteMissing(b, layout.PrefixDeadLetter, first, last),
		b.Merge(layout.CounterKey(layout.KindDeadLetter, q.id), change.Append(nil), nil),
	); err != nil {
		return err
	}
	q.countDead(change, time.Time{})
	return nil
}

// relieveLevel0 compacts level 0, which Pebble postpones for minutes after damage in the
// level below, repaired or not. All tables of level 0 have counters and keys above them,
// so a compaction of the range between takes them all. No key lies there: Pebble flushes a
// memtable with keys of the range first, and for that waits for a write that waits for
// this compaction.
func (s *Store) relieveLevel0(ctx context.Context) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	stop := engine.Level0StopIngest(s.opts.MaxBytes)
	sublevels := int(s.db.Metrics().Levels[0].Sublevels)
	if sublevels < stop/2 {
		return nil
	}
	if cause := s.damaged.cause(); cause != nil && sublevels >= stop*3/4 {
		s.fail(fmt.Errorf("writes are about to stop: %w; copy the data out with `watcherd store export` and start a new store", cause))
		return nil
	}
	return s.db.Compact(ctx, []byte{layout.PrefixCounter, 0xff}, []byte{layout.PrefixCounter, 0xff, 0xff}, false)
}
