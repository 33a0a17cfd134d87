package store

import (
	"context"
	"strings"
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
		b := s.NewBatch()
		b.Append(Record{Time: o.Now(), Payload: []byte("x")}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		expect("the clock is ahead", 3, 4)
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
		expect("opened while the clock is ahead", 3, 4)
		jump(0)
		time.Sleep(time.Minute)
		jump(year)
		time.Sleep(agePatience - time.Minute)
		expect("it is ahead again", 3, 4)
		time.Sleep(2 * time.Minute)
		expect("it stays ahead", 0, 2)
	})
}

// TestLettersOfAClockBehind makes a dead letter while the clock is a year behind, as after the start of a machine that has
// none of its own: it is kept as long as any other, and not until the clock is right again.
func TestLettersOfAClockBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var behind atomic.Int64
		o := Options{
			FS: vfs.NewMem(), DeadLetterMaxAge: 24 * time.Hour, firstSequence: 1,
			Now: func() time.Time { return time.Now().Add(-time.Duration(behind.Load())) },
		}
		record := func(s *Store) {
			t.Helper()
			b := s.NewBatch()
			b.Append(Record{Time: o.Now(), Payload: []byte("x")}, []Route{{Sink: "a"}})
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		s := openTest(t, "store", o)
		ensure(t, s, "a")
		for range 3 { // segments
			record(s)
			time.Sleep(2 * segmentAge)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		behind.Store(int64(365 * 24 * time.Hour))
		s = openTest(t, "store", o)
		q := ensure(t, s, "a")
		record(s)
		read(t, q, 0, 10)
		if err := q.DeadLetter(4, Letter{Reason: "refused", First: o.Now(), Time: o.Now()}); err != nil {
			t.Fatal(err)
		}
		running(t, s)
		time.Sleep(time.Minute)
		behind.Store(0)
		time.Sleep(20 * time.Hour)
		if n := q.Stats().DeadLetters; n != 1 {
			t.Errorf("%d dead letters a day after the attempt, want 1", n)
		}
		time.Sleep(5 * time.Hour)
		if n := q.Stats().DeadLetters; n != 0 {
			t.Errorf("%d dead letters are older than is kept", n)
		}
	})
}

// TestAgesOfTheWallClock: a difference of times that have monotonic readings is one of these, in which the wall clock's
// jumps do not show.
func TestAgesOfTheWallClock(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem()})
	for range 2 {
		if got := s.Age(); strings.Contains(got.String(), "m=") {
			t.Errorf("%v has a monotonic reading", got)
		}
	}
	if at := s.ages.believed.wall; strings.Contains(at.String(), "m=") {
		t.Errorf("%v has a monotonic reading", at)
	}
}

// TestTrustedTime: a jump that the log shows is trusted when the log goes on for an hour behind it.
func TestTrustedTime(t *testing.T) {
	for _, tc := range []struct {
		minutes []int // of marks
		want    int
	}{
		{[]int{0}, 0},
		{[]int{0, 50, 100, 150}, 150},
		{[]int{0, 10, 1000}, 10},
		{[]int{0, 10, 1000, 1030, 1059}, 10},
		{[]int{0, 10, 1000, 1030, 1060}, 1060},
		{[]int{0, 1000, 1030, 5000, 5030}, 1030},
	} {
		var m marks
		for _, at := range tc.minutes {
			m = append(m, mark{time: testEpoch.Add(time.Duration(at) * time.Minute)})
		}
		if got := m.trusted().Sub(testEpoch); got != time.Duration(tc.want)*time.Minute {
			t.Errorf("marks at %v min: %v is trusted", tc.minutes, got)
		}
	}
}
