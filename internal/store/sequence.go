package store

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Sequences and positions only rise, over lost volumes and restored copies too: at
// each open they continue from the later of the last one handed out and the clock in
// microseconds. A store hands out fewer than one a microsecond, so whatever an
// earlier life of the store handed out is behind the clock. Sequences therefore have
// large gaps, and a difference of two is not a count.

// maxSequence is the largest integer that every JSON reader keeps exact.
const maxSequence = 1<<53 - 1

// The clocks that are believed: not before the program was made, and before a year
// that leaves room below maxSequence.
var (
	earliestClock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	latestClock   = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
)

// buildTime is when the program's commit was made, as far as the binary knows it.
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

// firstSequence is the smallest sequence that a store opened at the time may hand
// out. A clock that cannot be right is refused: sequences taken from it would fall
// behind later, or leave no room.
func firstSequence(now, built time.Time) (uint64, error) {
	earliest := earliestClock
	// A checkout with a wrong clock must not make a binary that never starts.
	if built.After(earliest) && built.Before(latestClock) {
		earliest = built
	}
	switch {
	case now.Before(earliest):
		return 0, fmt.Errorf("the clock says %s, which is before this program was made (%s): %w",
			now.UTC().Format(time.RFC3339), earliest.UTC().Format(time.RFC3339), ErrClock)
	case !now.Before(latestClock):
		return 0, fmt.Errorf("the clock says %s, which is after %s: %w",
			now.UTC().Format(time.RFC3339), latestClock.Format(time.RFC3339), ErrClock)
	}
	return uint64(now.UnixMicro()), nil
}

// errNoSequences ends a store whose sequences have reached maxSequence.
var errNoSequences = errors.New("no sequences are left")
