package delivery

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Each bucket admits what a list of the times of its tokens admits.
func TestRateModel(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		r := rate{Rate: Rate{Events: 1 + random.IntN(5), Per: time.Duration(1+random.IntN(1000)) * time.Millisecond}}
		now := time.Unix(1, 0)
		tokens, part := r.Events, time.Duration(0) // what is in the bucket, and the time towards one more
		for range 100 {
			if got := r.admit(now); got != tokens {
				t.Fatalf("%+v admits %d, want %d", r, got, tokens)
			}
			if next := r.next(1); tokens == 0 && (r.admit(next) != 1 || r.admit(next.Add(-1)) != 0) {
				t.Fatalf("%+v: the next token does not come at %v", r, next)
			}
			if tokens > 0 {
				taken := random.IntN(tokens + 1)
				r.take(now, taken)
				tokens -= taken
			}
			d := time.Duration(random.Int64N(int64(r.Per)))
			now = now.Add(d)
			for part += d; part >= r.interval() && tokens < r.Events; part -= r.interval() {
				tokens++
			}
			if tokens == r.Events {
				part = 0
			}
		}
	}
	if none := (rate{}); none.admit(time.Now()) < 1<<20 || !none.next(1).IsZero() {
		t.Error("no bound is a bound")
	}
}

// A sink with a rate gets no more, in batches and retries too, and in the end everything.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(10, upTo(10)...)...)
		failures := 5
		r := newReceiver(t, func(context.Context, []change) error {
			if failures--; failures >= 0 {
				return errors.New("503")
			}
			return nil
		})
		began := time.Now()
		w := start(t, s, r, func(c *Config) {
			c.Rate = Rate{Events: 4, Per: 2 * time.Second}
			c.Delivery = sinks.Delivery{MaxEvents: 10, Concurrency: 3, MaxWait: 10 * time.Millisecond}
		})
		defer w.stop()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if st := w.Status(); st.State != RateLimited || st.NextAttempt.IsZero() || st.Queue.Length == 0 || st.Reason != "" {
			t.Errorf("status %+v", st)
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		written := 0
		for _, x := range r.log() {
			written += len(x.batch)
			if most := 4 + int(2*x.at.Sub(began)/time.Second); written > most {
				t.Fatalf("%d events after %v, at most %d are allowed", written, x.at.Sub(began), most)
			}
		}
		if st := w.Status(); len(r.got()) != 100 || st.State != Idle {
			t.Errorf("%d events arrived, %+v", len(r.got()), st)
		}
		r.checkOrder()
		if n := gathered(t, w.registry)["watcherd_sink_rate_limit_waits_total{sink=ops}"]; n < 1 {
			t.Errorf("%v waits", n)
		}
	})
}

// TestRateOfLanes: lanes with a backlog share the rate.
func TestRateOfLanes(t *testing.T) {
	for lanes := 2; lanes <= 4; lanes++ {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(40, upTo(12)...)...)
			r := newReceiver(t, accept)
			w := start(t, s, r, func(c *Config) {
				c.Rate = Rate{Events: 1, Per: time.Second}
				c.Delivery = sinks.Delivery{MaxEvents: 10, Concurrency: lanes}
			})
			defer w.stop()
			time.Sleep(100 * time.Second)
			synctest.Wait()
			got := make([]int, lanes)
			for _, c := range r.got() {
				got[c.Object%lanes]++
			}
			for _, n := range got {
				if n < 100/lanes {
					t.Errorf("of %d lanes with a backlog got %v events, want %d or more", lanes, got, 100/lanes)
				}
			}
		})
	}
}

// TestRateLimitOfBatches: events that wait for the rate go out in batches, of as many as the rate allows in maxWait.
func TestRateLimitOfBatches(t *testing.T) {
	for _, test := range []struct {
		wait   time.Duration
		writes int // of 400 events at 10 a second
	}{
		{time.Minute, 40}, {500 * time.Millisecond, 80}, {time.Millisecond, 391},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(40, upTo(10)...)...)
			r := newReceiver(t, accept)
			began := time.Now()
			w := start(t, s, r, func(c *Config) {
				c.Rate = Rate{Events: 10, Per: time.Second}
				c.Delivery = sinks.Delivery{MaxEvents: 100, MaxWait: test.wait}
			})
			defer w.stop()
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			writes := r.log()
			if took := writes[len(writes)-1].at.Sub(began); len(r.got()) != 400 || took > 40*time.Second || len(writes) > test.writes {
				t.Errorf("maxWait %v: %d events in %d writes after %v, want at most %d writes in 40s", test.wait, len(r.got()), len(writes), took, test.writes)
			}
		})
	}
}

// TestRateLimitOfFewEvents: a batch waits for more while the rate allows more than waits, and more than it allows in maxWait.
func TestRateLimitOfFewEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(6)...)...)
		r := newReceiver(t, accept)
		w := start(t, s, r, func(c *Config) {
			c.Rate = Rate{Events: 10, Per: time.Second}
			c.Delivery = sinks.Delivery{MaxEvents: 100, MaxWait: 500 * time.Millisecond}
		})
		defer w.stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if writes := r.log(); len(writes) != 1 || len(r.got()) != 6 {
			t.Errorf("%d events in %d writes, want 6 in one", len(r.got()), len(writes))
		}
	})
}

// A pause on request holds until Resume, also over the retries of a failing sink; what is
// in flight finishes.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(3)...)...)
		release := make(chan struct{})
		r := newReceiver(t, func(context.Context, []change) error { <-release; return nil })
		w := start(t, s, r, nil)
		synctest.Wait()
		w.Pause()
		close(release)
		time.Sleep(time.Hour)
		st := w.Status()
		if len(r.got()) != 1 || st.State != Paused || st.Reason != reasonOnRequest || !st.OnRequest || !st.NextAttempt.IsZero() || st.Queue.Length != 5 {
			t.Errorf("%d events arrived, %+v", len(r.got()), st)
		}
		series := gathered(t, w.registry)
		if series["watcherd_sink_paused_on_request{sink=ops}"] != 1 || series["watcherd_sink_state{sink=ops,state=paused}"] != 1 {
			t.Errorf("metrics %v", series)
		}
		w.stop()

		again := newReceiver(t, accept)
		w = start(t, s, again, func(c *Config) { c.Paused = true })
		defer w.stop()
		time.Sleep(time.Hour)
		if st := w.Status(); len(again.got()) != 0 || st.State != Paused || !st.OnRequest {
			t.Errorf("%d events arrived, %+v", len(again.got()), st)
		}
		w.Resume()
		synctest.Wait()
		if st := w.Status(); len(again.got()) != 5 || st.State != Idle || st.OnRequest {
			t.Errorf("%d events arrived, %+v", len(again.got()), st)
		}
		if gathered(t, w.registry)["watcherd_sink_paused_on_request{sink=ops}"] != 0 {
			t.Error("the metric stays")
		}
		again.checkOrder()
	})
}

// A failing sink that is paused is not probed.
func TestPauseOfAFailingSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(3)...)...)
		r := newReceiver(t, func(context.Context, []change) error { return errors.New("503") })
		w := start(t, s, r, nil)
		defer w.stop()
		time.Sleep(time.Minute)
		w.Pause()
		synctest.Wait()
		before := len(r.log())
		time.Sleep(time.Hour)
		w.Retry() // it ends no pause
		synctest.Wait()
		if n := len(r.log()) - before; n != 0 || !w.Status().OnRequest || w.Status().Reason != reasonOnRequest {
			t.Errorf("%d writes, %+v", n, w.Status())
		}
		w.Resume()
		synctest.Wait()
		if n := len(r.log()) - before; n != 1 || w.Status().State != BackingOff {
			t.Errorf("%d writes, %+v", n, w.Status())
		}
	})
}

// A sink that cannot be opened is not tried again while it is paused.
func TestPauseOfASinkThatDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(3)...)...)
		r := newReceiver(t, accept)
		var opened atomic.Int64
		var back atomic.Bool
		w := start(t, s, r, func(c *Config) {
			open := c.Open
			c.Paused = true
			c.Open = func(ctx context.Context) (sinks.Sink, error) {
				if opened.Add(1); !back.Load() {
					return nil, errors.New("nobody is there")
				}
				return open(ctx)
			}
		})
		defer w.stop()
		time.Sleep(time.Hour)
		w.Retry()
		synctest.Wait()
		if st := w.Status(); opened.Load() != 1 || st.State != Paused || st.Reason != reasonOnRequest || st.LastError == "" {
			t.Errorf("opened %d times, %+v", opened.Load(), st)
		}
		w.Resume()
		time.Sleep(time.Minute)
		if st := w.Status(); opened.Load() < 3 || st.State != BackingOff || st.OnRequest {
			t.Errorf("opened %d times, %+v", opened.Load(), st)
		}
		w.Pause()
		synctest.Wait()
		before := opened.Load()
		time.Sleep(time.Hour)
		if st := w.Status(); opened.Load() != before || st.State != Paused || !st.NextAttempt.IsZero() {
			t.Errorf("opened %d times, %+v", opened.Load()-before, st)
		}
		back.Store(true)
		w.Resume()
		synctest.Wait()
		if st := w.Status(); len(r.got()) != 3 || st.State != Idle {
			t.Errorf("%d events arrived, %+v", len(r.got()), st)
		}
	})
}
