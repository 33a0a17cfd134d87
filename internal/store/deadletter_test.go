package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestDeadLettersAreBounded fills the share of dead letters: the next one stays in
// the queue until there is room, over a restart too.
func TestDeadLettersAreBounded(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, firstSequence: 1, MaxBytes: 100_000} // a tenth of it
	s := openTest(t, "store", o)
	q, other := ensure(t, s, "a"), ensure(t, s, "b")
	minutes(t, s, 0, 12, 1000, "a", "b")
	set := func(q *Queue, from, to uint64) error {
		for p := from; p <= to; p++ {
			if err := q.DeadLetter(p, Letter{Reason: "refused", Time: testEpoch}); err != nil {
				return err
			}
		}
		return nil
	}
	read(t, q, 0, 100)
	read(t, other, 0, 100)
	if err := errors.Join(set(q, 1, 6), set(other, 1, 4)); err != nil {
		t.Fatal(err)
	}
	if err := set(q, 7, 7); !errors.Is(err, ErrDeadLettersFull) {
		t.Fatalf("got %v", err)
	}
	if st := q.Stats(); st.Length != 6 || st.DeadLetters != 6 || st.DeadLetterBytes != 6000 {
		t.Errorf("stats %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", o)
	q, other = ensure(t, s, "a"), ensure(t, s, "b")
	read(t, q, 0, 100)
	if err := set(q, 7, 7); !errors.Is(err, ErrDeadLettersFull) {
		t.Fatalf("reopened: %v", err)
	}
	if n, err := other.DropDeadLetters(1, 2); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if err := set(q, 7, 7); err != nil {
		t.Errorf("after a drop: %v", err)
	}
	if err := s.PurgeSink("b"); err != nil {
		t.Fatal(err)
	}
	if err := set(q, 8, 10); err != nil {
		t.Errorf("after a purge: %v", err)
	}
	if err := set(q, 11, 11); !errors.Is(err, ErrDeadLettersFull) {
		t.Errorf("full again: %v", err)
	}
}

// TestDeadLettersOfAnotherSink has one sink's dead letters take what they can: they leave another one its part, and a sink
// without dead letters room for one of any size.
func TestDeadLettersOfAnotherSink(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1, DeadLetterMaxBytes: 10_000})
	q, other, late := ensure(t, s, "a"), ensure(t, s, "b"), ensure(t, s, "c")
	minutes(t, s, 0, 20, 1000, "a", "b")
	minutes(t, s, 20, 1, 20_000, "c")
	fill := func(q *Queue) (n int64) {
		for _, it := range read(t, q, 0, 100) {
			switch err := q.DeadLetter(it.Position, Letter{Reason: "refused", Time: testEpoch}); {
			case err == nil:
				n++
			case !errors.Is(err, ErrDeadLettersFull):
				t.Fatal(err)
			}
		}
		if st := q.Stats(); st.DeadLetters != n {
			t.Errorf("%d letters, %+v", n, st)
		}
		return n
	}
	if n := fill(q); n != 6 {
		t.Errorf("the first sink has %d dead letters, want 6 of 10", n)
	}
	if n := fill(other); n != 2 {
		t.Errorf("the other has %d dead letters, want 2", n)
	}
	if n := fill(late); n != 1 {
		t.Errorf("the last one has %d dead letters, want the one", n)
	}
}

// TestDeadLettersInParts lists and retries dead letters that are large: not all of them at once.
func TestDeadLettersInParts(t *testing.T) {
	const n = 4
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, n, readLogBytes/2, "a")
	for p := range uint64(n) {
		read(t, q, p, 1)
		if err := q.DeadLetter(p+1, Letter{Reason: "refused", Time: testEpoch}); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	for after := uint64(0); ; {
		letters, err := q.DeadLetters(after, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(letters) == 0 {
			break
		}
		if len(letters) > 2 {
			t.Errorf("%d letters at once", len(letters))
		}
		seen += len(letters)
		after = letters[len(letters)-1].Position
	}
	if seen != n {
		t.Errorf("%d letters, want %d", seen, n)
	}
	before := testutil.ToFloat64(s.metrics.commits)
	if retried, err := q.RetryDeadLetters(0, 1, 2, 3, 4); retried != n || err != nil {
		t.Errorf("%d retried, %v", retried, err)
	}
	if commits := testutil.ToFloat64(s.metrics.commits) - before; commits != n/2 {
		t.Errorf("%v commits", commits)
	}
}

func TestDeadLettersExpire(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 10, 10, "a")
	read(t, q, 0, 100)
	day := func(n int) time.Time { return testEpoch.AddDate(0, 0, n) }
	for i, d := range []int{3, 1, 2, 9, 4} { // an old entry may be set aside late
		if err := q.DeadLetter(uint64(i+1), Letter{Reason: "refused", Time: day(d)}); err != nil {
			t.Fatal(err)
		}
	}
	if st := q.Stats(); !st.DeadLetterOldest.Equal(day(1)) {
		t.Errorf("stats %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q = ensure(t, s, "a")
	for _, c := range []struct{ now, maxAge, left, oldest int }{
		{100, 0, 5, 1}, {5, 7, 5, 1}, {10, 7, 3, 3}, {10, 7, 3, 3}, {13, 5, 1, 9}, {30, 5, 0, 0},
	} {
		if err := q.expireLetters(t.Context(), day(c.now), time.Duration(c.maxAge)*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		st := q.Stats()
		if st.DeadLetters != int64(c.left) || (c.left > 0 && !st.DeadLetterOldest.Equal(day(c.oldest))) || st.DeadLetterOldest.IsZero() != (c.left == 0) {
			t.Errorf("%+v: %+v", c, st)
		}
	}
	if n := testutil.ToFloat64(s.metrics.expired); n != 5 {
		t.Errorf("%v counted", n)
	}
}

// TestRunExpiresDeadLetters leaves it to Run.
func TestRunExpiresDeadLetters(t *testing.T) {
	s := openTest(t, "store", Options{
		FS: vfs.NewMem(), firstSequence: 1, DeadLetterMaxAge: time.Hour,
		Now: func() time.Time { return testEpoch.Add(2 * time.Hour) },
	})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 2, 10, "a")
	read(t, q, 0, 10)
	for i, at := range []time.Time{testEpoch, testEpoch.Add(90 * time.Minute)} {
		if err := q.DeadLetter(uint64(i+1), Letter{Reason: "refused", Time: at}); err != nil {
			t.Fatal(err)
		}
	}
	running(t, s)
	eventually(t, "the old one is gone", func() bool { return q.Stats().DeadLetters == 1 })
	if letters, err := q.DeadLetters(0, 10); err != nil || len(letters) != 1 || letters[0].Position != 2 {
		t.Errorf("%+v, %v", letters, err)
	}
}

// TestPurgedSink wants nothing of a purged sink to come back under its number, not
// even what somebody who still holds its queue adds.
func TestPurgedSink(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	appendN(t, s, 3, "a")
	read(t, q, 0, 10)
	if err := q.DeadLetter(1, Letter{Reason: "refused", Time: testEpoch}); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeSink("a"); err != nil {
		t.Fatal(err)
	}
	if n, err := q.RetryDeadLetters(1); n != 0 || err != nil {
		t.Errorf("retried %d, %v", n, err)
	}
	b := s.NewBatch()
	b.hold()
	b.enqueue(q, b.position(), &layout.Entry{Kind: layout.EntryInline})
	if err := s.Commit(b); !errors.Is(err, ErrUnknownSink) {
		t.Errorf("an entry for a purged sink: %v", err)
	}
	if err := errors.Join(q.Ack(2), q.DeadLetter(3, Letter{})); err != nil {
		t.Error(err)
	}
	if _, moved, err := q.detach(); moved || err != nil {
		t.Errorf("detached: %v", err)
	}
	// What was begun before the purge and takes the queue afterwards.
	if err := s.setMembership(q, membership{state: memberLeft, time: testEpoch}); !errors.Is(err, ErrUnknownSink) {
		t.Errorf("a purged sink leaves: %v", err)
	}
	if err := q.PutNote([]byte("note")); err != nil {
		t.Errorf("a note of a purged sink: %v", err)
	}
	if _, ok, err := q.Note(); ok || err != nil {
		t.Errorf("a note is left: %v", err)
	}
	if _, err := q.skipDamage(1, q.tail, layout.ErrMalformed); err != nil {
		t.Error(err)
	}
	if st := q.Stats(); st.Length != 0 || st.DeadLetters != 0 {
		t.Errorf("stats %+v", st)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
			t.Errorf("%v %q", err, report.Problems)
		}
		s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
		if s.sinks.get("a") != nil {
			t.Error("the purged sink is back")
		}
		next := ensure(t, s, fmt.Sprint("b", strings.Repeat("b", len(s.Sinks()))))
		if next.id <= q.id || next.Stats().Length != 0 {
			t.Errorf("number %d after %d, stats %+v", next.id, q.id, next.Stats())
		}
		q = next
	}
}
