package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func sizes(writes []write) []int {
	var ns []int
	for _, w := range writes {
		ns = append(ns, len(w.batch))
	}
	return ns
}

func TestBatchesAreFilled(t *testing.T) {
	pad := strings.Repeat("x", 9_000)
	large := numbered(1, upTo(6)...)
	for i := range large {
		large[i].Pad = pad
	}
	for name, c := range map[string]struct {
		delivery sinks.Delivery
		limits   sinks.Limits
		changes  []change
		want     string
	}{
		"by count":            {sinks.Delivery{MaxEvents: 4}, sinks.Limits{}, numbered(1, upTo(10)...), "[4 4 2]"},
		"by bytes":            {sinks.Delivery{MaxEvents: 100, MaxBytes: 20_500}, sinks.Limits{}, large, "[2 2 2]"},
		"one above bytes":     {sinks.Delivery{MaxEvents: 100, MaxBytes: 10}, sinks.Limits{}, large[:2], "[1 1]"},
		"by the sink":         {sinks.Delivery{MaxEvents: 100}, sinks.Limits{MaxBatch: 3}, numbered(1, upTo(7)...), "[3 3 1]"},
		"one an object":       {sinks.Delivery{MaxEvents: 100}, sinks.Limits{}, numbered(3, 1, 2, 3), "[3 3 3]"},
		"around one object":   {sinks.Delivery{MaxEvents: 4}, sinks.Limits{}, append(numbered(3, 1), numbered(1, 2, 3, 4)...), "[4 1 1]"},
		"without a setting":   {sinks.Delivery{}, sinks.Limits{}, numbered(1, upTo(3)...), "[1 1 1]"},
		"one slow hot object": {sinks.Delivery{MaxEvents: 100}, sinks.Limits{}, numbered(5, 1), "[1 1 1 1 1]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				s.add(c.changes...)
				r := newReceiver(t, accept)
				r.limits = c.limits
				w := start(t, s, r, func(cfg *Config) { cfg.Delivery = c.delivery })
				synctest.Wait()
				w.stop()
				if got := fmt.Sprint(sizes(r.log())); got != c.want {
					t.Errorf("batches of %s, want %s", got, c.want)
				}
				r.checkOrder()
			})
		})
	}
}

func TestIncompleteBatchesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		r := newReceiver(t, accept)
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents, c.Delivery.MaxWait = 5, 200*time.Millisecond })
		defer w.stop()
		begin := time.Now()
		s.add(numbered(1, 1, 2)...)
		time.Sleep(150 * time.Millisecond)
		s.add(change{Object: 3, N: 1})
		time.Sleep(time.Second)
		if log := r.log(); len(log) != 1 || len(log[0].batch) != 3 || log[0].at.Sub(begin) != 200*time.Millisecond {
			t.Fatalf("writes %v, the first after %v", sizes(log), log[0].at.Sub(begin))
		}

		begin = time.Now()
		s.add(numbered(1, upTo(17)[10:]...)...)
		synctest.Wait()
		if log := r.log(); len(log) != 2 || len(log[1].batch) != 5 || log[1].at.Sub(begin) != 0 {
			t.Fatalf("writes %v: a full batch waited", sizes(log))
		}
		time.Sleep(time.Second)
		if log := r.log(); len(log) != 3 || len(log[2].batch) != 2 || log[2].at.Sub(begin) != 200*time.Millisecond {
			t.Errorf("writes %v", sizes(log))
		}
	})
}

// A later event of an object waits for the result of the earlier one, also with
// lanes to spare; other objects don't.
func TestLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(4, upTo(8)...)...)
		r := newReceiver(t, func(context.Context, []change) error { time.Sleep(time.Second); return nil })
		w := start(t, s, r, func(c *Config) { c.Delivery.Concurrency = 8 })
		defer w.stop()
		time.Sleep(4*time.Second + time.Millisecond)
		if len(r.got()) != 32 || r.peak != 8 {
			t.Errorf("%d events with %d writes at once, want 32 with 8", len(r.got()), r.peak)
		}
		r.checkOrder()
	})
}

// A failing object with many events neither stops others nor fills the memory.
func TestManyEventsBehindOneObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		const events = 20_000
		s.add(numbered(events, 1)...)
		s.add(numbered(10, upTo(50)[2:]...)...)
		begin := time.Now()
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			for i, c := range batch {
				if c.Object == 1 && time.Since(begin) < time.Hour {
					return &sinks.BatchError{Failed: map[int]error{i: errors.New("partition without a leader")}}
				}
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 20 })
		defer w.stop()
		time.Sleep(time.Minute)
		if got := len(r.got()); got != 480 {
			t.Errorf("%d events of other objects arrived, want 480", got)
		}
		if st := w.Status(); st.Blocked != events {
			t.Errorf("%d events are blocked, want %d", st.Blocked, events)
		}
		time.Sleep(time.Hour + 6*time.Minute)
		if got := len(r.got()); got != 480+events {
			t.Errorf("%d events arrived in the end, want %d", got, 480+events)
		}
		r.checkOrder()
	})
}

// A sink that keeps naming bad indices is not believed, and loses nothing.
func TestNonsenseBatchErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(2, upTo(9)...)...)
		r := newReceiver(t, script(
			&sinks.BatchError{Failed: map[int]error{77: errors.New("out of range")}},
			&sinks.BatchError{Failed: map[int]error{-1: sinks.Poison(errors.New("out of range"))}},
			&sinks.BatchError{Failed: map[int]error{0: nil}},
			fmt.Errorf("wrapped: %w", &sinks.BatchError{Failed: map[int]error{0: errors.New("one")}}),
			&sinks.BatchError{},
		))
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 9 })
		defer w.stop()
		time.Sleep(time.Minute)
		seen := map[change]bool{}
		for _, wr := range r.log() {
			for _, c := range wr.batch {
				seen[c] = true
			}
		}
		if n := s.queue.Stats().Length; len(seen) != 18 || n != 0 || len(s.letters()) != 0 {
			t.Errorf("%d different events were written, %d are left", len(seen), n)
		}
	})
}
