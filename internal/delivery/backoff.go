package delivery

import (
	"math/rand/v2"
	"time"
)

// delay returns the wait after the attempt-th failure in a row, counted from 1: a random
// share of a ceiling that doubles from Initial to Max, at least half of Initial.
func (r *Retry) delay(attempt int) time.Duration {
	ceiling := r.Initial
	for ; attempt > 1 && ceiling < r.Max; attempt-- {
		if ceiling > r.Max/2 {
			ceiling = r.Max
			break
		}
		ceiling *= 2
	}
	floor := r.Initial / 2
	return floor + rand.N(max(ceiling-floor, 1))
}

// asked returns the delay that a receiver asked for, capped, with some jitter for other
// senders with the same answer.
func (r *Retry) asked(d time.Duration) time.Duration {
	d = min(d, r.AfterMax)
	return d + rand.N(max(d/10, 1))
}

// probe returns the wait of a paused sink before its n-th probe, counted from 1: four
// times the last wait, up to about ProbeInterval. A cause that passes, such as a
// roll-out, is noticed soon.
func (r *Retry) probe(n int) time.Duration {
	d := r.ProbeFirst
	for ; n > 1 && d < r.ProbeInterval; n-- {
		d = min(d, r.ProbeInterval/4) * 4
	}
	if d < r.ProbeInterval {
		return d
	}
	return r.spread()
}

// spread is about ProbeInterval.
func (r *Retry) spread() time.Duration {
	d := r.ProbeInterval / 5
	return r.ProbeInterval - d + rand.N(max(2*d, 1))
}

// longest returns the longest delay after any failure. A longer one in a note comes
// from a wrong clock.
func (r *Retry) longest() time.Duration {
	return max(r.Max, r.AfterMax+r.AfterMax/10)
}
