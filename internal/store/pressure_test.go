package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestWhatLeavesMakesRoom fills a store with entries that carry their payloads, or with dead letters, until ingest
// pauses, and acknowledges or drops them. Ingest resumes, although nothing is written any more that would push the
// deletions down.
func TestWhatLeavesMakesRoom(t *testing.T) {
	all := func(t *testing.T, q *Queue, f func(Item) error) {
		t.Helper()
		for after, items := uint64(0), read(t, q, 0, 100); len(items) > 0; items = read(t, q, after, 100) {
			for _, item := range items {
				after = item.Position
				if err := f(item); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	ack := func(q *Queue) func(Item) error { return func(item Item) error { return q.Ack(item.Position) } }
	for _, tc := range []struct {
		name         string
		meet, settle func(*testing.T, *Queue) // each of its entries, and all in the end
	}{
		{"entries", func(*testing.T, *Queue) {}, func(t *testing.T, q *Queue) { all(t, q, ack(q)) }},
		{"dead letters", func(t *testing.T, q *Queue) {
			all(t, q, func(item Item) error {
				return q.DeadLetter(item.Position, Letter{Reason: "r", First: testEpoch, Time: testEpoch})
			})
		}, func(t *testing.T, q *Queue) {
			for letters, err := q.DeadLetters(0, 10); len(letters) > 0; letters, err = q.DeadLetters(0, 10) {
				for _, l := range letters {
					if _, dropErr := q.DropDeadLetters(l.Position); errors.Join(err, dropErr) != nil {
						t.Fatal(err, dropErr)
					}
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openTest(t, "store", Options{
					FS: vfs.NewMem(), firstSequence: 1, Now: func() time.Time { return testEpoch }, MaxBytes: 16 << 20, RetentionMaxBytes: 1 << 20, DeadLetterMaxBytes: 16 << 20,
				})
				q, live := ensure(t, s, "dead"), ensure(t, s, "live")
				stop := runStore(t, s)
				defer stop()
				paused := func() bool {
					time.Sleep(time.Minute)
					synctest.Wait()
					return s.Health().Paused
				}
				for n := 0; !s.Health().Paused || !paused(); n++ {
					b := s.NewBatch()
					routes := []Route{{Sink: "live"}}
					if n%2 == 0 {
						routes = append(routes, Route{Sink: "dead"})
					}
					b.Append(Record{Time: testEpoch, Payload: append([]byte(fmt.Sprint(n, ":")), noise(64<<10)...)}, routes)
					if err := s.Commit(b); err != nil {
						t.Fatal(err)
					}
					tc.meet(t, q)
					all(t, live, ack(live))
					if n > 1000 {
						t.Fatal("ingest never pauses")
					}
				}
				tc.settle(t, q)
				if paused() {
					t.Errorf("with nothing to deliver: %+v, log %+v", s.Health(), s.LogStats())
				}
			})
		})
	}
}

// TestReplayInAFullStore replays a log whose beginning has to be deleted before there is
// room again.
func TestReplayInAFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1, Now: func() time.Time { return testEpoch }, MaxBytes: 16 << 20})
		ensure(t, s, "a")
		for s.Health().Bytes < 15<<20 {
			b := s.NewBatch()
			b.Append(Record{Time: testEpoch, Payload: noise(64 << 10)}, nil)
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		replayed := make(chan int, 1)
		go func() {
			n, err := s.Replay(ctx, "a", ReplayRange{}, always(0))
			if err != nil {
				t.Error(err)
			}
			replayed <- n
		}()
		synctest.Wait()
		stop := runStore(t, s)
		defer stop()
		if n, records := <-replayed, s.LogStats().Records; n == 0 || int64(n) != records {
			t.Errorf("%d records were replayed of %d; %+v", n, records, s.Health())
		}
	})
}

// TestReclaimOfQueues acknowledges entries that carry their payloads, in a store whose log
// has nothing to reclaim. Their space is free disk afterwards.
func TestReclaimOfQueues(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 50, 64<<10, "a")
	relieveAll(t, s, q)
	lower, upper := layout.PrefixRange(layout.PrefixQueue)
	size := func() uint64 {
		t.Helper()
		n, err := s.db.EstimateDiskUsage(lower, upper)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
		t.Fatal(err)
	}
	before := size()
	for _, item := range read(t, q, 0, 100) {
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.reclaim(t.Context(), 1, reclaimable{log: 1, queues: true}); err != nil {
		t.Fatal(err)
	}
	if after := size(); before < 3<<20 || after > before/10 {
		t.Errorf("queues take %d bytes with nothing to deliver, of %d", after, before)
	}
}
