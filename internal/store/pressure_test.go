package store

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestAcknowledgedEntriesMakeRoom fills a store with entries that carry their payloads
// until ingest pauses, and acknowledges them. Ingest resumes, although nothing is written
// any more that would push the deletions down.
func TestAcknowledgedEntriesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{MaxBytes: 16 << 20, RetentionMaxBytes: 1 << 20}
		s := openTest(t, "store", Options{
			FS: vfs.NewMem(), firstSequence: 1, Now: func() time.Time { return testEpoch }, MaxBytes: limits.MaxBytes, RetentionMaxBytes: limits.RetentionMaxBytes,
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
			for _, item := range read(t, live, 0, 100) {
				if err := live.Ack(item.Position); err != nil {
					t.Fatal(err)
				}
			}
			if n > 1000 {
				t.Fatal("ingest never pauses")
			}
		}
		for after, items := uint64(0), read(t, q, 0, 100); len(items) > 0; items = read(t, q, after, 100) {
			for _, item := range items {
				after = item.Position
				if err := q.Ack(after); err != nil {
					t.Fatal(err)
				}
			}
		}
		if paused() {
			t.Errorf("with nothing to deliver: %+v, log %+v", s.Health(), s.LogStats())
		}
	})
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
			n, err := s.Replay(ctx, "a", ReplayRange{}, 0)
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
