package rawwatch

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	backoffFirst = 500 * time.Millisecond
	backoffMax   = 30 * time.Second

	// backoffAbsent is the longest wait for a resource that is not served, or may
	// not be read: a CRD that comes back, or a grant, shows soon.
	backoffAbsent = 10 * time.Second

	// spreadLeast, spreadEach and spreadMost bound the time over which streams that
	// fail together begin again: spreadEach for each of them.
	spreadLeast = 250 * time.Millisecond
	spreadEach  = 2 * time.Millisecond
	spreadMost  = 10 * time.Second

	// backoffReset is how long a stream must have lived for the next failure to
	// count as the first.
	backoffReset = 10 * time.Second
)

// backoff is the wait before the next attempt: it doubles from attempt to attempt
// and has a jitter of half of it. The first wait is short for one stream, and random
// over a time that grows with the number of streams: they lose their connections
// together, and keep the distance that the first wait gives them. It is used by one
// goroutine.
type backoff struct {
	next    time.Duration
	streams *atomic.Int64 // how many there are; nil: one
}

func (b *backoff) reset() { b.next = 0 }

// wait waits for the next attempt: at least atLeast, and as long as the doubling
// has come to, but no longer than most. It returns ctx's error if ctx ends first.
func (b *backoff) wait(ctx context.Context, atLeast, most time.Duration) error {
	var d time.Duration
	if b.next == 0 {
		b.next = min(backoffFirst, most)
		d = atLeast + rand.N(b.spread())
	} else {
		b.next = min(b.next*2, most)
		d = max(b.next/2+rand.N(b.next/2+1), atLeast)
	}
	return sleep(ctx, d)
}

func (b *backoff) spread() time.Duration {
	n := int64(1)
	if b.streams != nil {
		n = b.streams.Load()
	}
	return min(max(time.Duration(n*int64(spreadEach)), spreadLeast), spreadMost)
}

// sleep waits for d. It returns ctx's error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
