package rawwatch

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffFirst = 500 * time.Millisecond
	backoffMax   = 30 * time.Second

	// backoffAbsent is the longest wait for a resource that is not served, or may
	// not be read: a CRD that comes back, or a grant, shows soon.
	backoffAbsent = 10 * time.Second

	// backoffReset is how long a stream must have lived for the next failure to
	// count as the first.
	backoffReset = 10 * time.Second
)

// backoff is the wait before the next attempt: it doubles from attempt to attempt
// and has a jitter of half of it, so that many informers do not come all at once.
// It is used by one goroutine.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait waits for the next attempt: at least atLeast, and as long as the doubling
// has come to, but no longer than most. It returns ctx's error if ctx ends first.
func (b *backoff) wait(ctx context.Context, atLeast, most time.Duration) error {
	b.next = min(max(b.next*2, backoffFirst), most)
	d := max(b.next/2+rand.N(b.next/2+1), atLeast)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
