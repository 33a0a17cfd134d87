package outbox

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
)

// Limits bound the disk a store takes. A zero field means no bound.
type Limits struct {
	// MaxBytes is the size on disk, in bytes, that the store should not exceed.
	// Ingest pauses before, at 5/8 of it or 256 MiB less, whichever is more. Below
	// 16 MiB the engine's own buffers are most of the store, and it may be exceeded.
	MaxBytes int64
	// MinFree is the free space of the disk, in bytes, below which ingest
	// pauses.
	MinFree int64
	// RetentionMaxAge is how long delivered records are kept for replay.
	RetentionMaxAge time.Duration
	// RetentionMaxBytes is how many bytes of delivered records are kept for
	// replay.
	RetentionMaxBytes int64
	// DeadLetterMaxBytes is how many bytes the payloads of all dead letters may take;
	// a tenth of MaxBytes by default. Then Queue.DeadLetter returns ErrDeadLettersFull.
	DeadLetterMaxBytes int64
	// DeadLetterMaxAge is how long dead letters are kept after their last attempt.
	DeadLetterMaxAge time.Duration
}

// deadLetterBytes is the bound of dead letters; 0 = none.
func (l Limits) deadLetterBytes() int64 {
	if l.DeadLetterMaxBytes > 0 {
		return l.DeadLetterMaxBytes
	}
	return l.MaxBytes / 10
}

// Options are the settings of Open. The zero value is usable.
type Options struct {
	MaxBytes           int64         // see Limits
	MinFree            int64         // see Limits
	RetentionMaxAge    time.Duration // see Limits
	RetentionMaxBytes  int64         // see Limits
	DeadLetterMaxBytes int64         // see Limits
	DeadLetterMaxAge   time.Duration // see Limits

	// FS is the filesystem; the operating system's by default.
	FS vfs.FS
	// Logger takes what an operator should know; nothing by default.
	Logger *slog.Logger
	// Registerer takes the metrics watcherd_store_*; none by default. They are
	// unregistered by Close.
	Registerer prometheus.Registerer
	// Now is the clock; time.Now by default.
	Now func() time.Time

	// firstSequence is the smallest sequence to hand out; taken from the clock if 0.
	firstSequence uint64
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) limits() Limits {
	return Limits{
		MaxBytes:          o.MaxBytes,
		MinFree:           o.MinFree,
		RetentionMaxAge:   o.RetentionMaxAge,
		RetentionMaxBytes: o.RetentionMaxBytes,

		DeadLetterMaxBytes: o.DeadLetterMaxBytes,
		DeadLetterMaxAge:   o.DeadLetterMaxAge,
	}
}

// pebbleFormat is the version of Pebble's files. Raising it keeps older
// releases out; it is named rather than left to the library so that this is
// our decision. This one frames the WAL so that a torn tail can be told from
// damage, and checks the footers of tables.
const pebbleFormat = pebble.FormatTableFormatV6

const (
	memTables       = 4 // and one more is the number of write-ahead logs that are kept to be written over
	memTableSize    = 8 << 20
	minMemTableSize = 256 << 10
	tableSize       = 8 << 20
	minTableSize    = 256 << 10
	baseSize        = 64 << 20
	minBaseSize     = 1 << 20
	blockCacheSize  = 16 << 20
	maxOpenFiles    = 256
)

// pebbleOptions are sized for one small daemon. Payloads arrive compressed, so
// blocks are not compressed again. Ledger reads mostly hit, so filters spare
// them the levels above the last, where they would only be in the way.
func pebbleOptions(fs vfs.FS, logger pebble.Logger, listener *pebble.EventListener, maxBytes int64) *pebble.Options {
	o := &pebble.Options{
		FS:                          fs,
		Logger:                      logger,
		EventListener:               listener,
		Merger:                      newMerger(),
		FormatMajorVersion:          pebbleFormat,
		CacheSize:                   blockCacheSize,
		MemTableSize:                uint64(sizeFor(maxBytes, 64, minMemTableSize, memTableSize)),
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       level0StopWrites(maxBytes),
		LBaseMaxBytes:               sizeFor(maxBytes, 16, minBaseSize, baseSize),
		MaxOpenFiles:                maxOpenFiles,
		MaxManifestFileSize:         8 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, int(sizeFor(maxBytes, 512<<20, 1, 2)) },
	}
	// Small files everywhere: a file whose records are all deleted is dropped
	// whole, and a damaged index costs one file.
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = sizeFor(maxBytes, 64, minTableSize, tableSize)
	}
	o.Experimental.FileCacheShards = 2
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

// level0StopWrites is how many tables may lie above each other in level 0.
func level0StopWrites(maxBytes int64) int { return int(sizeFor(maxBytes, 32<<20, 12, 24)) }

// sizeFor is a part of the budget, within bounds; the upper one without a budget.
//
// A small budget gets small parts, for what the engine rewrites exists twice for as
// long as that takes: a flush the memtable, whose write-ahead log is as large and is
// kept to be written over; a compaction up to 25 tables, and one into the base level
// all of that, as tables of level 0 span every keyspace.
func sizeFor(maxBytes, part, least, most int64) int64 {
	if maxBytes <= 0 {
		return most
	}
	return min(max(maxBytes/part, least), most)
}

// pebbleLogger hands Pebble's words on. Pebble calls Fatalf where it expects the
// process to end; here the store ends instead.
type pebbleLogger struct {
	log   *slog.Logger
	limit *logLimit
	fatal func(error)
}

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	if suppressed, ok := l.limit.allow(format); ok {
		message, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
		l.log.Warn("storage engine", "message", message, "suppressed", suppressed)
	}
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.fatal(fmt.Errorf(format, args...))
}
