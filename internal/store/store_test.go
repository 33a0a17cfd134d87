package store

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		fmt.Fprintln(os.Stderr, childMain(dir))
		os.Exit(3)
	}
	flag.Parse()
	if raceEnabled && flag.Lookup("rapid.checks").Value.String() == "100" {
		_ = flag.Set("rapid.checks", "25") // the flag exists
	}
	goleak.VerifyTestMain(m,
		// Pebble leaves this one behind when its Open fails late.
		goleak.IgnoreAnyFunction("github.com/cockroachdb/pebble/v2.(*ConcurrencyLimitScheduler).periodicGranter"))
}

func openTest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ensure(t *testing.T, s *Store, name string) *Queue {
	t.Helper()
	q, err := s.EnsureSink(name, FromNow)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

var testEpoch = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// appendN commits n records in one batch, routed to the sinks, and returns
// their sequences.
func appendN(t *testing.T, s *Store, n int, sinks ...string) []uint64 {
	t.Helper()
	var routes []Route
	for i, sink := range sinks {
		routes = append(routes, Route{Sink: sink, Flags: uint32(i + 1)})
	}
	b := s.NewBatch()
	defer b.Discard()
	var sequences []uint64
	for range n {
		next := s.next
		sequences = append(sequences, b.Append(Record{
			Time:    testEpoch.Add(time.Duration(next) * time.Second),
			Lane:    next % 7,
			Payload: fmt.Appendf(nil, "payload %d", next),
		}, routes))
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	return sequences
}

func read(t *testing.T, q *Queue, after uint64, max int) []Item {
	t.Helper()
	items, err := q.Read(after, max, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func TestQueueKeepsWhatIsNotAcked(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	other := ensure(t, s, "b")
	sequences := appendN(t, s, 10, "a", "b")

	items := read(t, q, 0, 100)
	if len(items) != 10 {
		t.Fatalf("read %d items, want 10", len(items))
	}
	for i, item := range items {
		if item.Position != sequences[i] || item.Sequence != sequences[i] || item.Flags != 1 ||
			string(item.Payload) != fmt.Sprintf("payload %d", sequences[i]) || item.Lane != sequences[i]%7 ||
			!item.Time.Equal(testEpoch.Add(time.Duration(sequences[i])*time.Second)) {
			t.Errorf("item %d is %+v", i, item)
		}
	}
	// Out of order, with repetitions and strangers.
	if err := q.Ack(sequences[1], sequences[5], sequences[1], 12345); err != nil {
		t.Fatal(err)
	}
	if err := q.Ack(sequences[0], sequences[5]); err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); st.Length != 7 || st.Head != sequences[2] || st.Bytes != 7*int64(len("payload 1"))+1 {
		t.Errorf("stats %+v", st)
	}
	if st := other.Stats(); st.Length != 10 {
		t.Errorf("the other queue has stats %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q = ensure(t, s, "a")
	st := q.Stats()
	if st.Length != 7 || st.Head != sequences[2] || !st.OldestTime.Equal(items[2].Time) {
		t.Errorf("after reopening: stats %+v", st)
	}
	var got []uint64
	for _, item := range read(t, q, 0, 100) {
		got = append(got, item.Position)
	}
	want := []uint64{sequences[2], sequences[3], sequences[4], sequences[6], sequences[7], sequences[8], sequences[9]}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read %v, want %v", got, want)
	}
	if next := appendN(t, s, 1); next[0] != sequences[9]+1 {
		t.Errorf("the next sequence is %d, want %d", next[0], sequences[9]+1)
	}
}

func TestStateAndMeta(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	b := s.NewBatch()
	b.PutState("pods", "a", []byte("1"))
	b.PutState("pods", "ab", []byte("2"))
	b.PutState("nodes", "a", []byte("3"))
	b.PutMeta("checkpoint", []byte("77"))
	discarded := s.NewBatch()
	discarded.PutState("services", "a", nil)
	discarded.Discard()
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	b = s.NewBatch()
	b.PutState("services", "x", []byte("4"))
	b.DeleteState("pods", "a")
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := s.DeletePartition("nodes"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	if got := fmt.Sprint(s.Partitions()); got != "[pods services]" {
		t.Errorf("partitions %s", got)
	}
	if _, ok, err := s.State("pods", "a", nil); ok || err != nil {
		t.Errorf("deleted entry: %v %v", ok, err)
	}
	got, ok, err := s.State("pods", "ab", []byte("="))
	if string(got) != "=2" || !ok || err != nil {
		t.Errorf("got %q %v %v", got, ok, err)
	}
	var all []string
	for _, p := range []string{"pods", "nodes", "services"} {
		err := s.ScanState(p, "", func(key string, value []byte) error {
			all = append(all, p+"/"+key+"="+string(value))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(all) != "[pods/ab=2 services/x=4]" {
		t.Errorf("state %v", all)
	}
	if v, ok, err := s.Meta("checkpoint"); string(v) != "77" || !ok || err != nil {
		t.Errorf("meta %q %v %v", v, ok, err)
	}
}

func TestUnknownSinkRejectsTheBatch(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	b := s.NewBatch()
	b.Append(Record{Time: testEpoch}, []Route{{Sink: "nobody"}})
	b.PutMeta("k", nil)
	if err := s.Commit(b); !errors.Is(err, ErrUnknownSink) {
		t.Fatalf("got %v", err)
	}
	if _, ok, _ := s.Meta("k"); ok {
		t.Error("a part of the batch was written")
	}
	if s.Err() != nil {
		t.Error("the store failed")
	}
	if got := appendN(t, s, 1); got[0] != 1 {
		t.Errorf("sequence %d, want 1", got[0])
	}
}

func TestReplayAndDeadLetters(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q := ensure(t, s, "a")
	appendN(t, s, 5, "a")
	items := read(t, q, 0, 10)
	for _, item := range items {
		if item.Sequence == 3 {
			if err := q.DeadLetter(3, Letter{Reason: "no", Attempts: 4, Time: testEpoch}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	n, err := s.Replay(t.Context(), "a", ReplayRange{FromTime: testEpoch.Add(2 * time.Second), ToSequence: 3}, always(9))
	if err != nil || n != 2 {
		t.Fatalf("replayed %d, %v", n, err)
	}
	letters, err := q.DeadLetters(0, 10)
	if err != nil || len(letters) != 1 || letters[0].Reason != "no" || string(letters[0].Payload) != "payload 3" || letters[0].Attempts != 4 {
		t.Fatalf("letters %+v %v", letters, err)
	}
	if n, err := q.RetryDeadLetters(8, 3, 3, 4); n != 1 || err != nil {
		t.Fatalf("retried %d %v", n, err)
	}
	var got []string
	for _, item := range read(t, q, 5, 10) {
		got = append(got, fmt.Sprintf("%d:%d:%d:%s", item.Position, item.Sequence, item.Flags, item.Payload))
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	want := "[6:2:9:payload 2 7:3:9:payload 3 8:3:9:payload 3]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if st := q.Stats(); st.Length != 0 || st.Bytes != 0 || st.DeadLetters != 0 || st.DeadLetterBytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestSecondOpenIsLocked(t *testing.T) {
	dir := t.TempDir()
	openTest(t, dir, Options{firstSequence: 1})
	if _, err := Open(dir, Options{firstSequence: 1}); !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v", err)
	}
}

// TestEnqueue adds entries that no record of the log is behind, and none to a sink that is gone.
func TestEnqueue(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q, err := s.EnsureSink("a", FromNow)
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	defer b.Discard()
	r := Record{Time: time.Unix(1, 0), Lane: 7, Payload: []byte("held")}
	if !b.Enqueue(r, 5, Route{Sink: "a", Flags: 3}) || b.Enqueue(r, 5, Route{Sink: "b"}) {
		t.Error("an entry is for a sink that exists, and for no other")
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	items, err := q.Read(0, 10, 1<<20)
	if err != nil || len(items) != 1 {
		t.Fatalf("%v, %v", items, err)
	}
	if it := items[0]; it.Sequence != 5 || it.Lane != 7 || it.Flags != 3 || string(it.Payload) != "held" || q.Stats().HeldBytes != 0 {
		t.Errorf("the entry is %+v", it)
	}
}

// always selects every record, with flags.
func always(flags uint32) Selector {
	return func(*Item) (Selected, bool, error) { return Selected{Flags: flags}, true, nil }
}

// TestStatesAfterAKey: a part of a scan has only keys of its prefix, wherever it begins.
func TestStatesAfterAKey(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	b := s.NewBatch()
	for _, key := range []string{"a/1", "a/2", "b/1", "b/2", "c/1"} {
		b.PutState("pods", key, []byte(key))
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ prefix, after, want string }{
		{"b/", "", "b/1 b/2"}, {"b/", "b/1", "b/2"}, {"b/", "b/2", ""}, {"b/", "a/1", "b/1 b/2"}, {"b/", "c/0", ""}, {"", "a/2", "b/1 b/2 c/1"},
	} {
		var got []string
		if err := s.ScanStateAfter("pods", tc.prefix, tc.after, func(key string, _ []byte) error {
			got = append(got, key)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%q after %q: got %q, want %q", tc.prefix, tc.after, text, tc.want)
		}
	}
}
