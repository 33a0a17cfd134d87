package delivery

import (
	"math/rand/v2"
	"time"
)

// delay is how long to wait after the attempt-th failure in a row, counted from
// 1: a random share of a ceiling that doubles from Initial to Max. Half of
// Initial is the least, so that full jitter never means no delay at all.
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

// asked is the delay a receiver asked for, capped, and a little more, so that
// many senders told the same don't return in the same instant.
func (r *Retry) asked(d time.Duration) time.Duration {
	d = min(d, r.AfterMax)
	return d + rand.N(max(d/10, 1))
}

// probe is how long a paused sink is left alone before its n-th probe, counted
// from 1: four times as long as before the last one, up to about ProbeInterval.
// What heals by itself, such as a roll-out, is noticed soon.
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

// longest is the longest delay any failure leads to. What a note on disk says
// beyond it comes from a clock that was wrong.
func (r *Retry) longest() time.Duration {
	return max(r.Max, r.AfterMax+r.AfterMax/10)
}
