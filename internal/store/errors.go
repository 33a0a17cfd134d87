package store

import (
	"errors"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// The errors a caller decides by. All are wrapped with what went wrong.
var (
	// ErrLocked: another process (or another Store of this one) has the
	// directory open.
	ErrLocked = engine.ErrLocked
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
	// same directory.
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
	// ErrDeadLettersFull: the dead letters have used up their share of the store.
	// The entry stays in its queue.
	ErrDeadLettersFull = errors.New("the dead letters have used up their share of the store; retry or drop them")
)
