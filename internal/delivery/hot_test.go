package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// upToFailure answers as a sink does that stops an object at its first failure:
// the events of that object from the index on are not accepted.
func upToFailure(batch []change, index int, why error) error {
	failed := map[int]error{index: why}
	for i := index + 1; i < len(batch); i++ {
		if batch[i].Object == batch[index].Object {
			failed[i] = sinks.Held(why)
		}
	}
	return &sinks.BatchError{Failed: failed}
}

// An object that has most of the events costs a write a batch and not a write an
// event, also when writes fail half-way.
func TestHotObject(t *testing.T) {
	for name, why := range map[string]error{
		"retried":       errors.New("503"),
		"asked to wait": sinks.RetryAfter(errors.New("429"), time.Second),
		"paused":        sinks.Pause(errors.New("403")),
		"refused":       sinks.Poison(errors.New("400")), // once only
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(1000, 1)...)
				s.add(numbered(20, 2, 3)...)
				failures := 0
				r := newReceiver(t, func(_ context.Context, batch []change) error {
					if len(batch) < 100 || failures == 5 {
						return nil
					}
					failures++
					return upToFailure(batch, 60, why)
				})
				w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 100 })
				defer w.stop()
				time.Sleep(time.Hour)
				r.checkOrder()
				if got, letters := len(r.got()), len(s.letters()); got != 1040 || letters != 0 || failures != 5 {
					t.Errorf("%d events arrived, %d dead letters, %d failures", got, letters, failures)
				}
				if n := len(r.log()); n > 70 {
					t.Errorf("it took %d writes", n)
				}
			})
		})
	}
}

// A refused event in the midst of a hot object's stops those behind it until it is
// a dead letter, and nothing else.
func TestPoisonInAHotObject(t *testing.T) {
	for _, named := range []bool{true, false} {
		t.Run(fmt.Sprintf("named=%v", named), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(numbered(200, 1)...)
				s.add(numbered(5, 2, 3)...)
				bad := change{Object: 1, N: 70}
				r := newReceiver(t, func(_ context.Context, batch []change) error {
					i := slices.Index(batch, bad)
					switch {
					case i < 0:
						return nil
					case named:
						return upToFailure(batch, i, sinks.Poison(errors.New("422")))
					default:
						return sinks.Poison(errors.New("422"))
					}
				})
				w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 100 })
				defer w.stop()
				synctest.Wait()
				if got := len(r.got()); got != 69+10 {
					t.Errorf("%d events arrived at once, want the 69 before the refused one and 10 of others", got)
				}
				if st := w.Status(); st.Blocked != 131 || len(s.letters()) != 0 {
					t.Errorf("status %+v, letters %+v", st, s.letters())
				}
				time.Sleep(time.Minute)
				if got, letters := len(r.got()), s.letters(); got != 209 || len(letters) != 1 || letters[0].Attempts != 3 {
					t.Errorf("%d events arrived, letters %+v", got, letters)
				}
				r.checkOrder()
				if n := len(r.log()); n > 30 {
					t.Errorf("it took %d writes", n)
				}
			})
		})
	}
}

// A sink that accepts events behind a failed one of their object gets them again
// behind it: the last it hears of an object is the object's latest state.
func TestSinkThatOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(5, 1, 2)...)
		r := newReceiver(t, script(&sinks.BatchError{Failed: map[int]error{2: errors.New("not this one")}}))
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 10 })
		defer w.stop()
		time.Sleep(time.Minute)
		const want = "[1/1 2/1 2/2 1/3 2/3 1/4 2/4 1/5 2/5 1/2 1/3 1/4 1/5]"
		if got := fmt.Sprint(r.got()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if st := w.Status(); st.Delivered != 10 {
			t.Errorf("%d events count as delivered, want 10", st.Delivered)
		}
	})
}

// An event of which an earlier run left a schedule waits by it, and never lets an
// earlier one of its object, which a crash brought back, get behind it.
func TestScheduleInAHotObject(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("the first fails=%v", fails), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(append(numbered(1, 2), numbered(4, 1)...)...) // object 1's are at the positions 2 to 5
				note := fmt.Sprintf(`{"version":1,"events":[{"position":3,"tries":1,"next":%q}]}`, time.Now().Add(2*time.Second).Format(time.RFC3339))
				if err := s.queue.PutNote([]byte(note)); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				r := newReceiver(t, func(_ context.Context, batch []change) error {
					if i := slices.Index(batch, change{Object: 1, N: 1}); i >= 0 && fails && time.Since(begin) < 20*time.Second {
						return upToFailure(batch, i, errors.New("not now"))
					}
					return nil
				})
				w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 10 })
				defer w.stop()
				time.Sleep(5 * time.Minute)
				if got := fmt.Sprint(r.got()); got != "[2/1 1/1 1/2 1/3 1/4]" {
					t.Errorf("arrived: %s", got)
				}
			})
		})
	}
}

// A write that is cut short acknowledges what it got done and of each object
// nothing behind what it did not, so that the next run starts there.
func TestHotObjectIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(10, 1, 2)...)
		r := newReceiver(t, func(ctx context.Context, _ []change) error {
			<-ctx.Done()
			return &sinks.BatchError{Failed: map[int]error{6: ctx.Err(), 15: ctx.Err()}} // the fourth of object 1, the eighth of object 2
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.DrainTimeout = 20, time.Second })
		synctest.Wait()
		w.stop()
		s.restart()
		again := newReceiver(t, accept)
		w = start(t, s, again, func(c *Config) { c.Delivery.MaxEvents = 20 })
		synctest.Wait()
		w.stop()
		const want = "[1/4 1/5 1/6 1/7 1/8 2/8 1/9 2/9 1/10 2/10]"
		if got := fmt.Sprint(again.got()); got != want {
			t.Errorf("the next run delivered %s, want %s", got, want)
		}
	})
}
