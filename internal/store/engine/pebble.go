package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// pebbleFormat is the version of Pebble's files. Raising it keeps older releases out, so
// it is not left to the library's default. This one distinguishes a torn tail of the WAL
// from damage, and checks the footers of tables.
const pebbleFormat = pebble.FormatTableFormatV6

// MemTables is the number of memtables after which writes stop; see Options.
const MemTables = 4

const (
	memTableSize    = 8 << 20
	minMemTableSize = 256 << 10
	tableSize       = 8 << 20
	minTableSize    = 256 << 10
	baseSize        = 64 << 20
	minBaseSize     = 1 << 20
	maxOpenFiles    = 256
)

// BlockCacheSize is the size of the cache of blocks.
const BlockCacheSize = 16 << 20

// Options are sized for one small daemon. Payloads arrive compressed, so
// blocks are not compressed again. Ledger reads mostly hit, so filters spare
// them the levels above the last, where they would only be in the way.
func Options(fs vfs.FS, logger pebble.Logger, listener *pebble.EventListener, maxBytes int64) *pebble.Options {
	o := &pebble.Options{
		FS:                          blockFS{fs},
		Logger:                      logger,
		EventListener:               listener,
		Merger:                      layout.NewMerger(),
		FormatMajorVersion:          pebbleFormat,
		CacheSize:                   BlockCacheSize,
		MemTableSize:                uint64(MemTableBytes(maxBytes)),
		MemTableStopWritesThreshold: MemTables,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       Level0StopWrites(maxBytes),
		LBaseMaxBytes:               SizeFor(maxBytes, 16, minBaseSize, baseSize),
		MaxOpenFiles:                maxOpenFiles,
		MaxManifestFileSize:         8 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, int(SizeFor(maxBytes, 512<<20, 1, 2)) },
	}
	// Small files everywhere: a file whose records are all deleted is dropped
	// whole, and damage that cannot be repaired costs one file.
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = SizeFor(maxBytes, 64, minTableSize, tableSize)
	}
	o.Experimental.FileCacheShards = 2
	o.Experimental.CompactionScheduler = newScheduler()
	for i := range o.Levels {
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		if i < len(o.Levels)-1 {
			o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		} else {
			o.Levels[i].FilterPolicy = pebble.NoFilterPolicy
		}
	}
	return o
}

// MemTableBytes is the size of a memtable.
func MemTableBytes(maxBytes int64) int64 {
	return SizeFor(maxBytes, 64, minMemTableSize, memTableSize)
}

// Level0StopIngest returns the number of overlapping tables in level 0 at which ingest
// is to wait for compactions.
func Level0StopIngest(maxBytes int64) int { return int(SizeFor(maxBytes, 32<<20, 12, 24)) }

// Level0StopWrites returns the number of overlapping tables in level 0 at which all
// writes stop. On a full disk, acknowledgements make many small tables before there is
// room to compact them.
func Level0StopWrites(maxBytes int64) int { return 8 * Level0StopIngest(maxBytes) }

// SizeFor returns a part of the budget, within bounds; the upper bound without a
// budget.
//
// A small budget gets small parts, for what the engine rewrites exists twice for as
// long as that takes: a flush the memtable, whose write-ahead log is as large and is
// kept to be written over; a compaction up to 25 tables, and one into the base level
// all of that, as tables of level 0 span every keyspace.
func SizeFor(maxBytes, part, least, most int64) int64 {
	if maxBytes <= 0 {
		return most
	}
	return min(max(maxBytes/part, least), most)
}

// scheduler permits as many compactions as Pebble's own scheduler, which looks every
// 100 ms for a waiting compaction that is permitted meanwhile. This one looks only while
// a compaction waits: an idle store has no timer.
type scheduler struct {
	*pebble.ConcurrencyLimitScheduler
	db pebble.DBForCompaction

	looks   sync.WaitGroup
	mu      sync.Mutex
	next    *time.Timer // guarded by mu; of the next look; nil if none waits
	stopped bool        // guarded by mu
}

const permitEvery = 100 * time.Millisecond

func newScheduler() *scheduler {
	return &scheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

func (s *scheduler) Register(goroutines int, db pebble.DBForCompaction) {
	s.db = waitingCompactions{db}
	s.ConcurrencyLimitScheduler.Register(goroutines, s.db)
}

func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.stopped = true
	if s.next != nil && s.next.Stop() {
		s.looks.Done()
	}
	s.mu.Unlock()
	s.looks.Wait()
	s.ConcurrencyLimitScheduler.Unregister()
}

// TrySchedule implements pebble.CompactionScheduler. Pebble holds a lock that
// GetWaitingCompaction takes.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	permitted, handle := s.ConcurrencyLimitScheduler.TrySchedule()
	if !permitted {
		s.lookLater()
	}
	return permitted, handle
}

// waitingCompactions are those of a database. The one that is picked may be of a
// DB.Compact whose context has ended: Pebble has taken it from its list, but keeps it
// picked, and panics when it is to run (db.go, cancelPendingCompactions, in v2.1.7).
// Nothing has changed then, no lock is held and nothing is picked any more.
type waitingCompactions struct{ pebble.DBForCompaction }

func (w waitingCompactions) Schedule(handle pebble.CompactionGrantHandle) (accepted bool) {
	defer func() {
		switch r := recover(); {
		case r == nil:
		case strings.HasPrefix(fmt.Sprint(r), "did not find manual compaction"):
			accepted = w.DBForCompaction.Schedule(handle) // of those that still wait
		default:
			panic(r)
		}
	}()
	return w.DBForCompaction.Schedule(handle)
}

func (s *scheduler) lookLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil && !s.stopped {
		s.looks.Add(1)
		s.next = time.AfterFunc(permitEvery, s.look)
	}
}

func (s *scheduler) look() {
	defer s.looks.Done()
	s.mu.Lock()
	s.next = nil
	stopped := s.stopped
	s.mu.Unlock()
	if stopped {
		return
	}
	if permitted, handle := s.ConcurrencyLimitScheduler.TrySchedule(); permitted {
		handle.Done() // permits the waiting compactions
	}
	if waiting, _ := s.db.GetWaitingCompaction(); waiting {
		s.lookLater()
	}
}

// compactTables is the number of tables that CompactAll compacts at a time, give or take
// those at the ends and those that lie over or under them.
const compactTables = 8

// CompactAll compacts the whole store, a part of its keys after another: for as long as a
// compaction takes, what it rewrites exists twice.
func CompactAll(ctx context.Context, db *pebble.DB) error {
	last := []byte{0xff}
	for from := []byte{0}; ; {
		to, err := keyAfter(db, from, compactTables)
		if err != nil {
			return err
		}
		if to == nil {
			return db.Compact(ctx, from, last, false)
		}
		if err := db.Compact(ctx, from, to, false); err != nil {
			return err
		}
		from = to
	}
}

// keyAfter returns the last key of the n-th table after a key, nil if there are fewer. The
// tables of level 0, which span all keys, do not count.
func keyAfter(db *pebble.DB, from []byte, n int) ([]byte, error) {
	levels, err := db.SSTables()
	if err != nil {
		return nil, err
	}
	var ends [][]byte
	for _, tables := range levels[1:] {
		for _, table := range tables {
			if end := table.Largest.UserKey; bytes.Compare(end, from) > 0 {
				ends = append(ends, end)
			}
		}
	}
	if len(ends) <= n {
		return nil, nil
	}
	slices.SortFunc(ends, bytes.Compare)
	return ends[n-1], nil
}

// Logger forwards Pebble's messages. Pebble calls Fatalf where it expects the process
// to exit; the store fails instead.
type Logger struct {
	Log   *slog.Logger
	Limit *LogLimit
	Fatal func(error) // fails the store
}

// Infof implements pebble.Logger. It drops the message.
func (l Logger) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (l Logger) Errorf(format string, args ...any) {
	if suppressed, ok := l.Limit.Allow(format); ok {
		message, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
		l.Log.Warn("storage engine", "message", message, "suppressed", suppressed)
	}
}

// Fatalf implements pebble.Logger.
func (l Logger) Fatalf(format string, args ...any) {
	l.Fatal(fmt.Errorf(format, args...))
}

// IsSettings reports whether the named file has Pebble's settings. Pebble compares them
// with the Options that it gets, which contain all of them.
func IsSettings(name string) bool { return strings.HasPrefix(name, "OPTIONS-") }

// dropSettings removes the files of settings in dir that Pebble would reject: they are
// damaged. An older release is kept out by the layout's version and by pebbleFormat.
func dropSettings(fsys vfs.FS, dir string, o *pebble.Options) (dropped []string, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	o.EnsureDefaults()
	for _, name := range names {
		if !IsSettings(name) {
			continue
		}
		path := fsys.PathJoin(dir, name)
		content, err := ReadFile(fsys, path)
		if err == nil && o.CheckCompatibility(dir, string(content)) == nil {
			continue
		}
		if err := fsys.Remove(path); err != nil {
			return dropped, err
		}
		dropped = append(dropped, name)
	}
	return dropped, nil
}

// LogLimit limits repeated messages to one line a subject and minute.
type LogLimit struct {
	mu       sync.Mutex
	subjects map[string]*limited // guarded by mu
}

type limited struct {
	last       time.Time
	suppressed int
}

const (
	logEvery         = time.Minute
	maxLimitSubjects = 1024
)

// Allow reports whether a line about the subject is due, and the number of lines that
// were suppressed since the last.
func (l *LogLimit) Allow(subject string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := l.subjects[subject]
	if s == nil {
		if l.subjects == nil || len(l.subjects) >= maxLimitSubjects {
			l.subjects = make(map[string]*limited)
		}
		l.subjects[subject] = &limited{last: now}
		return 0, true
	}
	if now.Sub(s.last) < logEvery {
		s.suppressed++
		return 0, false
	}
	suppressed = s.suppressed
	s.last, s.suppressed = now, 0
	return suppressed, true
}
