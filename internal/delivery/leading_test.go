package delivery

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHoldEndsWrites: a write of several events, of which the sink sends one after the other, sends no more once writes may not begin, and
// everything arrives when they may.
func TestHoldEndsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(20)...)...)
		var held atomic.Bool
		var sent, late atomic.Int64
		r := newReceiver(t, func(ctx context.Context, changes []change) error {
			for range changes {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if sent.Add(1); held.Load() {
					late.Add(1)
				}
				select {
				case <-time.After(time.Second): // the answer
				case <-ctx.Done():
				}
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) {
			c.Delivery.MaxEvents = 20
			c.Hold = func(ctx context.Context) error {
				for held.Load() {
					select {
					case <-time.After(10 * time.Millisecond):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
		})
		time.Sleep(2*time.Second + 990*time.Millisecond) // the next one is sent sooner than Hold is asked in its turn
		held.Store(true)
		time.Sleep(time.Minute)
		if sent.Load() == 0 || late.Load() > 0 {
			t.Errorf("%d events were sent, %d of them after writes may not begin", sent.Load(), late.Load())
		}
		held.Store(false)
		time.Sleep(10 * time.Minute)
		w.stop()
		if got := len(r.got()); got != 20 {
			t.Errorf("%d events arrived, want 20", got)
		}
		r.checkOrder()
	})
}
