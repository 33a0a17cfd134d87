package store

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestClockFarAhead has the clock a year ahead for a while, also when the store is opened: neither records nor dead
// letters expire, which they do when it stays there.
func TestClockFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		o := Options{
			FS: vfs.NewMem(), DeadLetterMaxAge: time.Hour * 24, RetentionMaxAge: time.Hour * 24, firstSequence: 1,
			Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
		}
		jump := func(d time.Duration) { ahead.Store(int64(d)) }
		const year = 365 * 24 * time.Hour
		s := openTest(t, "store", o)
		q := ensure(t, s, "a")
		for range 3 { // segments
			b := s.NewBatch()
			b.Append(Record{Time: o.Now(), Payload: []byte("x")}, []Route{{Sink: "a"}})
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * segmentAge)
		}
		read(t, q, 0, 10)
		for position := range uint64(3) {
			if err := q.DeadLetter(position+1, Letter{Reason: "refused", Time: o.Now()}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(when string, letters, records int64) {
			t.Helper()
			if l, r := q.Stats().DeadLetters, s.LogStats().Records; l != letters || r != records {
				t.Errorf("%s: %d dead letters and %d records, want %d and %d", when, l, r, letters, records)
			}
		}
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			return func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}
		stop := run()
		time.Sleep(time.Minute)
		jump(year)
		time.Sleep(agePatience / 2)
		expect("the clock is ahead", 3, 3)
		jump(0)
		time.Sleep(time.Minute)
		stop()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		jump(year)
		s = openTest(t, "store", o)
		q = ensure(t, s, "a")
		stop = run()
		defer stop()
		time.Sleep(agePatience / 2)
		expect("opened while the clock is ahead", 3, 3)
		jump(0)
		time.Sleep(time.Minute)
		jump(year)
		time.Sleep(agePatience - time.Minute)
		expect("it is ahead again", 3, 3)
		time.Sleep(2 * time.Minute)
		expect("it stays ahead", 0, 1)
	})
}
