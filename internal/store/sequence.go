package store

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Sequences and positions only rise, for lost volumes and restored copies too: each Open
// continues from the later of the last one and the clock in microseconds. A store uses
// fewer than one a microsecond, so the clock is ahead of all used before. Sequences
// therefore have large gaps, and a difference of two is not a count.

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
