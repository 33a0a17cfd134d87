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

// ageClock is the time by which things expire. What expires is gone for good, so a clock that
// jumps ahead counts after agePatience; a clock that is set back counts at once.
type ageClock struct {
	mu       sync.Mutex
	believed clockReading // guarded by mu
	jumped   clockReading // guarded by mu; the first one after a jump that is not believed yet; zero for none
}

// clockReading is what the wall clock said at a moment.
type clockReading struct {
	wall      time.Time // without a monotonic reading, which no jump shows in
	monotonic time.Time
}

// then returns the time of the wall clock at another moment, if it does not jump.
func (r clockReading) then(monotonic time.Time) time.Time {
	return r.wall.Add(monotonic.Sub(r.monotonic))
}

// newAgeClock returns the clock of a store that trusts no time later than last.
func newAgeClock(last time.Time) *ageClock {
	return &ageClock{believed: clockReading{last.Round(0), time.Now()}}
}

// trusted is the time of the last mark, or of the one before a jump that is less than agePatience old. There is at least
// one mark.
func (m marks) trusted() time.Time {
	last := m[len(m)-1].time
	for i := len(m) - 1; i > 0 && last.Sub(m[i].time) < agePatience; i-- {
		if before := m[i-1].time; m[i].time.Sub(before) > agePatience {
			return before
		}
	}
	return last
}

func (a *ageClock) now(wall time.Time) time.Time {
	wall = wall.Round(0)
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

// Age is the time by which records, dead letters and all else expires: that of the clock, except for
// the first hour after it jumped ahead, also before Open.
func (s *Store) Age() time.Time { return s.ages.now(s.opts.Now()) }
