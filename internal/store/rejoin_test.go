package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// payloadsOf are the payloads of what a queue holds, in its order.
func payloadsOf(t *testing.T, q *Queue) (list []string) {
	t.Helper()
	for _, it := range read(t, q, 0, 1000) {
		list = append(list, string(it.Payload))
	}
	return list
}

// A sink that comes back is filled from where it left, also if the store was opened
// again in between, and in the middle of the fill.
func TestSinkLeavesAndComesBack(t *testing.T) {
	dir := t.TempDir()
	step := 0
	again := func(f func(s *Store)) {
		step++
		t.Run(fmt.Sprintf("life %d", step), func(t *testing.T) {
			f(openTest(t, dir, Options{Now: func() time.Time { return testEpoch }}))
		})
	}
	all := always(7)
	var want []string
	first := uint64(0)
	put := func(t *testing.T, s *Store, n int, sinks ...string) {
		for _, sequence := range appendN(t, s, n, sinks...) {
			if first == 0 {
				first = sequence
			}
			want = append(want, fmt.Sprintf("payload %d", sequence))
		}
	}
	again(func(s *Store) {
		ensure(t, s, "sink")
		put(t, s, 3, "sink")
		// An earlier replay has a pin of its own.
		if _, err := s.Replay(t.Context(), "sink", ReplayRange{ToSequence: first}, always(1)); err != nil {
			t.Fatal(err)
		}
		want = append(want, want[0])
		if err := s.LeaveSink("sink"); err != nil {
			t.Fatal(err)
		}
		put(t, s, 3)
	})
	again(func(s *Store) {
		q := ensure(t, s, "sink")
		if _, ok := q.Absence(); ok || q.Filling() {
			t.Error("it is filled before it is back")
		}
		if err := s.LeaveSink("sink"); err != nil { // it has
			t.Fatal(err)
		}
		put(t, s, 2)
		if err := s.RejoinSink("sink", FromNow); err != nil {
			t.Fatal(err)
		}
		a, ok := q.Absence()
		if !ok || a.Lost || !a.Since.Equal(testEpoch) || !q.Filling() {
			t.Errorf("absence %+v, %t", a, ok)
		}
		if n, err := s.Fill(t.Context(), "sink", all); n != 5 || err != nil {
			t.Errorf("%d filled, %v", n, err)
		}
		put(t, s, 1)
	})
	again(func(s *Store) {
		q := ensure(t, s, "sink")
		if err := s.RejoinSink("sink", FromNow); err != nil {
			t.Fatal(err)
		}
		if a, ok := q.Absence(); !ok {
			t.Errorf("absence %+v, %t", a, ok)
		}
		if n, err := s.Fill(t.Context(), "sink", all); n != 1 || err != nil {
			t.Errorf("%d filled, %v", n, err)
		}
		if err := s.Filled("sink"); err != nil {
			t.Fatal(err)
		}
		put(t, s, 1, "sink")
		if got := payloadsOf(t, q); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the queue has\n%q, want\n%q", got, want)
		}
		if _, ok := q.Absence(); ok || q.Filling() {
			t.Error("it is filled for ever")
		}
	})
	report, err := inspect.Check(dir)
	if err != nil || !report.OK() {
		t.Errorf("%v, %v", report.Problems, err)
	}
}

// A replay that is under way when its sink leaves and comes back is no part of the fill.
func TestReplayDuringAnAbsence(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem()})
	ensure(t, s, "sink")
	appendN(t, s, 3, "sink")
	queued := func(want int, wantErr error) {
		t.Helper()
		if n, err := s.Replay(t.Context(), "sink", ReplayRange{}, always(1)); n != want || !errors.Is(err, wantErr) {
			t.Errorf("%d replayed, %v; want %d, %v", n, err, want, wantErr)
		}
	}
	if err := s.LeaveSink("sink"); err != nil {
		t.Fatal(err)
	}
	queued(0, ErrNotJoined)
	appendN(t, s, 2)
	if err := s.RejoinSink("sink", FromNow); err != nil {
		t.Fatal(err)
	}
	queued(0, ErrNotJoined)
	if n, err := s.Fill(t.Context(), "sink", always(0)); n != 2 || err != nil {
		t.Errorf("%d filled, %v", n, err)
	}
	if err := s.Filled("sink"); err != nil {
		t.Fatal(err)
	}
	queued(5, nil)
}

// What retention removed of the time without the sink is known; what it has not when
// the sink comes back it leaves alone until the sink has it.
func TestRetentionDuringAnAbsence(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	q := ensure(t, s, "sink")
	segment := func() { // a segment of the log
		t.Helper()
		b := s.NewBatch()
		defer b.Discard()
		b.Append(Record{Time: testEpoch, Payload: make([]byte, segmentBytes)}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	retain := func() {
		t.Helper()
		if _, err := s.retain(testEpoch.Add(time.Hour), Limits{RetentionMaxAge: time.Second}, 0); err != nil {
			t.Fatal(err)
		}
	}
	lost := func() bool {
		t.Helper()
		a, ok := q.Absence()
		if !ok {
			t.Fatal("it did not leave")
		}
		return a.Lost
	}
	segment()
	segment()
	if err := s.LeaveSink("sink"); err != nil {
		t.Fatal(err)
	}
	segment()
	if err := s.RejoinSink("sink", FromNow); err != nil {
		t.Fatal(err)
	}
	segment()
	segment()
	retain() // the first two, which it had
	if lost() {
		t.Error("something is lost")
	}
	if n, err := s.Fill(t.Context(), "sink", always(0)); n != 3 || err != nil {
		t.Errorf("%d filled, %v", n, err)
	}
	if err := s.Filled("sink"); err != nil {
		t.Fatal(err)
	}
	for _, it := range read(t, q, 0, 10) {
		if err := q.Ack(it.Position); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.LeaveSink("sink"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		segment()
	}
	retain()
	if err := s.RejoinSink("sink", FromNow); err != nil {
		t.Fatal(err)
	}
	if !lost() {
		t.Error("nothing is lost")
	}
}

// Pressure on the log amid a fill that is interrupted makes nothing come twice.
func TestPressureDuringAFill(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem()})
	q := ensure(t, s, "sink")
	if err := s.LeaveSink("sink"); err != nil {
		t.Fatal(err)
	}
	const n = 20
	minutes(t, s, 0, n, 256<<10)
	if err := s.RejoinSink("sink", FromNow); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, err := s.Fill(ctx, "sink", func(*Item) (s Selected, ok bool, err error) { cancel(); return s, true, nil })
	if !errors.Is(err, context.Canceled) || first == 0 || first == n {
		t.Fatalf("%d filled, %v", first, err)
	}
	minutes(t, s, n, n, 256<<10) // others' traffic
	if _, err := s.relieve(testEpoch, Limits{MaxBytes: 16 << 20}, 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := s.retain(testEpoch, Limits{MaxBytes: 16 << 20}, 1<<40); err != nil {
		t.Fatal(err)
	}
	if more, err := s.Fill(t.Context(), "sink", always(0)); first+more != 2*n || err != nil {
		t.Errorf("%d and then %d filled, %v; want %d", first, more, err, 2*n)
	}
	if err := s.Filled("sink"); err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for _, it := range read(t, q, 0, 100) {
		if it.Sequence <= last {
			t.Errorf("%d comes after %d", it.Sequence, last)
		}
		last = it.Sequence
	}
}

// Retention that has begun when a sink comes back removes nothing of what the sink is
// told to have in the log.
func TestRetentionBegunBeforeTheReturn(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	for i := range 3000 { // retention looks at each
		ensure(t, s, fmt.Sprintf("other-%d", i))
	}
	now := testEpoch
	for round := range 60 {
		name := fmt.Sprintf("sink-%d", round)
		q := ensure(t, s, name)
		if err := s.LeaveSink(name); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			now = now.Add(2 * segmentAge) // a segment each
			b := s.NewBatch()
			b.Append(Record{Time: now, Payload: []byte("payload")}, nil)
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		begun := make(chan struct{})
		go func() {
			close(begun)
			_, err := s.retain(now, Limits{}, 1<<30)
			done <- err
		}()
		<-begun
		if err := s.RejoinSink(name, FromNow); err != nil {
			t.Fatal(err)
		}
		a, ok := q.Absence()
		if err := <-done; err != nil || !ok {
			t.Fatal(err, ok)
		}
		n, err := s.Fill(t.Context(), name, always(0))
		if err != nil {
			t.Fatal(err)
		}
		if n < 5 && !a.Lost {
			t.Fatalf("round %d: %d of 5 records are filled, and nothing is said to be lost", round, n)
		}
		if err := s.PurgeSink(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFillBehindADamagedEntry ends the process amid a fill, the last entry of which is damaged
// then: the fill continues from the one before it.
func TestFillBehindADamagedEntry(t *testing.T) {
	dir := t.TempDir()
	t.Run("before", func(t *testing.T) {
		s := openTest(t, dir, Options{})
		q := ensure(t, s, "sink")
		if err := s.LeaveSink("sink"); err != nil {
			t.Fatal(err)
		}
		appendN(t, s, 3)
		if err := s.RejoinSink("sink", FromNow); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Fill(t.Context(), "sink", always(0)); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		if err := s.db.Delete(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, q.pins[len(q.pins)-1].last), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	})
	s := openTest(t, dir, Options{})
	q := ensure(t, s, "sink")
	appendN(t, s, 1)
	if n, err := s.Fill(t.Context(), "sink", always(0)); n != 2 || err != nil {
		t.Fatalf("%d records are queued, %v; want the one that cannot be read, and the new one", n, err)
	}
	if err := s.Filled("sink"); err != nil {
		t.Fatal(err)
	}
	if got := payloadsOf(t, q); len(got) != 4 {
		t.Errorf("the sink gets %q", got)
	}
}

// TestInterruptedFillHoldsNoLog ends the process amid the fill of a sink that is not
// configured in the next life: its entries hold no more of the log than those of any other
// sink that left. When it is back, the fill continues, and what is missing is known.
func TestInterruptedFillHoldsNoLog(t *testing.T) {
	const first, each = 4, 5
	for name, begin := range map[string]func(s *Store) error{
		"a new sink": func(s *Store) error {
			_, err := s.EnsureSink("sink", FromLogStart)
			return err
		},
		"a sink that is back": func(s *Store) error {
			_, err := s.EnsureSink("sink", FromNow)
			return errors.Join(err, s.LeaveSink("sink"))
		},
	} {
		for _, removed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, records removed: %t", name, removed), func(t *testing.T) {
				dir := t.TempDir()
				t.Run("filled in part", func(t *testing.T) {
					s := openTest(t, dir, Options{firstSequence: 1})
					if err := begin(s); err != nil {
						t.Fatal(err)
					}
					minutes(t, s, 0, first, 1000)
					if err := s.RejoinSink("sink", FromNow); err != nil {
						t.Fatal(err)
					}
					if n, err := s.Fill(t.Context(), "sink", always(0)); n != first || err != nil {
						t.Fatal(n, err)
					}
				})
				limits := Limits{MaxBytes: 64 << 20, RetentionMaxBytes: 1 << 20}
				for _, life := range []string{"away", "away again"} {
					t.Run(life, func(t *testing.T) {
						s := openTest(t, dir, Options{firstSequence: 1})
						if err := s.LeaveSink("sink"); err != nil {
							t.Fatal(err)
						}
						minutes(t, s, first, each, 1<<20)
						if !removed {
							return
						}
						relieve(t, s, testEpoch, limits, 0)
						if st, bound := s.LogStats(), limits.holdBound(); st.Bytes > 2*bound {
							t.Errorf("log %+v, more than %d bytes", st, 2*bound)
						}
					})
				}
				s := openTest(t, dir, Options{firstSequence: 1})
				if err := s.RejoinSink("sink", FromNow); err != nil {
					t.Fatal(err)
				}
				q := ensure(t, s, "sink")
				if a, ok := q.Absence(); !ok || a.Lost != removed {
					t.Errorf("absence %+v, %t", a, ok)
				}
				want := 2 * each
				if removed {
					want = int(s.LogStats().Records)
				}
				if n, err := s.Fill(t.Context(), "sink", always(0)); n != want || err != nil {
					t.Errorf("%d of %d records are filled, %v", n, want, err)
				}
				if err := s.Filled("sink"); err != nil {
					t.Fatal(err)
				}
				if st := q.Stats(); st.Length != int64(first+want) {
					t.Errorf("%d entries, want %d", st.Length, first+want)
				}
			})
		}
	}
}

// TestHoleBeforeAnInterruptedFill interrupts the return of a sink after retention has removed records
// of its absence. Its next return still reports that.
func TestHoleBeforeAnInterruptedFill(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "sink")
	minutes(t, s, 0, 3, 100)
	if err := s.LeaveSink("sink"); err != nil {
		t.Fatal(err)
	}
	minutes(t, s, 3, 20, 100)
	if _, err := s.retain(testEpoch.Add(23*time.Minute), Limits{RetentionMaxAge: 10 * time.Minute}, 0); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"at first", "after an interruption", "after two"} {
		if err := s.RejoinSink("sink", FromNow); err != nil {
			t.Fatal(err)
		}
		if a, ok := q.Absence(); !ok || !a.Lost {
			t.Errorf("%s: the absence is %+v, %t", when, a, ok)
		}
		if _, err := s.Fill(t.Context(), "sink", always(0)); err != nil {
			t.Fatal(err)
		}
		if err := s.LeaveSink("sink"); err != nil {
			t.Fatal(err)
		}
	}
}
