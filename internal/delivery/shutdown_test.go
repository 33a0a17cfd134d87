package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestDrainLetsWritesFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(8)...)...)
		r := newReceiver(t, func(ctx context.Context, _ []change) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.Concurrency = 4, 2 })
		synctest.Wait()
		begin := time.Now()
		w.stop()
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("stopping took %v, want the 3s of the writes in flight", took)
		}
		if got, left := len(r.got()), s.queue.Stats().Length; got != 8 || left != 8 {
			t.Errorf("%d events arrived and %d are left, want 8 and 8", got, left)
		}
		if r.closed != 1 {
			t.Errorf("closed %d times", r.closed)
		}
	})
}

// A write that outlasts the drain time is cancelled. What it had delivered by
// then is not delivered again, and the rest is no failure.
func TestDrainCancelsSlowWrites(t *testing.T) {
	for name, answer := range map[string]func(failed int) error{
		"part": func(n int) error {
			failed := map[int]error{}
			for i := 2; i < n; i++ {
				failed[i] = context.Canceled
			}
			return &sinks.BatchError{Failed: failed}
		},
		"none":            func(int) error { return context.Canceled },
		"none, as poison": func(int) error { return sinks.Poison(errors.New("context canceled")) },
		"all":             func(int) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(8)...)...)
				var quick atomic.Bool
				r := newReceiver(t, func(ctx context.Context, batch []change) error {
					if !quick.Load() {
						<-ctx.Done()
						return answer(len(batch))
					}
					return nil
				})
				tune := func(c *Config) { c.Delivery.MaxEvents, c.DrainTimeout = 8, 7*time.Second }
				w := start(t, s, r, tune)
				synctest.Wait()
				begin := time.Now()
				w.stop()
				if took := time.Since(begin); took != 7*time.Second {
					t.Errorf("stopping took %v, want the drain time of 7s", took)
				}
				if want := int64(8 - len(r.got())); s.queue.Stats().Length != want {
					t.Errorf("%d events arrived, %d are left", len(r.got()), s.queue.Stats().Length)
				}
				quick.Store(true)
				w = start(t, s, r, tune)
				synctest.Wait()
				w.stop()
				if len(r.got()) != 8 || len(s.letters()) != 0 {
					t.Errorf("%d events arrived in the end, want 8, each once", len(r.got()))
				}
				r.checkOrder()
			})
		})
	}
}

// A sink that ignores its context delays the end for a bounded time.
func TestStuckSinkIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(8)...)...)
		release := make(chan struct{})
		r := newReceiver(t, func(context.Context, []change) error { <-release; return nil })
		w := start(t, s, r, func(c *Config) { c.DrainTimeout, c.CloseTimeout = 2*time.Second, 3*time.Second })
		synctest.Wait()
		begin := time.Now()
		w.stop()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("stopping took %v, want 5s", took)
		}
		if r.closed != 0 {
			t.Error("the sink was closed during a Write")
		}
		close(release)
		synctest.Wait()
		if r.closed != 1 {
			t.Errorf("the sink was closed %d times after its last Write", r.closed)
		}
	})
}

// The worker that follows delivers nothing while a write of the last one may still
// reach the receiver: the older event would come after the newer ones of its object.
func TestNextWorkerWaitsForWritesLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(3, upTo(4)...)...)
		release := make(chan struct{})
		var after atomic.Bool
		r := newReceiver(t, func(context.Context, []change) error {
			if !after.Load() {
				<-release
			}
			return nil
		})
		first := start(t, s, r, nil)
		synctest.Wait()
		first.stop()
		after.Store(true)
		follow := func(last *running) *running {
			return start(t, s, r, func(c *Config) { c.Previous = last.Closed() })
		}
		second := follow(first)
		time.Sleep(time.Hour)
		if st := second.Status(); st.State != Opening || st.Reason == "" || len(r.got()) > 0 || r.opened != 1 {
			t.Errorf("%d events arrived, opened %d times, status %+v", len(r.got()), r.opened, st)
		}
		second.stop() // it can be stopped meanwhile
		third := follow(first)
		close(release)
		synctest.Wait()
		third.stop()
		if got := len(r.got()); got != 13 || r.opened != 2 || r.closed != 2 { // one event came twice
			t.Errorf("%d events arrived, opened %d times, closed %d times", got, r.opened, r.closed)
		}
	})
}

// A sink that hangs while it is opened delays the end for a bounded time, and is closed if it is
// open after all. Until then the next worker waits.
func TestOpenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(8)...)...)
		release := make(chan struct{})
		r := newReceiver(t, accept)
		w := start(t, s, r, func(c *Config) {
			c.CloseTimeout = 3 * time.Second
			c.Open = func(ctx context.Context) (sinks.Sink, error) {
				<-release
				return r.open(ctx)
			}
		})
		synctest.Wait()
		w.stopsAfter(3 * time.Second)
		next := start(t, s, r, func(c *Config) { c.Previous = w.Closed() })
		time.Sleep(time.Hour)
		if st := next.Status(); st.State != Opening || r.opened != 0 {
			t.Errorf("opened %d times, status %+v", r.opened, st)
		}
		close(release)
		synctest.Wait()
		if got := len(r.got()); got != 8 || r.opened != 2 || r.closed != 1 {
			t.Errorf("%d events arrived, opened %d times, closed %d times", got, r.opened, r.closed)
		}
		next.stop()
	})
}

// hungLimits is a sink whose Limits does not return until it is released.
type hungLimits struct {
	*receiver

	release chan struct{}
}

func (h hungLimits) Limits() sinks.Limits {
	<-h.release
	return sinks.Limits{MaxBatch: 1}
}

// A sink that hangs in Limits delays the end for a bounded time, and is closed when the call has returned.
func TestLimitsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(8)...)...)
		h := hungLimits{newReceiver(t, accept), make(chan struct{})}
		w := start(t, s, h.receiver, func(c *Config) {
			c.CloseTimeout, c.Delivery.MaxEvents = 3*time.Second, 8
			c.Open = func(context.Context) (sinks.Sink, error) { return h, nil }
		})
		synctest.Wait()
		w.stopsAfter(3 * time.Second)
		if h.closed != 0 {
			t.Errorf("closed %d times before its call has returned", h.closed)
		}
		close(h.release)
		<-w.Closed()
		if got := len(h.got()); got != 0 || h.closed != 1 {
			t.Errorf("%d events arrived, closed %d times", got, h.closed)
		}
		next := start(t, s, h.receiver, func(c *Config) {
			c.Delivery.MaxEvents = 8
			c.Open = func(context.Context) (sinks.Sink, error) { return h, nil }
		})
		synctest.Wait()
		if got, writes := len(h.got()), len(h.log()); got != 8 || writes != 8 {
			t.Errorf("%d events arrived in %d writes, want 8 in 8", got, writes)
		}
		next.stop()
	})
}

func TestStopWhileNothingFlows(t *testing.T) {
	for name, err := range map[string]error{
		"backing off": errors.New("down"),
		"paused":      sinks.Pause(errors.New("403")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(2, upTo(8)...)...)
				r := newReceiver(t, func(context.Context, []change) error { return err })
				w := start(t, s, r, nil)
				synctest.Wait()
				begin := time.Now()
				w.stop()
				if took := time.Since(begin); took != 0 {
					t.Errorf("stopping took %v", took)
				}
				if left := s.queue.Stats().Length; left != 16 || r.closed != 1 {
					t.Errorf("%d events are left, closed %d times", left, r.closed)
				}
			})
		})
	}
}

func TestOpenIsRetried(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		state State
		wait  time.Duration
	}{
		"retry": {errors.New("no such file"), BackingOff, 6 * time.Minute},
		"pause": {sinks.Pause(errors.New("no credentials")), Paused, 7 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1, upTo(5)...)...)
				r := newReceiver(t, accept)
				var tries, ok atomic.Int32
				w := start(t, s, r, func(cfg *Config) {
					cfg.Open = func(ctx context.Context) (sinks.Sink, error) {
						if tries.Add(1) == 3 {
							panic("while opening")
						}
						if ok.Load() == 0 {
							return nil, c.err
						}
						return r.open(ctx)
					}
				})
				synctest.Wait()
				st := w.Status()
				if st.State != c.state || st.Reason != fmt.Sprintf("open the sink: %v", c.err) || st.Queue.Length != 5 {
					t.Errorf("status %+v", st)
				}
				time.Sleep(time.Hour)
				if n := tries.Load(); n < 5 || n > 60 {
					t.Errorf("opened %d times in an hour", n)
				}
				ok.Store(1)
				time.Sleep(c.wait)
				if len(r.got()) != 5 || w.Status().State != Idle {
					t.Errorf("%d events arrived, want 5; %+v", len(r.got()), w.Status())
				}
				w.stop()
				if r.closed != 1 {
					t.Errorf("closed %d times", r.closed)
				}
			})
		})
	}
}

func TestResumeOpensNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(5)...)...)
		r := newReceiver(t, accept)
		var ok atomic.Bool
		w := start(t, s, r, func(cfg *Config) {
			cfg.Open = func(ctx context.Context) (sinks.Sink, error) {
				if !ok.Load() {
					return nil, errors.New("not yet")
				}
				return r.open(ctx)
			}
		})
		time.Sleep(time.Hour)
		ok.Store(true)
		w.Resume()
		synctest.Wait()
		if len(r.got()) != 5 {
			t.Errorf("%d events arrived, want 5", len(r.got()))
		}
		w.stop()
	})
}

func TestRunEndsWithTheStore(t *testing.T) {
	s := newStorage(t)
	r := newReceiver(t, accept)
	w := start(t, s, r, nil)
	eventually(t, "the worker waits", func() bool { return w.Status().State == Idle })
	s.close()
	if err := <-w.done; err == nil {
		t.Error("Run returned nil though the store is closed")
	}
	if r.closed != 1 {
		t.Errorf("closed %d times", r.closed)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("a second Run returned nil")
	}
}
