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

// sequence is that of the n-th event that was added to a new store.
func (s *storage) sequence(n uint64) uint64 { return s.store.LogStats().First + n - 1 }

// A skip moves past the event that fails for the longest time.
func TestSkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(3, upTo(10)...)...)
		r := newReceiver(t, failOne(change{Object: 4, N: 1}, errors.New("500")))
		w := start(t, s, r, nil)
		defer w.stop()
		time.Sleep(time.Minute)
		if st := w.Status(); st.FailingObjects != 1 || len(st.Failing) != 1 || st.Failing[0].Subject != "/api/v1/pods/4" ||
			st.Failing[0].LastError != "500" || st.Failing[0].Sequence != s.sequence(5) || st.Failing[0].Behind != 2 || st.Failing[0].Attempts < 3 {
			t.Errorf("status %+v", st)
		}
		got, err := w.Skip(t.Context(), 0)
		if err != nil || got.Sequence != s.sequence(5) || got.Subject != "/api/v1/pods/4" || got.Reason != "500" || got.ID != "4/1" {
			t.Errorf("skipped %+v, %v", got, err)
		}
		synctest.Wait()
		letters := s.letters()
		if len(letters) != 1 || letters[0].Reason != "skipped: 500" || letters[0].Position != got.Position || letters[0].Sequence != s.sequence(5) {
			t.Errorf("dead letters %+v", letters)
		}
		if st := w.Status(); len(r.got()) != 29 || st.State != Idle || st.FailingObjects != 0 {
			t.Errorf("%d events arrived; %+v", len(r.got()), st)
		}
		r.checkOrder()
		if _, err := w.Skip(t.Context(), 0); !errors.Is(err, ErrNothingToSkip) {
			t.Errorf("nothing blocks: %v", err)
		}
	})
}

// A skip has a paused sink tried at once.
func TestSkipWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(5)...)...)
		r := newReceiver(t, func(context.Context, []change) error { return sinks.Pause(errors.New("403")) })
		w := start(t, s, r, nil)
		defer w.stop()
		time.Sleep(time.Hour)
		before := len(r.log())
		if _, err := w.Skip(t.Context(), 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(r.log()) - before; n != 1 || w.Status().State != Paused || len(s.letters()) != 1 {
			t.Errorf("%d writes, %d dead letters; %+v", n, len(s.letters()), w.Status())
		}
	})
}

// A skip by sequence takes an event wherever it waits.
func TestSkipBySequence(t *testing.T) {
	for name, answer := range map[string]func(context.Context, []change) error{
		"behind one that fails": failOne(change{Object: 1, N: 1}, errors.New("500")),
		"of a paused sink":      func(context.Context, []change) error { return sinks.Pause(errors.New("401")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(4, 1)...)
				r := newReceiver(t, answer)
				w := start(t, s, r, nil)
				time.Sleep(time.Minute)
				if got, err := w.Skip(t.Context(), s.sequence(3)); err != nil || got.ID != "1/3" {
					t.Errorf("skipped %+v, %v", got, err)
				}
				if _, err := w.Skip(t.Context(), s.sequence(3)); !errors.Is(err, ErrNotSkippable) {
					t.Errorf("skipped twice: %v", err)
				}
				if letters := s.letters(); len(letters) != 1 || !strings.HasPrefix(letters[0].Reason, "skipped: ") {
					t.Errorf("dead letters %+v", letters)
				}
				w.stop()
				if _, err := w.Skip(t.Context(), s.sequence(1)); !errors.Is(err, ErrNotDelivering) {
					t.Errorf("a stopped worker: %v", err)
				}
				again := newReceiver(t, accept)
				s.restart()
				w = start(t, s, again, nil)
				time.Sleep(10 * time.Minute)
				w.stop()
				if got := len(again.got()); got != 3 {
					t.Errorf("%d events arrived, want 3", got)
				}
				again.checkOrder()
			})
		})
	}
}

// While no object fails on its own, a skip takes the first event of a sink that
// accepts nothing. It does not take one that is being written.
func TestSkipDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1)...)
		r := newReceiver(t, func(ctx context.Context, _ []change) error {
			<-ctx.Done()
			return ctx.Err()
		})
		w := start(t, s, r, nil)
		time.Sleep(time.Second)
		if _, err := w.Skip(t.Context(), s.sequence(1)); !errors.Is(err, ErrInFlight) {
			t.Errorf("skipped in flight: %v", err)
		}
		w.stop()
	})
}

// A skip does not take the next event of an object while one before it is being written.
func TestSkipBehindAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(5)...)...)
		first, attempts, again := change{Object: 4, N: 1}, 0, make(chan struct{}, 1)
		r := newReceiver(t, func(ctx context.Context, batch []change) error {
			i := slices.Index(batch, first)
			if i < 0 {
				return nil
			}
			if attempts++; attempts > 1 {
				again <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return &sinks.BatchError{Failed: map[int]error{i: errors.New("500")}}
		})
		w := start(t, s, r, func(c *Config) { // one batch: the other objects of it are accepted
			c.Delivery = sinks.Delivery{MaxEvents: 50, Concurrency: 1, MaxWait: 10 * time.Millisecond}
		})
		<-again
		synctest.Wait()
		if got, err := w.Skip(t.Context(), s.sequence(10)); !errors.Is(err, ErrInFlight) {
			t.Errorf("skipped %+v, %v", got, err)
		}
		w.stop()
	})
}

// A skip without a sequence takes the event that has been failing for the longest time.
func TestSkipTheOldest(t *testing.T) {
	for _, order := range [][]int{{4, 7}, {7, 4}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			r := newReceiver(t, func(_ context.Context, batch []change) error {
				failed := map[int]error{}
				for i, c := range batch {
					if c.Object == 4 || c.Object == 7 {
						failed[i] = errors.New("500")
					}
				}
				if len(failed) > 0 {
					return &sinks.BatchError{Failed: failed}
				}
				return nil
			})
			w := start(t, s, r, nil)
			defer w.stop()
			for _, object := range order {
				s.add(numbered(1, 1, object)...)
				time.Sleep(time.Minute)
			}
			if got, err := w.Skip(t.Context(), 0); err != nil || got.ID != fmt.Sprintf("%d/1", order[0]) {
				t.Errorf("%v: skipped %+v, %v", order, got, err)
			}
		})
	}
}

// While no object fails on its own, a skip takes the first event of all lanes.
func TestSkipTheFirst(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2, 3}, {1, 0, 3, 2}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStorage(t)
			defer s.close()
			s.add(numbered(1, order...)...)
			r := newReceiver(t, func(context.Context, []change) error { return errors.New("down") })
			w := start(t, s, r, func(c *Config) { c.Delivery = sinks.Delivery{MaxEvents: 10, MaxBytes: 1 << 20, Concurrency: 2} })
			defer w.stop()
			synctest.Wait() // the first writes, of two events each, have failed
			if got, err := w.Skip(t.Context(), 0); err != nil || got.Sequence != s.sequence(1) {
				t.Errorf("%v: skipped %+v, %v", order, got, err)
			}
		})
	}
}

// A skip does not take another event for one that is being written again: one that was
// never tried, the object's next or a replay of the same, or one that fails since later.
func TestSkipWhileTheFailingIsWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		failing []change // one after the other; the first is being written
		behind  []change
		replay  bool
		by      uint64 // the sequence of the skip
	}{
		"before an event of another object": {failing: numbered(1, 1), behind: numbered(1, 2)},
		"before the next one of its object": {failing: numbered(1, 1), behind: []change{{Object: 1, N: 2}}},
		"before one that fails since later": {failing: numbered(1, 1, 2)},
		"before a replay of it":             {failing: numbered(1, 1), replay: true, by: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				attempts := map[change]int{}
				again := make(chan struct{}, 1)
				r := newReceiver(t, func(ctx context.Context, batch []change) error {
					c := batch[0]
					if attempts[c]++; c == tc.failing[0] && attempts[tc.failing[len(tc.failing)-1]] > 0 && attempts[c] > 1 {
						again <- struct{}{}
						<-ctx.Done()
						return ctx.Err()
					}
					return errors.New("500")
				})
				w := start(t, s, r, func(c *Config) { c.Delivery = sinks.Delivery{MaxEvents: 1, Concurrency: 1} })
				for _, c := range tc.failing {
					s.add(c)
					synctest.Wait()
				}
				<-again
				if tc.replay {
					if _, err := s.store.Replay(t.Context(), sinkName, store.ReplayRange{}, func(*store.Item) (store.Selected, bool, error) {
						return store.Selected{}, true, nil
					}); err != nil {
						t.Error(err)
					}
				}
				s.add(tc.behind...)
				synctest.Wait()
				sequence := tc.by
				if sequence > 0 {
					sequence = s.sequence(sequence)
				}
				if got, err := w.Skip(t.Context(), sequence); !errors.Is(err, ErrInFlight) {
					t.Errorf("skipped %+v, %v", got, err)
				}
				w.stop()
			})
		})
	}
}

// While no object fails on its own and the first event of the queue is being written, a
// skip takes none behind it.
func TestSkipDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1, 2)...)
		r := newReceiver(t, func(ctx context.Context, batch []change) error {
			if len(batch) > 1 {
				return errors.New("down")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		w := start(t, s, r, func(c *Config) { c.Delivery = sinks.Delivery{MaxEvents: 10, MaxBytes: 1 << 20, Concurrency: 1} })
		defer w.stop()
		time.Sleep(time.Minute)
		if got, err := w.Skip(t.Context(), 0); !errors.Is(err, ErrInFlight) {
			t.Errorf("skipped %+v, %v", got, err)
		}
	})
}

// A skip of a sink that cannot be opened is answered at once: while its worker waits for the
// next attempt, during one, and when the worker has ended.
func TestSkipBeforeTheSinkIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, 1)...)
		var opening atomic.Int64 // how long an attempt takes
		w := start(t, s, newReceiver(t, accept), func(c *Config) {
			c.Open = func(ctx context.Context) (sinks.Sink, error) {
				time.Sleep(time.Duration(opening.Load()))
				return nil, sinks.Pause(errors.New("no such secret"))
			}
		})
		skip := func(when string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := w.Skip(ctx, 0); !errors.Is(err, ErrNotDelivering) {
				t.Errorf("%s: %v", when, err)
			}
		}
		time.Sleep(time.Minute)
		skip("between two attempts")
		opening.Store(int64(time.Hour))
		w.Retry()
		synctest.Wait()
		skip("during an attempt")
		time.Sleep(2 * time.Hour)
		w.stop()
		skip("after the end")
		<-w.Closed() // of the last attempt
	})
}

// full is a queue whose dead letters may be full.
type full struct {
	Queue

	is bool
}

func (f *full) DeadLetter(position uint64, l store.Letter) error {
	if f.is {
		return store.ErrDeadLettersFull
	}
	return f.Queue.DeadLetter(position, l)
}

// A sink pauses when there is no room for its dead letters, and loses nothing.
func TestDeadLettersAreFull(t *testing.T) {
	for name, bad := range map[string]change{
		"refused":     {Object: 3, N: 1},
		"undecodable": {Object: 3, N: 1, Bad: true},
	} {
		for _, d := range deliveries {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStorage(t)
					defer s.close()
					s.add(numbered(1, 1, 2)...)
					s.add(bad)
					s.add(numbered(2, 4, 5)...)
					q := &full{Queue: s.queue, is: true}
					r := newReceiver(t, failOne(bad, sinks.Poison(errors.New("422"))))
					w := start(t, s, r, func(c *Config) { c.Queue, c.Delivery = q, d })
					defer w.stop()
					paused := false
					for range 60 {
						time.Sleep(time.Second)
						st := w.Status()
						paused = paused || st.State == Paused && strings.Contains(st.Reason, store.ErrDeadLettersFull.Error())
					}
					if n := len(s.letters()); !paused || n != 0 {
						t.Errorf("paused: %v, %d dead letters", paused, n)
					}
					if _, err := w.Skip(t.Context(), s.sequence(3)); !errors.Is(err, store.ErrDeadLettersFull) {
						t.Errorf("skipped: %v", err)
					}
					q.is = false
					w.Resume()
					time.Sleep(time.Hour)
					if got, n := len(r.got()), len(s.letters()); got != 6 || n != 1 {
						t.Errorf("%d events arrived, %d dead letters; %+v", got, n, w.Status())
					}
					r.checkOrder()
				})
			})
		}
	}
}
