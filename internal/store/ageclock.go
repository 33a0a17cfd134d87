package store

import (
	"sync"
	"time"
)

const (
	// ageTolerance is how much faster than the monotonic clock the wall clock may run.
	ageTolerance = time.Minute
	// agePatience is how long a jump of the clock must last until things expire by it.
	agePatience = time.Hour
)

// ageClock is the time by which records and dead letters expire. What expires is gone for good, so a clock that
// jumps ahead counts after agePatience; a clock that is set back counts at once.
type ageClock struct {
	mu       sync.Mutex
	believed clockReading // guarded by mu
	jumped   clockReading // guarded by mu; the first one after a jump that is not believed yet; zero for none
}

// clockReading is what the wall clock said at a moment.
type clockReading struct {
	wall, monotonic time.Time
}

// then returns the time of the wall clock at another moment, if it does not jump.
func (r clockReading) then(monotonic time.Time) time.Time {
	return r.wall.Add(monotonic.Sub(r.monotonic))
}

// newAgeClock returns the clock of a store that knows no time later than last.
func newAgeClock(last time.Time) *ageClock {
	return &ageClock{believed: clockReading{last, time.Now()}}
}

func (a *ageClock) now(wall time.Time) time.Time {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if expected := a.believed.then(now); wall.Sub(expected) > ageTolerance {
		if a.jumped == (clockReading{}) || wall.Sub(a.jumped.then(now)).Abs() > ageTolerance {
			a.jumped = clockReading{wall, now}
		}
		if now.Sub(a.jumped.monotonic) < agePatience {
			return expected
		}
	}
	a.believed, a.jumped = clockReading{wall, now}, clockReading{}
	return wall
}

// age is the time by which records and dead letters expire.
func (s *Store) age() time.Time { return s.ages.now(s.opts.Now()) }
