package solo

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		gate := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- r.Do(ctx, func() error { <-gate; return nil }) }()
		synctest.Wait()

		second := make(chan error, 1)
		ran := false
		go func() { second <- r.Do(t.Context(), func() error { ran = true; return nil }) }()
		synctest.Wait()
		if ran {
			t.Fatal("two ran at once")
		}

		cancel() // the first caller goes, its function stays
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		synctest.Wait()
		if ran {
			t.Fatal("the second ran beside the function that was left behind")
		}
		close(gate)
		if err := <-second; err != nil || !ran {
			t.Errorf("error %v, ran is %v", err, ran)
		}
	})
}

func TestCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		gate := make(chan struct{})
		go func() { _ = r.Do(t.Context(), func() error { <-gate; return nil }) }()
		synctest.Wait()
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Do(ctx, func() error { t.Error("it ran"); return nil }) }()
		synctest.Wait()
		cancel(why)
		if err := <-result; !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		if err := r.Do(ctx, func() error { t.Error("it ran"); return nil }); !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
		close(gate)
		want := errors.New("its own")
		if err := r.Do(t.Context(), func() error { return want }); !errors.Is(err, want) {
			t.Errorf("error %v", err)
		}
	})
}

// TestLast: what releases a resource runs behind what uses it, though its caller has left.
func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		gate := make(chan struct{})
		go func() { _ = r.Do(t.Context(), func() error { <-gate; return nil }) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ran := make(chan struct{})
		if err := r.Last(ctx, func() error { close(ran); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		select {
		case <-ran:
			t.Fatal("it ran beside the function before")
		default:
		}
		close(gate)
		<-ran
		want := errors.New("its own")
		if err := r.Last(t.Context(), func() error { return want }); !errors.Is(err, want) {
			t.Errorf("error %v", err)
		}
	})
}
