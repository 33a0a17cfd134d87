package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/store/inspect"
)

// minutes appends one record a minute, each a segment of its own, with a
// payload of the given size.
func minutes(t *testing.T, s *Store, from, n, size int, sinks ...string) {
	t.Helper()
	payload := noise(size)
	var routes []Route
	for _, sink := range sinks {
		routes = append(routes, Route{Sink: sink})
	}
	for i := range n {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch.Add(time.Duration(from+i) * time.Minute), Payload: payload}, routes)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadBesideRetention reads the log while all of it is removed again and again: what retention removes is no damage.
func TestReadBesideRetention(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	done := make(chan error, 1)
	go func() {
		var errs []error
		for i := range 3000 {
			b := s.NewBatch()
			b.Append(Record{Time: testEpoch.Add(time.Duration(i) * time.Minute)}, nil)
			errs = append(errs, s.Commit(b))
			if i%3 == 0 {
				_, err := s.retain(testEpoch.Add(10_000*time.Minute), Limits{RetentionMaxAge: time.Minute}, 0)
				errs = append(errs, err)
			}
		}
		done <- errors.Join(errs...)
	}()
	for {
		items, err := s.ReadLog(0, 10)
		if err != nil || len(items) > 0 && items[0].Unreadable {
			t.Fatalf("%d items, %v", len(items), err)
		}
		select {
		case err := <-done:
			if st := s.LogStats(); err != nil || !st.Trimmed {
				t.Errorf("log %+v, %v", st, err)
			}
			return
		default:
		}
	}
}

func TestRetention(t *testing.T) {
	now := testEpoch.Add(100 * time.Minute)
	for _, c := range []struct {
		name   string
		limits Limits
		excess int64
		first  uint64 // of 100 records of 1000 bytes, 80 of them acknowledged
	}{
		{"no limits", Limits{}, 0, 1},
		{"by age", Limits{RetentionMaxAge: 30 * time.Minute * historyLag / (historyLag + 1)}, 0, 70},
		{"by age, but not delivered", Limits{RetentionMaxAge: 5 * time.Minute}, 0, 81},
		{"by size", Limits{RetentionMaxBytes: 20_000}, 0, 61},
		{"by the budget", Limits{}, 10_000, 11},
		{"by the budget, all that is delivered", Limits{}, 1 << 30, 81},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
			q := ensure(t, s, "a")
			minutes(t, s, 0, 100, 1000, "a")
			for _, item := range read(t, q, 0, 80) {
				if err := q.Ack(item.Position); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.retain(now, c.limits, c.excess); err != nil {
				t.Fatal(err)
			}
			want := LogStats{First: c.first, Last: 100, Next: 101, Oldest: c.first, Records: int64(101 - c.first), Bytes: 1000 * int64(101-c.first), Trimmed: c.first > 1}
			if st := s.LogStats(); st != want {
				t.Errorf("log %+v, want %+v", st, want)
			}
			if items, err := s.ReadLog(0, 1000); err != nil || len(items) != int(want.Records) || items[0].Sequence != c.first {
				t.Errorf("read %d records, %v", len(items), err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
			if st := s.LogStats(); st != want {
				t.Errorf("reopened: log %+v, want %+v", st, want)
			}
			// A record one second before or after the mark of its segment is found.
			from, _, err := s.bounds(ReplayRange{FromTime: testEpoch.Add(89*time.Minute + time.Second)})
			if err != nil || from != 91 {
				t.Errorf("records from 89 min 1 s on begin at %d, %v", from, err)
			}
		})
	}
}

// TestWrongClock wants records to age by the right clock after one that was wrong for
// a while, in this process and the next, and replay by time to find them.
func TestWrongClock(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"ahead": 10 * 365 * 24 * time.Hour, "behind": -200 * time.Hour} {
		for i := range 4 {
			marks, restarted := 1+4*(i/2), i%2 == 0
			t.Run(fmt.Sprintf("%s, %d, restarted=%t", name, marks, restarted), func(t *testing.T) {
				fs := vfs.NewMem()
				s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
				shift := int(wrong / time.Minute)
				minutes(t, s, 0, 10, 10)
				minutes(t, s, shift+10, marks, 10)
				minutes(t, s, 10+marks, 30, 10)
				expire := func(age, first int) {
					t.Helper()
					limits := Limits{RetentionMaxAge: time.Duration(age) * time.Minute * historyLag / (historyLag + 1)}
					if _, err := s.retain(testEpoch.Add(40*time.Minute), limits, 0); err != nil {
						t.Fatal(err)
					}
					if st := s.LogStats(); st.First != uint64(first) {
						t.Errorf("log %+v, want it to begin at %d", st, first)
					}
				}
				expire(100, 1)
				expire(35, 5)
				if restarted {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
				}
				from, _, err := s.bounds(ReplayRange{FromTime: testEpoch.Add(30 * time.Minute)})
				if err != nil || from != 31 {
					t.Errorf("records from 30 min on begin at %d, %v", from, err)
				}
				expire(20, 20)
				if st := s.LogStats(); st.Last != uint64(40+marks) {
					t.Errorf("log %+v", st)
				}
			})
		}
	}
}

// TestReplayHoldsTheLog wants records to stay while a replay of them is not
// acknowledged, over a restart too.
func TestReplayHoldsTheLog(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 50, 10, "a")
	ackAll := func() {
		for _, item := range read(t, q, 0, 1000) {
			if err := q.Ack(item.Position); err != nil {
				t.Fatal(err)
			}
		}
	}
	ackAll()
	if n, err := s.Replay(t.Context(), "a", ReplayRange{FromSequence: 20, ToSequence: 30}, always(1)); n != 11 || err != nil {
		t.Fatal(n, err)
	}
	minutes(t, s, 50, 10, 10, "a")
	retain := func(want uint64) {
		t.Helper()
		if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
			t.Fatal(err)
		}
		if st := s.LogStats(); st.First != want {
			t.Errorf("the log begins at %d, want %d", st.First, want)
		}
	}
	retain(20)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q = ensure(t, s, "a")
	retain(20)
	for _, item := range read(t, q, 0, 11) { // the replay; the others wait
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	retain(62)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q = ensure(t, s, "a")
	if len(q.pins) > 0 {
		t.Errorf("pins of a replay that is through: %+v", q.pins)
	}
	ackAll()
	retain(s.LogStats().Last)
}

// TestDetachedReplayHoldsNothing: the queue carries the payloads of a replay itself, and
// only what came later holds the log.
func TestDetachedReplayHoldsNothing(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 50, 10)
	if n, err := s.Replay(t.Context(), "a", ReplayRange{FromSequence: 20, ToSequence: 30}, always(1)); n != 11 || err != nil {
		t.Fatal(n, err)
	}
	if _, moved, err := q.detach(); !moved || err != nil {
		t.Fatal(moved, err)
	}
	minutes(t, s, 50, 2, 10, "a")
	if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
		t.Fatal(err)
	}
	if st := s.LogStats(); st.First != 62 {
		t.Errorf("the log begins at %d, want 62", st.First)
	}
	if items := read(t, q, 0, 100); len(items) != 13 {
		t.Errorf("%d items", len(items))
	}
}

// relieve does what Run does, until there is no more to do.
func relieve(t *testing.T, s *Store, now time.Time, limits Limits, excess int64) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = s.relieve(now, limits, excess); err != nil {
			t.Fatal(err)
		}
		if _, err := s.retain(now, limits, excess); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStuckEntryLetsTheLogGo keeps one entry of many unacknowledged.
func TestStuckEntryLetsTheLogGo(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 20, 1<<20, "a")
	items := read(t, q, 0, 100)
	for _, item := range items[1:] {
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	relieve(t, s, testEpoch, Limits{}, 1<<30)
	if st := s.LogStats(); st.First != 20 {
		t.Errorf("log %+v", st)
	}
	if st := q.Stats(); st.Length != 1 || st.Head != 1 || !st.OldestTime.Equal(testEpoch) {
		t.Errorf("stats %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q = ensure(t, s, "a")
	again := read(t, q, 0, 100)
	if len(again) != 1 || again[0].Sequence != 1 || string(again[0].Payload) != string(items[0].Payload) {
		t.Fatalf("read %d items again", len(again))
	}
	if err := q.DeadLetter(1, Letter{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if l, ok, err := q.deadLetterAt(1); !ok || err != nil || string(l.Payload) != string(items[0].Payload) {
		t.Errorf("dead letter %v %v", ok, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
		t.Errorf("%v %q", err, report.Problems)
	}
}

// TestFromLogStart fills a queue with some of the old records, interrupted by a
// crash, while new ones come.
func TestFromLogStart(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	const n = 3*replayChunk + 10
	for range 3 {
		appendN(t, s, replayChunk)
	}
	appendN(t, s, 10)
	if q, err := s.EnsureSink("a", FromLogStart); err != nil || !q.Filling() {
		t.Fatal(err)
	}
	// As far as a process gets that dies on the way.
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	everyOther := func(*Item) (Selected, bool, error) {
		seen++
		if seen == replayChunk+5 {
			cancel()
		}
		return Selected{Flags: 7}, seen%2 == 0, nil
	}
	if queued, err := s.Fill(ctx, "a", everyOther); queued != replayChunk || !errors.Is(err, context.Canceled) {
		t.Fatalf("%d queued before the end: %v", queued, err)
	}
	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q, err := s.EnsureSink("a", FromNow) // what it was created with counts
	if err != nil || !q.Filling() {
		t.Fatal(err)
	}
	seen = 0
	for _, more := range []int{0, 6, 0} { // what is appended meanwhile belongs to the past too
		appendN(t, s, more)
		if _, err := s.Fill(t.Context(), "a", everyOther); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Filled("a"); err != nil || q.Filling() {
		t.Fatal(err)
	}
	appendN(t, s, 5, "a")
	if queued, err := s.Fill(t.Context(), "a", everyOther); queued != 0 || err != nil {
		t.Errorf("a filled sink was given %d more: %v", queued, err)
	}
	items := read(t, q, 0, 2*n)
	if len(items) != (n+6)/2+5 {
		t.Fatalf("%d entries", len(items))
	}
	for i, item := range items {
		old := i < (n+6)/2
		if old != (item.Flags == 7) || i > 0 && item.Sequence <= items[i-1].Sequence {
			t.Fatalf("entry %d has sequence %d and flags %d", i, item.Sequence, item.Flags)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
		t.Errorf("%v %q", err, report.Problems)
	}
}

func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem(), Registerer: r})
	minutes(t, s, 0, 10, 100)
	if _, err := s.retain(testEpoch, Limits{}, 450); err != nil {
		t.Fatal(err)
	}
	err := testutil.GatherAndCompare(r, strings.NewReader(`
# HELP watcherd_store_commits_total Successful commits.
# TYPE watcherd_store_commits_total counter
watcherd_store_commits_total 10
# HELP watcherd_store_log_records Records in the event log.
# TYPE watcherd_store_log_records gauge
watcherd_store_log_records 5
# HELP watcherd_store_retention_deletions_total Delivered records deleted from the log, by reason.
# TYPE watcherd_store_retention_deletions_total counter
watcherd_store_retention_deletions_total{reason="age"} 0
watcherd_store_retention_deletions_total{reason="budget"} 5
watcherd_store_retention_deletions_total{reason="bytes"} 0
# HELP watcherd_store_ingest_paused 1 while ingest is paused by the budget or the disk.
# TYPE watcherd_store_ingest_paused gauge
watcherd_store_ingest_paused 0
`), "watcherd_store_commits_total", "watcherd_store_log_records", "watcherd_store_retention_deletions_total", "watcherd_store_ingest_paused")
	if err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r); err != nil || n < 11 {
		t.Errorf("%d metrics, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, _ := testutil.GatherAndCount(r); n != 0 {
		t.Errorf("%d metrics after Close", n)
	}
}

// TestRetentionBetweenAnAckAndItsWrite kills the process after retention has looked at a queue in
// which an entry is acknowledged and that is not written yet. The entry is read again, with its record.
func TestRetentionBetweenAnAckAndItsWrite(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 10, 1000, "a")
	items := read(t, q, 0, 9)

	// What Ack does before it writes.
	q.settling.RLock()
	b := s.db.NewBatch()
	for _, item := range items {
		q.take(b, []uint64{item.Position})
	}
	retained := make(chan error, 1)
	go func() {
		_, err := s.retain(testEpoch.Add(10_000*time.Minute), Limits{RetentionMaxAge: time.Minute}, 0)
		retained <- err
	}()
	var err error
	eventually(t, "retention is done, or waits for the ack", func() bool {
		select {
		case err = <-retained:
			retained <- err
			return true
		default:
		}
		waits := !q.settling.TryRLock()
		if !waits {
			q.settling.RUnlock()
		}
		return waits
	})
	if err := s.syncLog(); err != nil { // as a commit does
		t.Fatal(err)
	}
	killed := fs.CrashClone(vfs.CrashCloneCfg{})
	err = s.acknowledge(b)
	q.settling.RUnlock()
	if err := errors.Join(err, <-retained); err != nil {
		t.Fatal(err)
	}
	if first := s.LogStats().First; first != 10 {
		t.Errorf("the log begins at %d, want 10", first)
	}

	q = ensure(t, openTest(t, "store", Options{firstSequence: 1, FS: killed}), "a")
	if n := len(read(t, q, 0, 100)); n != 10 || q.Stats().DeadLetters != 0 {
		t.Errorf("%d of 10 entries, and %d dead letters", n, q.Stats().DeadLetters)
	}
}
