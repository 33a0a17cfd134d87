package store

import (
	"log/slog"
	"time"

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
	// RetentionMaxAge is how long delivered records are kept, for replay and as history;
	// in fact they are for a third longer, see Store.Old.
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
