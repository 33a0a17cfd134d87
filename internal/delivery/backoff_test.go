package delivery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestDelayGrowsToMax(t *testing.T) {
	r := Retry{Initial: 500 * time.Millisecond, Max: 5 * time.Minute}
	for attempt, ceiling := range map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 10: 256 * time.Second, 11: 5 * time.Minute,
		1000: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		var largest time.Duration
		for range 2000 {
			d := r.delay(attempt)
			if d < r.Initial/2 || d > ceiling {
				t.Fatalf("attempt %d: delay %v, want within [%v, %v]", attempt, d, r.Initial/2, ceiling)
			}
			largest = max(largest, d)
		}
		if largest < ceiling*9/10 {
			t.Errorf("attempt %d: the largest of 2000 delays is %v of at most %v", attempt, largest, ceiling)
		}
	}
}

func TestDelayWithoutEnd(t *testing.T) {
	r := Retry{Initial: time.Nanosecond, Max: math.MaxInt64}
	for attempt := range 200 {
		if d := r.delay(attempt); d < 0 {
			t.Fatalf("attempt %d: delay %v", attempt, d)
		}
	}
}

// script answers the n-th Write with the n-th error, and accepts from then on.
func script(errs ...error) func(context.Context, []change) error {
	return func(context.Context, []change) error {
		if len(errs) == 0 {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

func TestBacksOffExponentially(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(50)...)...)
		up := time.Now().Add(3 * time.Hour)
		r := newReceiver(t, func(context.Context, []change) error {
			if time.Now().Before(up) {
				return errors.New("connection refused")
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 16 })
		defer w.stop()

		time.Sleep(time.Hour)
		st := w.Status()
		if st.State != BackingOff || st.Reason != "connection refused" || st.Queue.Length != 50 || st.Attempts < 10 {
			t.Errorf("while down: %+v", st)
		}
		if st.NextAttempt.Before(time.Now()) || st.NextAttempt.After(time.Now().Add(5*time.Minute)) {
			t.Errorf("next attempt in %v", time.Until(st.NextAttempt))
		}

		time.Sleep(time.Until(up) + 6*time.Minute)
		if got := len(r.got()); got != 50 {
			t.Fatalf("%d events arrived, want 50", got)
		}
		r.checkOrder()
		if st := w.Status(); st.State != Idle || st.Queue.Length != 0 || st.Blocked != 0 || st.Attempts != 0 {
			t.Errorf("after recovery: %+v", st)
		}
		failed := 0
		for i, wr := range r.log() {
			if wr.err == nil {
				break
			}
			failed++
			if want := 1; i > 0 && len(wr.batch) != want {
				t.Fatalf("write %d while down: %d events, want a probe of one", i, len(wr.batch))
			}
		}
		// At most one probe in 2.5 minutes on average, and never none for long.
		if failed < 35 || failed > 110 {
			t.Errorf("%d failed writes in three hours", failed)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct{ asked, least, most time.Duration }{
		{10 * time.Second, 10 * time.Second, 11 * time.Second},
		{5 * time.Minute, 5 * time.Minute, 330 * time.Second},
		{math.MaxInt64, 5 * time.Minute, 330 * time.Second},
		{0, 250 * time.Millisecond, 500 * time.Millisecond},
		{-time.Hour, 250 * time.Millisecond, 500 * time.Millisecond},
		{math.MinInt64, 250 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(20)...)...)
				r := newReceiver(t, script(sinks.RetryAfter(errors.New("429"), c.asked)))
				w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = 2, 1 })
				defer w.stop()
				time.Sleep(10 * time.Minute)
				writes := r.log()
				if wait := writes[1].at.Sub(writes[0].at); wait < c.least || wait > c.most {
					t.Errorf("waited %v, want within [%v, %v]", wait, c.least, c.most)
				}
				if len(r.got()) != 20 {
					t.Errorf("%d events arrived, want 20", len(r.got()))
				}
				r.checkOrder()
			})
		})
	}
}

func TestPauseProbesAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(3, upTo(10)...)...)
		var allowed atomic.Bool
		r := newReceiver(t, func(context.Context, []change) error {
			if !allowed.Load() {
				return sinks.Pause(errors.New("401 Unauthorized"))
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = 5, 3 })
		defer w.stop()
		begin := time.Now()
		time.Sleep(time.Hour)
		st := w.Status()
		if st.State != Paused || st.Reason != "401 Unauthorized" || st.Queue.Length != 30 || !st.Since.Equal(begin) {
			t.Errorf("while paused: %+v", st)
		}
		var probes []write
		for _, wr := range r.log() {
			if wr.at.After(begin) {
				probes = append(probes, wr)
			}
		}
		// What heals by itself is noticed soon.
		last := begin
		for i, want := range []time.Duration{2 * time.Second, 8 * time.Second, 32 * time.Second, 128 * time.Second} {
			if gap := probes[i].at.Sub(last); gap != want {
				t.Errorf("probe %d came %v after the one before, want %v", i, gap, want)
			}
			last = probes[i].at
		}
		for i := 4; i < len(probes); i++ {
			if gap := probes[i].at.Sub(probes[i-1].at); gap < 4*time.Minute || gap > 6*time.Minute {
				t.Errorf("probe %d came %v after the one before", i, gap)
			}
			if len(probes[i].batch) != 1 {
				t.Errorf("probe %d had %d events", i, len(probes[i].batch))
			}
		}
		if len(probes) < 13 || len(probes) > 20 { // 170 s for the first four, and then 6 minutes each at most
			t.Errorf("%d probes in an hour", len(probes))
		}
		if len(s.letters()) != 0 {
			t.Error("a paused sink has dead letters")
		}

		allowed.Store(true)
		w.Resume()
		synctest.Wait()
		if len(r.got()) != 30 {
			t.Errorf("%d events arrived right after Resume, want 30", len(r.got()))
		}
		r.checkOrder()
		if st := w.Status(); st.State != Idle || st.Reason != "" {
			t.Errorf("after Resume: %+v", st)
		}
	})
}

func TestResumeRetriesBlockedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(5)...)...)
		var mended atomic.Bool
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			for i, c := range batch {
				if c.Object == 2 && !mended.Load() {
					return &sinks.BatchError{Failed: map[int]error{i: errors.New("500")}}
				}
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Retry.Initial = 5, 5*time.Minute })
		defer w.stop()
		time.Sleep(time.Second)
		if st := w.Status(); st.State != Running || st.Blocked != 2 {
			t.Errorf("status %+v", st)
		}
		mended.Store(true)
		w.Resume()
		synctest.Wait()
		if len(r.got()) != 10 {
			t.Errorf("%d events arrived right after Resume, want 10", len(r.got()))
		}
		r.checkOrder()
	})
}

// A receiver that flaps gets one event at a time until it answers, then more
// and more, and everything in order.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		begin := time.Now()
		down := func() bool { return time.Since(begin)/(5*time.Second)%2 == 0 }
		r := newReceiver(t, func(ctx context.Context, _ []change) error {
			time.Sleep(20 * time.Millisecond)
			if down() {
				return errors.New("503")
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency, c.Retry.Max = 8, 4, time.Second })
		defer w.stop()
		const rounds = 120
		for n := range rounds {
			s.add(numbered(n+1, upTo(30)...)[n*30:]...)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		r.checkOrder()
		if len(r.got()) != rounds*30 {
			t.Errorf("%d events arrived, want %d; %+v", len(r.got()), rounds*30, w.Status())
		}

		// Between the first failure of an outage and the first success after it
		// only single events are tried.
		failing, singles := false, 0
		for _, wr := range r.log() {
			if failing && wr.at.Sub(begin)%(10*time.Second) > time.Second && wr.err != nil {
				singles++
				if len(wr.batch) != 1 {
					t.Errorf("%v: a probe of %d events", wr.at.Sub(begin), len(wr.batch))
				}
			}
			failing = wr.err != nil
		}
		if singles < 10 {
			t.Errorf("%d probes failed, too few for a test", singles)
		}
	})
}
