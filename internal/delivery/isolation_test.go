package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// failOne returns an answer that fails every write with this change in it.
func failOne(bad change, err error) func(context.Context, []change) error {
	return func(_ context.Context, batch []change) error {
		if slices.Contains(batch, bad) {
			return err
		}
		return nil
	}
}

// deliveries are the settings the tests of isolation run with.
var deliveries = []sinks.Delivery{
	{MaxEvents: 1, Concurrency: 1},
	{MaxEvents: 1, Concurrency: 4},
	{MaxEvents: 50, Concurrency: 1},
	{MaxEvents: 50, Concurrency: 4},
}

// An event that the receiver answers as if the whole sink were at fault delays its
// own object and nothing else. A pause ends in a dead letter, a delay never does.
func TestOneEventPausesNothingElse(t *testing.T) {
	bad := change{Object: 7, N: 1}
	for name, c := range map[string]struct {
		fail          error
		letters, left int
	}{
		"pause":       {fail: sinks.Pause(errors.New("403")), letters: 1},
		"retry after": {fail: sinks.RetryAfter(errors.New("503"), 2*time.Second), left: 3},
	} {
		for _, d := range deliveries {
			t.Run(fmt.Sprintf("%s,batch=%d,lanes=%d", name, d.MaxEvents, d.Concurrency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					s.add(numbered(3, upTo(40)...)...)
					r := newReceiver(t, failOne(bad, c.fail))
					w := start(t, s, r, func(cfg *Config) { cfg.Delivery = d })
					defer w.stop()
					time.Sleep(30 * time.Second)
					if got := len(r.got()); got != 117 {
						t.Errorf("%d events arrived within half a minute, want 117; %+v", got, w.Status())
					}
					if st := w.Status(); st.State != Running || st.Blocked != 3 {
						t.Errorf("status %+v", st)
					}
					time.Sleep(time.Hour)
					if got := len(r.got()); got != 120-c.letters-c.left {
						t.Errorf("%d events arrived within an hour", got)
					}
					if letters := s.letters(); len(letters) != c.letters {
						t.Errorf("dead letters %+v", letters)
					}
					r.checkOrder()
				})
			})
		}
	}
}

// The delay that a receiver asks for one event is kept for that event.
func TestRetryAfterOfOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(20)...)...)
		r := newReceiver(t, script(&sinks.BatchError{Failed: map[int]error{
			1: sinks.RetryAfter(errors.New("throttled"), time.Minute),
		}}))
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 10 })
		defer w.stop()
		time.Sleep(59 * time.Second)
		if got := len(r.got()); got != 19 {
			t.Errorf("%d events arrived at once, want 19", got)
		}
		time.Sleep(8 * time.Second)
		if got := len(r.got()); got != 20 {
			t.Errorf("%d events arrived after the delay, want 20", got)
		}
	})
}

// The only event that waits is answered 403: the second answer pauses the sink, as there is no other
// event to try, and the event is kept.
func TestPauseOfTheOnlyEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 7)...)
		r := newReceiver(t, failOne(change{Object: 7, N: 1}, sinks.Pause(errors.New("403"))))
		w := start(t, s, r, nil)
		defer w.stop()
		time.Sleep(time.Second)
		if st := w.Status(); st.State != Paused || len(r.log()) != 2 {
			t.Errorf("after %d attempts: %+v", len(r.log()), st)
		}
		time.Sleep(time.Hour)
		if st := w.Status(); st.State != Paused || st.Queue.Length != 1 || len(s.letters()) != 0 {
			t.Errorf("an hour later: %+v, dead letters %+v", st, s.letters())
		}
	})
}

// One event of steady traffic is answered 403: its object waits, the others are
// delivered as they come.
func TestPauseOfOneEventInTraffic(t *testing.T) {
	for _, d := range deliveries {
		t.Run(fmt.Sprintf("batch=%d,lanes=%d", d.MaxEvents, d.Concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				r := newReceiver(t, failOne(change{Object: 7, N: 1}, sinks.Pause(errors.New("403"))))
				w := start(t, s, r, func(c *Config) { c.Delivery = d })
				defer w.stop()
				for n := range 600 {
					s.add(numbered(n+1, upTo(8)...)[n*8:]...)
					time.Sleep(time.Second)
					if n < 30 {
						continue
					}
					if st := w.Status(); st.Queue.Length > int64(n+1) {
						t.Fatalf("after %d s %d events wait; %+v", n, st.Queue.Length, st)
					}
				}
				time.Sleep(10 * time.Minute)
				if got, letters := len(r.got()), len(s.letters()); got != 8*600-1 || letters != 1 {
					t.Errorf("%d events arrived, %d dead letters", got, letters)
				}
				r.checkOrder()
			})
		})
	}
}

// A sink that refuses credentials pauses, and none of the events that it was probed
// with is held against.
func TestPauseBlamesNoEvent(t *testing.T) {
	for _, d := range deliveries {
		t.Run(fmt.Sprintf("batch=%d,lanes=%d", d.MaxEvents, d.Concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				var revoked atomic.Bool
				r := newReceiver(t, func(context.Context, []change) error {
					time.Sleep(10 * time.Millisecond)
					if revoked.Load() {
						return sinks.Pause(errors.New("401"))
					}
					return nil
				})
				w := start(t, s, r, func(c *Config) { c.Delivery = d })
				defer w.stop()
				for n := range 60 {
					s.add(numbered(n+1, upTo(20)...)[n*20:]...)
					time.Sleep(100 * time.Millisecond)
					revoked.Store(n >= 20)
				}
				time.Sleep(3 * time.Hour)
				if st := w.Status(); st.State != Paused || st.Reason != "401" {
					t.Errorf("status %+v", st)
				}
				revoked.Store(false)
				time.Sleep(10 * time.Minute)
				if got, letters := len(r.got()), len(s.letters()); got != 1200 || letters != 0 {
					t.Errorf("%d events arrived, %d dead letters", got, letters)
				}
				r.checkOrder()
			})
		})
	}
}

// A receiver that refuses everything pauses the sink and makes no dead letters.
func TestReceiverThatRefusesEverything(t *testing.T) {
	for _, d := range deliveries {
		for name, each := range map[string]time.Duration{"backlog": 0, "traffic": time.Second} {
			t.Run(fmt.Sprintf("%s,batch=%d,lanes=%d", name, d.MaxEvents, d.Concurrency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					var mended atomic.Bool
					r := newReceiver(t, func(context.Context, []change) error {
						if !mended.Load() {
							return sinks.Poison(errors.New("400"))
						}
						return nil
					})
					// The receiver is healthy at first.
					mended.Store(true)
					s.add(numbered(1, upTo(50)...)...)
					w := start(t, s, r, func(c *Config) { c.Delivery = d })
					defer w.stop()
					synctest.Wait()
					mended.Store(false)
					for n := 1; n < 20; n++ {
						for _, c := range numbered(n+1, upTo(50)...)[n*50:] {
							s.add(c)
							time.Sleep(each / 10)
						}
					}
					time.Sleep(2 * time.Hour)
					st := w.Status()
					if st.State != Paused || !strings.Contains(st.Reason, "20 objects in a row") || !strings.Contains(st.Reason, "400") {
						t.Errorf("status %+v", st)
					}
					if n := len(s.letters()); n > 1 {
						t.Errorf("%d dead letters", n)
					}
					w.Resume() // too early
					time.Sleep(time.Hour)
					if st := w.Status(); st.State != Paused {
						t.Errorf("status %+v", st)
					}
					mended.Store(true)
					w.Resume()
					time.Sleep(10 * time.Minute)
					if got, letters := len(r.got()), len(s.letters()); got+letters != 1000 || letters > 1 {
						t.Errorf("%d events arrived, %d dead letters", got, letters)
					}
					r.checkOrder()
				})
			})
		}
	}
}

// Objects that the receiver refuses, however many one client makes at once, hold up others for seconds.
func TestRefusedObjectsBeforeOthers(t *testing.T) {
	const bad = 300
	for _, d := range deliveries {
		for _, paused := range []time.Duration{10 * time.Second, time.Hour} {
			t.Run(fmt.Sprintf("batch=%d,lanes=%d,paused=%v", d.MaxEvents, d.Concurrency, paused), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					r := newReceiver(t, refuse(true, upTo(bad)...))
					s.add(numbered(1, upTo(bad)...)...)
					w := start(t, s, r, func(cfg *Config) { cfg.Delivery = d })
					defer w.stop()
					time.Sleep(paused)
					s.add(numbered(2, bad+1, bad+2, bad+3, bad+4)...)
					time.Sleep(5 * time.Minute)
					if got := len(r.got()); got != 8 {
						t.Errorf("%d of 8 events arrived within 5 minutes; %+v", got, w.Status())
					}
					r.checkOrder()
				})
			})
		}
	}
}

// A receiver that refuses everything makes no dead letters either when it is slow, when
// the sink is started again and again, or when its queue holds just so many objects.
func TestRefusalsAtAnySpeed(t *testing.T) {
	for name, c := range map[string]struct {
		took    time.Duration // by a write
		objects int
		lives   int
	}{
		"slow":                  {took: 3 * time.Second, objects: 50, lives: 1},
		"slower than the doubt": {took: 25 * time.Second, objects: 50, lives: 1},
		"restarts":              {objects: 50, lives: 4},
		"restarts, few objects": {objects: refusedInARow, lives: 4},
	} {
		for _, d := range deliveries {
			t.Run(fmt.Sprintf("%s,batch=%d,lanes=%d", name, d.MaxEvents, d.Concurrency), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					var mended atomic.Bool
					r := newReceiver(t, func(ctx context.Context, _ []change) error {
						if mended.Load() {
							return nil
						}
						select {
						case <-time.After(c.took):
							return sinks.Poison(errors.New("400"))
						case <-ctx.Done():
							return ctx.Err()
						}
					})
					s.add(numbered(3, upTo(c.objects)...)...)
					tune := func(c *Config) { c.Delivery = d }
					for life := range c.lives {
						w := start(t, s, r, tune)
						time.Sleep(2 * time.Hour)
						if st := w.Status(); st.State != Paused || !strings.Contains(st.Reason, "20 objects in a row") {
							t.Errorf("life %d: status %+v", life, st)
						}
						w.stop()
						s.restart()
					}
					if n := len(s.letters()); n > 0 {
						t.Errorf("%d dead letters", n)
					}
					mended.Store(true)
					w := start(t, s, r, tune)
					time.Sleep(time.Hour)
					w.stop()
					if got, letters := len(r.got()), len(s.letters()); got != 3*c.objects || letters > 0 {
						t.Errorf("%d events arrived, %d dead letters", got, letters)
					}
					r.checkOrder()
				})
			})
		}
	}
}

// Two refused events of a quiet sink become dead letters in the end, though no
// acceptance tells them from a sink that refuses everything.
func TestPoisonInAQuietSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1, 2, 3)...)
		r := newReceiver(t, refuse(true, 1, 2, 3))
		w := start(t, s, r, nil)
		defer w.stop()
		time.Sleep(10 * time.Second)
		if n := len(s.letters()); n > 0 {
			t.Errorf("%d dead letters at once, with nothing accepted", n)
		}
		time.Sleep(5 * time.Minute)
		if st := w.Status(); len(s.letters()) != 3 || st.State != Idle {
			t.Errorf("%d dead letters; %+v", len(s.letters()), st)
		}
	})
}

// TestFailingEventLeavesTheQueue has the record of a failing event become unreadable: its
// object fails no more, also not after a restart, and its later events are delivered.
func TestFailingEventLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(3)...)...)
		r := newReceiver(t, failOne(change{Object: 1, N: 1}, errors.New("500")))
		w := start(t, s, r, nil)
		time.Sleep(time.Minute)
		if st := w.Status(); st.FailingObjects != 1 {
			t.Fatalf("status %+v", st)
		}
		items, err := s.queue.Read(0, 1, 1<<20)
		if err != nil || len(items) != 1 {
			t.Fatalf("%d items, %v", len(items), err)
		}
		// As a Read does with an entry whose record it cannot read.
		if err := s.queue.DeadLetter(items[0].Position, store.Letter{Reason: store.ReasonUnreadable, First: now(), Time: now()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if st := w.Status(); st.FailingObjects != 0 || st.Blocked != 0 || st.State != Idle {
			t.Errorf("status %+v", st)
		}
		if n := len(r.got()); n != 5 {
			t.Errorf("%d events arrived, want 5", n)
		}
		w.stop()
		if raw, _, err := s.queue.Note(); err != nil || strings.Contains(string(raw), `"position"`) {
			t.Errorf("note %s, %v", raw, err)
		}
	})
}
