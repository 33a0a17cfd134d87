package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Store is an open store. All methods may be called from any goroutine; the package
// comment restricts appending.
type Store struct {
	dir   string
	opts  Options
	files *engine.Dir
	db    *pebble.DB
	cache *pebble.Cache // of blocks, while db is open
	life  *lifetime

	failOnce sync.Once
	failure  error         // written once, before failed is closed
	failed   chan struct{} // closed when the store has failed

	// appending is held (a token taken) from the first Append of a batch to its
	// Commit or Discard. It guards next and the tail of marks.
	appending chan struct{}
	next      uint64 // the next position

	log        *logState
	sinks      *sinkTable
	partitions *partitionTable
	gate       *gate
	ages       *ageClock
	metrics    *metrics

	limit   engine.LogLimit
	damaged damagedTables
	lost    lostStates
	lostLog lostLog

	// rewrites counts rewrites of the log and of queues. A copy of a payload is made
	// again if it has changed.
	rewrites atomic.Uint64

	writes    chan write     // to a goroutine that has nothing to write
	writers   sync.WaitGroup // these goroutines
	sequencer *sequencer     // nil without a journal
	leave     sync.Once      // calls leaveJournal, without one

	running     atomic.Bool   // Run is
	lazy        atomic.Bool   // there are writes since the last sync began
	unsynced    chan struct{} // holds a token when lazy has become true
	shrunk      atomic.Bool   // entries may have left queues since these were compacted
	dropped     atomic.Bool   // the same of dead letters
	moved       atomic.Bool   // files may have changed since the last measurement
	lastCommit  atomic.Int64  // Unix nanoseconds; 0 = none yet
	commitBegan atomic.Int64  // Unix nanoseconds of the commit in progress; 0 = none
}

// Exists returns an error unless there is a store in dir, which Open would create.
func Exists(dir string) error { return engine.Exists(vfs.Default, dir) }

// Open opens or creates the store in dir, which is made with mode 0700. It fails with
// ErrClock, ErrLocked, ErrDamaged, ErrOlderFormat, ErrNewerFormat (wrapped) or the error
// of the filesystem, and never removes data. It reads a few keys per sink and one mark
// per MiB of log.
//
// Pebble's background goroutines run until Close.
func Open(dir string, o Options) (*Store, error) {
	s, err := newStore(dir, o)
	if err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.files.Close())
	}
	return s, nil
}

// newStore locks the directory.
func newStore(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	if _, err := o.first(); err != nil {
		return nil, fmt.Errorf("open the store %s: %w", dir, err)
	}
	s := &Store{
		dir:       dir,
		opts:      o,
		life:      &lifetime{ended: make(chan struct{}), idle: make(chan struct{})},
		writes:    make(chan write),
		unsynced:  make(chan struct{}, 1),
		failed:    make(chan struct{}),
		appending: make(chan struct{}, 1),
	}
	s.shrunk.Store(true) // perhaps in an earlier process
	s.dropped.Store(true)
	var err error
	s.gate = newGate(s.opts.limits())
	s.files, err = engine.OpenDir(dir, engine.DirOptions{
		FS: o.FS, MaxBytes: o.MaxBytes, PauseBytes: s.gate.pauseBytes, Left: s.gate.left, Logger: o.Logger, Fail: s.fail, Failure: s.Err,
	})
	if err != nil {
		return nil, err
	}
	if o.Journal != nil {
		s.sequencer = newSequencer(o.Journal)
	}
	return s, nil
}

// openFiles opens Pebble.
func (s *Store) openFiles() (err error) {
	if err := s.files.Take(); err != nil {
		return err
	}
	s.cache = pebble.NewCache(engine.BlockCacheSize)
	defer s.cache.Unref() // db has it, too
	err = s.files.Create(s.pebbleOptions(), func(db *pebble.DB) error {
		return db.Set(layout.FormatKey(), layout.ID32(layout.Version), pebble.Sync)
	})
	if err != nil {
		return fmt.Errorf("create a store in %s: %w", s.dir, err)
	}
	db, err := s.files.Open(s.pebbleOptions)
	if err != nil {
		return openError(s.dir, err)
	}
	s.db = db
	if err := s.withRepairs(s.checkFormat); err != nil {
		s.files.Release()
		return errors.Join(err, db.Close())
	}
	return nil
}

func (s *Store) open() (err error) {
	if err := s.openFiles(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.files.Release()
			err = errors.Join(err, s.db.Close())
		}
	}()
	return s.start()
}

// start loads what is kept in memory.
func (s *Store) start() (err error) {
	if s.next, err = s.opts.first(); err != nil {
		return fmt.Errorf("open the store %s: %w", s.dir, err)
	}
	if err := s.withRepairs(s.load); err != nil {
		return openError(s.dir, err)
	}
	if err := s.Err(); err != nil {
		return s.files.FullError(err)
	}
	s.files.Opened()
	if err := s.register(); err != nil {
		return err
	}
	return s.measure()
}

func (s *Store) load() (err error) {
	if s.sequencer != nil {
		if s.sequencer.position, err = s.position(); err != nil {
			return err
		}
	}
	position, err := s.counter(layout.KindPosition, 0)
	if err != nil {
		return err
	}
	s.next = max(position.High+1, s.next)
	if s.partitions, err = s.loadPartitions(); err != nil {
		return err
	}
	if err := s.loadLostStates(); err != nil {
		return err
	}
	if s.log, err = s.loadLog(position.High); err != nil {
		return err
	}
	if err := errors.Join(s.loadLostLog(), s.loadRepair()); err != nil {
		return err
	}
	last := s.opts.Now()
	if len(s.log.marks) > 0 {
		last = s.log.marks.trusted()
	}
	s.ages = newAgeClock(last)
	s.sinks, err = s.loadSinks()
	return err
}

func (s *Store) pebbleOptions() *pebble.Options {
	o := engine.Options(s.files.FS(), engine.Logger{Log: s.opts.Logger, Limit: &s.limit, Fatal: s.fail}, s.listener(), s.opts.MaxBytes)
	o.Cache = s.cache
	return o
}

func (s *Store) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: s.backgroundError,
		WALCreated:      func(pebble.WALCreateInfo) { s.moved.Store(true); s.gate.rotated() },
		WALDeleted:      func(pebble.WALDeleteInfo) { s.moved.Store(true) },
		FlushEnd:        func(pebble.FlushInfo) { s.moved.Store(true) },
		CompactionBegin: func(pebble.CompactionInfo) { s.moved.Store(true) },
		CompactionEnd:   func(pebble.CompactionInfo) { s.moved.Store(true); s.gate.compacted() },
		TableDeleted:    func(pebble.TableDeleteInfo) { s.moved.Store(true) },
		// Damage does not fail the store: readers report unreadable records, and Run
		// repairs a table on which a compaction failed.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			if suppressed, ok := s.limit.Allow(info.Path); ok {
				s.opts.Logger.Error("part of the store is unreadable", "file", info.Path, "error", salvage.FirstLine(info.Details), "suppressed", suppressed)
			}
			s.waitForRepair(info.Path)
		},
	}
}

func (s *Store) backgroundError(err error) {
	switch {
	case s.Err() != nil, errors.Is(err, pebble.ErrCancelledCompaction), errors.Is(err, pebble.ErrClosed):
	case pebble.IsCorruptionError(err):
		// Reported by DataCorruption.
		s.damaged.report(err)
	case errors.Is(err, syscall.ENOSPC):
		if suppressed, ok := s.limit.Allow("full"); ok {
			s.opts.Logger.Warn("the disk is full; the store retries", "error", salvage.FirstLine(err), "suppressed", suppressed)
		}
	default:
		s.fail(err)
	}
}

// fail ends the store, with the first cause. Closing failed is the one moment of the
// failure, for the fence and for callers.
func (s *Store) fail(cause error) {
	s.failOnce.Do(func() {
		s.failure = fmt.Errorf("%w: %w", ErrFailed, cause)
		close(s.failed)
		s.opts.Logger.Error("the store failed; the process must restart", "error", cause)
	})
}

// Failed is closed when the store has failed. Err then returns the cause.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err returns nil while the store works, else ErrFailed with the cause, wrapped.
func (s *Store) Err() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}

// use begins a call that touches Pebble; the caller ends it with s.life.leave.
func (s *Store) use() error {
	if err := s.Err(); err != nil {
		return err
	}
	if !s.life.enter() {
		return ErrClosed
	}
	return nil
}

// apply writes and closes a batch, unless one of errs is an error of filling it. It
// returns ErrFailed as soon as the store fails, even if Pebble hangs in the write.
func (s *Store) apply(b *pebble.Batch, wo *pebble.WriteOptions, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := s.use(); err != nil {
		return err
	}
	w := write{b, wo, make(chan error, 1)}
	if s.sequencer != nil {
		s.startSequence()
		select {
		case s.writes <- w:
		case <-s.failed:
			s.life.leave()
			return s.failure
		}
	} else {
		s.leave.Do(s.leaveJournal)
		select {
		case s.writes <- w:
		default:
			s.writers.Go(func() { s.writer(w) })
		}
	}
	select {
	case err := <-w.done:
		if err != nil {
			return err
		}
		return b.Close()
	case <-s.failed:
		return s.failure
	}
}

// write is a call of apply.
type write struct {
	batch   *pebble.Batch
	options *pebble.WriteOptions
	done    chan error // has room
}

// writer writes a batch, and others until the store is closed: a new goroutine for each would grow
// its stack each time.
func (s *Store) writer(w write) {
	for {
		w.done <- s.applyNow(w.batch, w.options)
		s.life.leave()
		select {
		case w = <-s.writes:
		case <-s.life.ended:
			return
		}
	}
}

// applyLazily writes a batch that a crash may undo until the next commit, or the next
// sync of Run.
func (s *Store) applyLazily(b *pebble.Batch, errs ...error) error {
	err := s.apply(b, pebble.NoSync, errs...)
	s.shrunk.Store(true)
	if !s.lazy.Swap(true) {
		select {
		case s.unsynced <- struct{}{}:
		default:
		}
	}
	return err
}

// syncLazy makes the writes of applyLazily durable.
func (s *Store) syncLazy() error {
	if !s.lazy.Swap(false) || s.sequencer != nil {
		return nil
	}
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	b := s.db.NewBatch()
	return s.apply(b, pebble.Sync, b.LogData(nil, nil))
}

func (s *Store) applyNow(b *pebble.Batch, wo *pebble.WriteOptions) (err error) {
	defer func() {
		// Pebble panics when it cannot write the WAL.
		if r := recover(); r != nil {
			s.fail(fmt.Errorf("storage engine: %v", r))
			err = s.Err()
		}
	}()
	s.moved.Store(true)
	if err := s.db.Apply(b, wo); err != nil {
		s.fail(err)
	}
	// Apply does not return every failed write; fail has it.
	return s.Err()
}

// closeFailedWait bounds the wait for calls in progress when a failed store is closed.
const closeFailedWait = 5 * time.Second

// stalledWait is how long Close waits for writes that no longer wait for the journal.
const stalledWait = time.Second

// Close waits for calls in progress, syncs acks, resigns, and releases the directory; a journal that does not answer fails
// the store after closeFailedWait, as does a write that does not end after that. A second Close returns nil. The cause of a failed
// store is in Err only.
func (s *Store) Close() error {
	if !s.life.end() {
		return nil
	}
	s.metrics.group.Close()
	if s.Err() != nil {
		return s.closeFailed()
	}
	var late <-chan time.Time
	if s.sequencer != nil {
		s.startSequence()
		stop := time.AfterFunc(closeFailedWait, s.sequencer.cancel)
		defer stop.Stop()
		late = time.After(closeFailedWait + stalledWait)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-s.life.idle
		s.writers.Wait()
	}()
	select {
	case <-ended:
	case <-s.failed:
		return s.closeFailed()
	case <-late: // Pebble waits for room on a full disk
		s.fail(errStalled)
		return s.closeFailed()
	}
	if s.Err() != nil { // the journal did not take the last acks
		return s.closeFailed()
	}
	return errors.Join(s.db.Close(), s.files.Close())
}

// closeFailed closes Pebble behind the fence. After closeFailedWait it gives up: the
// process is about to exit.
func (s *Store) closeFailed() error {
	s.files.Release()
	s.StopAppends()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-s.life.idle
		s.writers.Wait()
		if err := s.db.Close(); err != nil {
			s.opts.Logger.Debug("closing a failed store", "error", err)
		}
	}()
	timer := time.NewTimer(closeFailedWait)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		s.opts.Logger.Warn("a failed store did not close in time")
	}
	return s.files.Close()
}

// openError classifies an error of opening Pebble or of reading the tables: an error of
// the operating system stays, all else is damage.
func openError(dir string, err error) error {
	var errno syscall.Errno
	switch {
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("%s: %w: %w", dir, ErrNewerFormat, err)
	case errors.Is(err, ErrFailed), errors.As(err, &errno) && errno != syscall.ENOENT && !errors.Is(err, ErrUnreadable):
		return fmt.Errorf("open the store %s: %w", dir, err)
	default:
		return DamageError(dir, err)
	}
}

// DamageError is the error of a store that is of no use without what cannot be read: ErrDamaged, with the cause and what to do.
func DamageError(dir string, cause error) error {
	return fmt.Errorf("%s: %w: %w; no data was removed: `watcherd store check` lists the damage, `watcherd store export` copies out what is readable", dir, ErrDamaged, cause)
}

// checkFormat rejects a store with another layout than this release's.
func (s *Store) checkFormat() error {
	value, ok, err := s.get(layout.FormatKey())
	if err != nil {
		return openError(s.dir, err)
	}
	if !ok || len(value) != 4 {
		return openError(s.dir, layout.Malformed(layout.FormatKey()))
	}
	switch v := binary.BigEndian.Uint32(value); {
	case v == layout.Version:
		return nil
	case v < layout.Version:
		return fmt.Errorf("%s: %w: its layout is version %d, this release reads %d; `mv %s %s.old` moves it away, and every watch then starts like a new one",
			s.dir, ErrOlderFormat, v, layout.Version, s.dir, s.dir)
	default:
		return fmt.Errorf("%s: %w: its layout is version %d, this release reads %d", s.dir, ErrNewerFormat, v, layout.Version)
	}
}

// Backup copies the store to a new directory: ledger, log, queues and all else as of one
// commit. [Open] opens the copy, and continues with later sequences. The path is absolute and
// not inside the store. The end of the context, Close, and a repair of a table (ErrRepairing) end it after the file
// that is being copied, and nothing is left in the directory.
func (s *Store) Backup(ctx context.Context, path string) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	end := func() error {
		select {
		case <-s.life.ended:
			return ErrClosed
		default:
			return ctx.Err()
		}
	}
	if err := s.files.Copy(s.db, path, end); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// get returns a copy of the value of key.
func (s *Store) get(key []byte) ([]byte, bool, error) { return s.appendGet(nil, key) }

// appendGet appends the value of key to dst. A value whose checksum is wrong is
// ErrUnreadable.
func (s *Store) appendGet(dst, key []byte) ([]byte, bool, error) {
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return dst, false, nil
	}
	if err != nil {
		return dst, false, salvage.ReadError(err)
	}
	dst = append(dst, value...)
	return dst, true, closer.Close()
}

func (s *Store) counter(kind byte, id uint32) (layout.Counter, error) {
	key := layout.CounterKey(kind, id)
	value, ok, err := s.get(key)
	if err != nil || !ok {
		return layout.Counter{}, err
	}
	c, err := layout.ParseCounter(value)
	if err != nil {
		return layout.Counter{}, fmt.Errorf("%s: %w", layout.DescribeKey(key), err)
	}
	return c, nil
}
