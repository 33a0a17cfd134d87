package store

import (
	"context"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// letterAge is the time of the oldest dead letter of a queue. Removing letters
// makes it unknown, until they are looked through again.
type letterAge struct {
	known  bool
	oldest time.Time // zero if there is none
}

func (a *letterAge) add(t time.Time) {
	if a.oldest.IsZero() || t.Before(a.oldest) {
		a.oldest = t
	}
}

// expireChunk is how many dead letters are deleted at a time.
const expireChunk = 1024

// expireLoop deletes dead letters that are too old.
func (s *Store) expireLoop(ctx context.Context) {
	ticker := time.NewTicker(retainEvery)
	defer ticker.Stop()
	for {
		for _, q := range s.sinks.all() {
			if err := q.expireLetters(ctx, s.opts.Now(), s.limits().DeadLetterMaxAge); err != nil {
				if ended(ctx, err) == nil || s.Err() != nil {
					return
				}
				s.opts.Logger.Warn("dead letters were not looked through for their age", "sink", q.name, "error", salvage.FirstLine(err))
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		}
	}
}

// expireLetters deletes the dead letters whose last attempt is longer ago than
// maxAge, if that is not zero, and finds the time of the oldest of the others.
func (q *Queue) expireLetters(ctx context.Context, now time.Time, maxAge time.Duration) error {
	q.mu.Lock()
	due := q.dead.Count > 0 && (!q.deadAge.known || (maxAge > 0 && now.Sub(q.deadAge.oldest) > maxAge))
	if due {
		q.deadAge = letterAge{known: true} // what is added meanwhile adds to this
	}
	q.mu.Unlock()
	if !due {
		return nil
	}
	var expired []uint64
	var oldest time.Time
	if err := q.scanLetters(ctx, func(position uint64, d *layout.DeadLetter) {
		if maxAge > 0 && now.Sub(d.Last) > maxAge {
			expired = append(expired, position)
		} else if oldest.IsZero() || d.Last.Before(oldest) {
			oldest = d.Last
		}
	}); err != nil {
		q.mu.Lock()
		q.deadAge.known = false
		q.mu.Unlock()
		return err
	}
	gone := 0
	for len(expired) > 0 && ctx.Err() == nil {
		chunk := expired[:min(len(expired), expireChunk)]
		expired = expired[len(chunk):]
		n, err := q.DropDeadLetters(chunk...)
		if err != nil {
			return err
		}
		gone += n
	}
	if gone > 0 {
		q.s.metrics.expired.Add(float64(gone))
		q.s.opts.Logger.Warn("dead letters expired", "sink", q.name, "count", gone, "maxAge", maxAge)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !oldest.IsZero() {
		q.deadAge.add(oldest)
	}
	// Letters removed by others leave an oldest that is too old: looked at again
	// when that is due.
	q.deadAge.known = true
	return ctx.Err()
}

func (q *Queue) scanLetters(ctx context.Context, f func(position uint64, d *layout.DeadLetter)) error {
	if err := q.s.use(); err != nil {
		return err
	}
	defer q.s.life.leave()
	lower, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	return salvage.Scan(q.s.db, lower, upper, func(key, value []byte) error {
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(value)
		if ok && err == nil {
			f(position, &d)
		}
		return ctx.Err()
	}, func(salvage.LostSpan) error { return nil })
}
