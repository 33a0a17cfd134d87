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
		"by count":          {sinks.Delivery{MaxEvents: 4}, sinks.Limits{}, numbered(1, upTo(10)...), "[4 4 2]"},
		"by bytes":          {sinks.Delivery{MaxEvents: 100, MaxBytes: 20_500}, sinks.Limits{}, large, "[2 2 2]"},
		"one above bytes":   {sinks.Delivery{MaxEvents: 100, MaxBytes: 10}, sinks.Limits{}, large[:2], "[1 1]"},
		"by the sink":       {sinks.Delivery{MaxEvents: 100}, sinks.Limits{MaxBatch: 3}, numbered(1, upTo(7)...), "[3 3 1]"},
		"several an object": {sinks.Delivery{MaxEvents: 100}, sinks.Limits{}, numbered(3, 1, 2, 3), "[9]"},
		"without a setting": {sinks.Delivery{}, sinks.Limits{}, numbered(1, upTo(3)...), "[1 1 1]"},
		"of one hot object": {sinks.Delivery{MaxEvents: 4}, sinks.Limits{}, numbered(10, 1), "[4 4 2]"},
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

// A batch that cannot grow, since the events read ahead have filled their memory, does not wait.
func TestFullMemoryEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		r := newReceiver(t, accept)
		changes := numbered(1, upTo(400)...)
		for i := range changes {
			changes[i].Pad = strings.Repeat("x", 20_000)
		}
		s.add(changes...)
		begin := time.Now()
		w := start(t, s, r, func(c *Config) {
			c.Delivery = sinks.Delivery{MaxEvents: 10_000, MaxBytes: 1 << 30, MaxWait: time.Hour, Concurrency: 1}
		})
		defer w.stop()
		synctest.Wait()
		if log := r.log(); len(log) != 1 || len(log[0].batch) < readAheadBytes/21_000 || len(log[0].batch) == 400 || log[0].at.Sub(begin) != 0 {
			t.Fatalf("writes %v before the wait ends", sizes(log))
		}
		time.Sleep(2 * time.Hour)
		written := 0
		for _, w := range r.log() {
			written += len(w.batch)
		}
		if written != 400 {
			t.Errorf("writes %v", sizes(r.log()))
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
		const events = 6000
		s.add(numbered(events, 1)...)
		s.add(numbered(10, upTo(50)[2:]...)...)
		begin := time.Now()
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			time.Sleep(time.Millisecond)
			for i, c := range batch {
				if c.Object == 1 && time.Since(begin) < 10*time.Minute {
					return upToFailure(batch, i, errors.New("partition without a leader"))
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
		// Its events come in batches when it recovers. Others don't wait for that.
		for s.queue.Stats().Length == events {
			time.Sleep(time.Millisecond)
		}
		before := len(r.log())
		s.add(numbered(11, upTo(50)[2:]...)[480:]...)
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		others := 0
		for _, c := range r.got() {
			if c.Object != 1 {
				others++
			}
		}
		if left := s.queue.Stats().Length; others != 528 || left < events/2 {
			t.Errorf("%d events of other objects arrived, want 528, with %d events left", others, left)
		}
		for s.queue.Stats().Length > 0 {
			time.Sleep(time.Second)
		}
		if got := len(r.got()); got != 528+events {
			t.Errorf("%d events arrived in the end, want %d", got, 528+events)
		}
		r.checkOrder()
		if n := len(r.log()) - before; n > events/20+10 {
			t.Errorf("it took %d writes", n)
		}
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
		seen := map[change]int{}
		for _, wr := range r.log() {
			for _, c := range wr.batch {
				seen[c]++
			}
		}
		if n := seen[change{Object: 0, N: 1}]; n < 3 {
			t.Errorf("an event of two reports that make no sense was written %d times, want it again after each", n)
		}
		if n := s.queue.Stats().Length; len(seen) != 18 || n != 0 || len(s.letters()) != 0 {
			t.Errorf("%d different events were written, %d are left", len(seen), n)
		}
	})
}

// A BatchError that is joined with another error says nothing of the events that it does not name.
func TestJoinedBatchError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(4)...)...)
		failed := &sinks.BatchError{Failed: map[int]error{0: errors.New("refused")}}
		r := newReceiver(t, accept)
		var mended atomic.Bool
		w := start(t, s, r, func(c *Config) {
			c.Delivery.MaxEvents = 4
			c.Open = func(context.Context) (sinks.Sink, error) {
				return &answering{r, errors.Join(failed, errors.New("the connection broke before the rest was sent")), &mended}, nil
			}
		})
		defer w.stop()
		synctest.Wait()
		if n := s.queue.Stats().Length; n != 4 {
			t.Errorf("%d of 4 events are left in the queue", n)
		}
		mended.Store(true)
		time.Sleep(time.Minute)
		if got := len(r.got()); got != 4 {
			t.Errorf("%d of 4 events arrived", got)
		}
	})
}

// Traffic that never ends does not keep an event from its next try.
func TestRetriesAreNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		failed := false
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			time.Sleep(10 * time.Millisecond)
			for i, c := range batch {
				if c.Object == 1 && !failed {
					failed = true
					return &sinks.BatchError{Failed: map[int]error{i: errors.New("not now")}}
				}
			}
			return nil
		})
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 2 })
		defer w.stop()
		for n := range 20 {
			s.add(numbered(n+1, upTo(60)...)[n*60:]...) // more than the sink takes
			time.Sleep(100 * time.Millisecond)
		}
		accepted := false
		for _, c := range r.got() {
			accepted = accepted || c == change{Object: 1, N: 1}
		}
		if left := s.queue.Stats().Length; !accepted || left < 200 {
			t.Errorf("accepted: %v, with %d events left", accepted, left)
		}
	})
}

// The search for the refused event of a batch comes to its end beside traffic that never does: what
// is accepted of one source does not make the batches of another large again.
func TestSearchBesideTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		bad, failed := change{Object: 1, N: 10}, false
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			time.Sleep(10 * time.Millisecond)
			if !failed {
				failed = true
				return &sinks.BatchError{Failed: map[int]error{0: errors.New("not now")}}
			}
			if slices.Contains(batch, bad) {
				return sinks.Poison(errors.New("400"))
			}
			return nil
		})
		s.add(numbered(1, upTo(9)[1:]...)...)
		s.add(numbered(20, 1)[1:]...)
		s.add(numbered(150, upTo(70)[10:]...)...)
		w := start(t, s, r, func(c *Config) { c.Delivery.MaxEvents = 8 })
		defer w.stop()
		time.Sleep(8 * time.Second)
		of := slices.DeleteFunc(r.got(), func(c change) bool { return c.Object != 1 })
		if left := s.queue.Stats().Length; len(of) != 19 || len(s.letters()) != 1 || left < 200 {
			t.Errorf("%d of 19 events of the object are accepted, %d letters, with %d events left", len(of), len(s.letters()), left)
		}
		r.checkOrder()
	})
}

// A refused event goes alone, also when others wait for a retry with it.
func TestRefusedEventsGoAlone(t *testing.T) {
	s := newStorage(t)
	defer s.close()
	cfg := Config{Queue: s.queue, Delivery: sinks.Delivery{MaxEvents: 10}}
	cfg.setDefaults()
	m, err := newMetrics(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(&cfg, new(atomic.Bool), newReceiver(t, accept), m, newLimitedLogger(cfg.Logger), newNote(s.queue, ""))
	l, now := e.lanes[0], time.Now()
	for i, alone := range []bool{true, false, false, true} {
		ev, err := decodeChange(store.Item{Payload: fmt.Appendf(nil, `{"object":%d}`, i)})
		if err != nil {
			t.Fatal(err)
		}
		l.detached.add(&entry{event: ev, item: store.Item{Lane: uint64(i)}}, now.Add(time.Duration(i)-10), alone, 0)
	}
	for i, want := range []int{1, 2, 1, 0} {
		if err := e.form(l, now, 100, []source{ordinary, free, due}); err != nil || len(l.batch.entries) != want {
			t.Errorf("batch %d has %d events, want %d (%v)", i, len(l.batch.entries), want, err)
		}
	}
}

// counted counts what is read of a queue.
type counted struct {
	Queue

	items, bytes atomic.Int64
}

func (c *counted) Read(after uint64, max, maxBytes int) ([]store.Item, error) {
	items, err := c.Queue.Read(after, max, maxBytes)
	for _, it := range items {
		c.items.Add(1)
		c.bytes.Add(int64(len(it.Payload)))
	}
	return items, err
}

func TestReadingAheadIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		events, pad         int
		mostItems, mostRead int64
	}{
		"items": {20_000, 0, 1024 + 3*readItems, 1 << 20},
		"bytes": {300, 100_000, 300, readAheadBytes + 3*(readBytes+200_000)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorage(t)
				defer s.close()
				backlog := numbered(c.events/100, upTo(100)...)
				for i := range backlog {
					backlog[i].Pad = strings.Repeat("x", c.pad)
				}
				s.add(backlog...)
				r := newReceiver(t, func(context.Context, []change) error { return sinks.Pause(errors.New("401")) })
				q := &counted{Queue: s.queue}
				w := start(t, s, r, func(cfg *Config) { cfg.Queue = q })
				synctest.Wait()
				w.stop()
				if items, bytes := q.items.Load(), q.bytes.Load(); items > c.mostItems || bytes > c.mostRead {
					t.Errorf("a paused sink has %d events, %d bytes read ahead", items, bytes)
				}
			})
		})
	}
	e := &engine{cfg: &Config{}, away: map[uint64]*entry{}}
	for i := range uint64(maxSetAside) {
		e.away[i] = nil
	}
	if !e.full() {
		t.Error("events set aside are not bounded")
	}
}

// countedReads is a queue that counts the reads of its items.
type countedReads struct {
	Queue

	reads atomic.Int64
}

func (q *countedReads) Read(after uint64, most, maxBytes int) ([]store.Item, error) {
	q.reads.Add(1)
	return q.Queue.Read(after, most, maxBytes)
}

// TestBacklogIsReadInSpans: what stands behind failed events, as after a long outage, is
// read again and written many events at a time.
func TestBacklogIsReadInSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		const objects, changes = 500, 20
		s.add(numbered(changes, upTo(objects)...)...)
		var mended atomic.Bool
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			failed := map[int]error{}
			for i := range batch {
				if i > 0 || len(batch) == 1 {
					failed[i] = errors.New("500")
				}
			}
			if mended.Load() {
				return nil
			}
			return &sinks.BatchError{Failed: failed}
		})
		q := &countedReads{Queue: s.queue}
		w := start(t, s, r, func(c *Config) {
			c.Queue, c.Delivery.MaxEvents = q, 500
			c.Retry.Initial, c.Retry.Max = 50*time.Millisecond, 200*time.Millisecond
		})
		defer w.stop()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		left := w.Status().Queue.Length
		if left < objects*changes/2 || 20*w.Status().Blocked < 19*int(left) {
			t.Fatalf("status %+v", w.Status())
		}
		reads, writes := q.reads.Load(), len(r.log())
		mended.Store(true)
		w.Resume()
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := w.Status(); st.Queue.Length > 0 {
			t.Errorf("status %+v", st)
		}
		if reads, writes := q.reads.Load()-reads, len(r.log())-writes; reads > left/20 || int64(writes) > left/20 {
			t.Errorf("%d events took %d reads and %d writes", left, reads, writes)
		}
		r.checkOrder()
	})
}
