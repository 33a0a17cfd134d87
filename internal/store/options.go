package store

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Limits bound the disk a store takes. A zero field means no bound.
type Limits struct {
	// MaxBytes is the size on disk, in bytes, that the store should not exceed.
	// Ingest pauses before, at half of it or 256 MiB less, whichever is more. Below
	// 16 MiB the engine's own buffers are most of the store, and it may be exceeded.
	MaxBytes int64
	// MinFree is the free space of the disk, in bytes, below which ingest
	// pauses.
	MinFree int64
	// RetentionMaxAge is how long delivered records are kept, for replay and as history;
	// in fact they are for a third longer, see Store.Old.
	RetentionMaxAge time.Duration
	// RetentionMaxBytes is how many bytes of delivered records are kept for
	// replay.
	RetentionMaxBytes int64
	// DeadLetterMaxBytes is how many bytes the payloads of all dead letters may take;
	// a tenth of MaxBytes by default. Then Queue.DeadLetter returns ErrDeadLettersFull. Half of
	// them are divided among the sinks. The first dead letters of sinks may exceed them.
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
	// Journal, if not nil, takes every batch before the directory does. The store does not
	// close it.
	Journal Journal

	// firstSequence is the smallest sequence to hand out; taken from the clock if 0.
	firstSequence uint64
}

func (o Options) withDefaults() Options {
	o.FS = cmp.Or(o.FS, vfs.Default)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// first is the smallest sequence for a store that is opened at this moment.
func (o Options) first() (uint64, error) {
	if o.firstSequence > 0 {
		return o.firstSequence, nil
	}
	return firstSequence(o.Now(), buildTime())
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

// The errors a caller decides by. All are wrapped with what went wrong.
var (
	// ErrLocked: another process (or another Store of this one) has the
	// directory open.
	ErrLocked = engine.ErrLocked
	// ErrCopying: another backup is being made.
	ErrCopying = engine.ErrCopying
	// ErrRepairing: a damaged table is being repaired, or was while the backup was made.
	ErrRepairing = engine.ErrRepairing
	// ErrDamaged: files of the store are missing or unreadable. No data was
	// removed. (Damage inside a table shows only after the storage engine has
	// turned its log into tables, so files may have been renewed.)
	ErrDamaged = errors.New("the store is damaged")
	// ErrNewerFormat: a newer release wrote the store.
	ErrNewerFormat = errors.New("the store was written by a newer release")
	// ErrOlderFormat: an older release wrote the store, in a layout that this one
	// does not read.
	ErrOlderFormat = errors.New("the store was written by an older release")
	// ErrFailed: a write failed and the store takes no more calls; the process
	// should exit and start again.
	ErrFailed = errors.New("the store failed")
	// ErrStolen is an ErrFailed whose cause is another process that opened the
	// same directory, or took over its journal.
	ErrStolen = engine.ErrStolen
	// ErrClosed: the call came after Close.
	ErrClosed = errors.New("the store is closed")
	// ErrUnreadable: the value is there, but its bytes fail their checksum.
	ErrUnreadable = salvage.ErrUnreadable
	// ErrClock: the clock is before this program was made, or in the next century;
	// sequences are taken from it.
	ErrClock = errors.New("set the clock, sequences of events are taken from it")
	// ErrUnknownSink: no such sink was ever ensured, or it was purged.
	ErrUnknownSink = errors.New("unknown sink")
	// ErrSeed: what a store was to be seeded with is incomplete or damaged.
	ErrSeed = errors.New("the copy of the store is incomplete or damaged")
	// ErrDeadLettersFull: the dead letters have used up what the sink may have of their share of the store.
	// The entry stays in its queue.
	ErrDeadLettersFull = errors.New("the dead letters have used up their share of the store; retry or drop them")
)
