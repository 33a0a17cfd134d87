package store

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestDeadSinkHoldsNoLog keeps a sink from taking its few events, in every way there
// is, while another sink takes many times more. The log goes, the events do not.
func TestDeadSinkHoldsNoLog(t *testing.T) {
	const size = 16 << 10
	for _, c := range []struct {
		name  string
		first int // events for the dead sink, before all others
		every int // and then one of this many; 0 = none
		read  int // so many of them are in flight

		reopened bool // before the others, the log being as it was first written
	}{
		{name: "one event, nobody reads", first: 1},
		{name: "one event, nobody reads, reopened", first: 1, reopened: true},
		{name: "one event in flight", first: 1, read: 1},
		{name: "many in flight", first: 300, read: 1000},
		{name: "some in flight", first: 300, read: 10},
		{name: "few among all", first: 1, every: 20},
		{name: "few among all, some in flight", first: 1, every: 20, read: 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			const firstSequence = 1000 // the log does not begin with the smallest number
			s := openTest(t, "store", Options{FS: fs, firstSequence: firstSequence})
			dead, live := ensure(t, s, "dead"), ensure(t, s, "live")
			limits := Limits{MaxBytes: 16 << 20, RetentionMaxBytes: 256 << 10}
			bound := limits.holdBound()
			var want []string
			put := func(i int, sinks ...Route) {
				t.Helper()
				b := s.NewBatch()
				payload := fmt.Sprintf("%d:%s", i, strings.Repeat("x", size))
				b.Append(Record{Time: testEpoch.Add(time.Duration(i) * time.Second), Payload: []byte(payload)}, sinks)
				if err := s.Commit(b); err != nil {
					t.Fatal(err)
				}
				if len(sinks) == 2 {
					want = append(want, payload)
				}
				for _, item := range read(t, live, 0, 100) {
					if err := live.Ack(item.Position); err != nil {
						t.Fatal(err)
					}
				}
			}
			l, d := Route{Sink: "live"}, Route{Sink: "dead", Flags: 3}
			for i := range c.first {
				put(i, l, d)
			}
			if c.reopened {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openTest(t, "store", Options{FS: fs, firstSequence: firstSequence})
				dead, live = ensure(t, s, "dead"), ensure(t, s, "live")
			}
			if st := dead.Stats(); st.HeldBytes < st.Bytes || !st.HeldSince.Equal(testEpoch) {
				t.Errorf("with all of the log for it: %+v", st)
			}
			if c.read > 0 {
				read(t, dead, 0, c.read)
			}
			for i := c.first; i < c.first+500; i++ { // 8 MiB
				if c.every > 0 && i%c.every == 0 {
					put(i, l, d)
				} else {
					put(i, l)
				}
				if i%50 == 0 {
					relieve(t, s, testEpoch, limits, 1<<40)
				}
			}
			relieve(t, s, testEpoch, limits, 1<<40)
			if st := dead.Stats(); st.HeldBytes > 3*bound || int(st.Length) != len(want) || st.Bytes < int64(len(want)*size) {
				t.Errorf("dead sink %+v", st)
			}
			if st := s.LogStats(); st.Bytes > 3*bound {
				t.Errorf("log %+v", st)
			}
			for range 2 { // before and after a restart
				var got []string
				after := uint64(0)
				for items := read(t, dead, 0, 100); len(items) > 0; items = read(t, dead, after, 100) {
					for _, item := range items {
						got = append(got, string(item.Payload))
						after = item.Position
						if item.Flags != 3 {
							t.Fatalf("flags %d", item.Flags)
						}
					}
				}
				if strings.Join(got, ",") != strings.Join(want, ",") {
					t.Fatalf("%d events are delivered, want %d", len(got), len(want))
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
					t.Fatalf("check: %v %q", err, report.Problems)
				}
				s = openTest(t, "store", Options{FS: fs, firstSequence: firstSequence})
				dead = ensure(t, s, "dead")
				if st := dead.Stats(); st.HeldBytes > 3*bound {
					t.Errorf("reopened: %+v", st)
				}
			}
		})
	}
}

// TestOwnBacklogIsNotCopied leaves a queue alone that the log is kept for.
func TestOwnBacklogIsNotCopied(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 8, 1<<20, "a")
	limits := Limits{MaxBytes: 64 << 20, RetentionMaxBytes: 1}
	for _, excess := range []int64{0, 1 << 40} {
		if more, err := s.relieve(testEpoch, limits, excess); more || err != nil {
			t.Fatal(more, err)
		}
		if q.detached != (layout.Counter{}) {
			t.Errorf("detached %+v", q.detached)
		}
	}
	// Without pressure also where a small part is another's.
	minutes(t, s, 8, 2, 1<<20)
	if _, err := s.relieve(testEpoch, limits, 0); err != nil || q.detached != (layout.Counter{}) {
		t.Errorf("detached %+v, %v", q.detached, err)
	}
	relieve(t, s, testEpoch, limits, 1<<40)
	if st := s.LogStats(); st.Records > 3 {
		t.Errorf("log %+v", st)
	}
}

// TestIngestGoesOnBesideADeadSink runs a store with a small budget, through which
// more than twice that goes to one sink while another one's only event stays.
func TestIngestGoesOnBesideADeadSink(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	s := openTest(t, "store", Options{FS: vfs.NewMem(), MaxBytes: 16 << 20, RetentionMaxBytes: 1 << 20, Registerer: r})
	dead, live := ensure(t, s, "dead"), ensure(t, s, "live")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	payload := noise(4 << 10)
	put := func(sinks ...Route) {
		t.Helper()
		wait, stop := context.WithTimeout(ctx, time.Minute)
		defer stop()
		if err := s.WaitIngest(wait); err != nil {
			t.Fatalf("ingest stands still: %v; health %+v, log %+v, dead sink %+v", err, s.Health(), s.LogStats(), dead.Stats())
		}
		b := s.NewBatch()
		for range 10 {
			b.Append(Record{Time: time.Now(), Payload: payload}, sinks)
			sinks = sinks[:1]
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	put(Route{Sink: "live"}, Route{Sink: "dead"})
	if err := testutil.GatherAndCompare(r, strings.NewReader(`
# HELP watcherd_store_held_bytes Bytes of the event log that are kept because of the sink's pending events.
# TYPE watcherd_store_held_bytes gauge
watcherd_store_held_bytes{sink="dead"} 40960
watcherd_store_held_bytes{sink="live"} 40960
`), "watcherd_store_held_bytes"); err != nil {
		t.Error(err)
	}
	if st := dead.Stats(); st.HeldBytes != 40960 || st.HeldSince.IsZero() {
		t.Errorf("stats %+v", st)
	}
	after := uint64(0)
	for range 900 { // 36 MiB
		put(Route{Sink: "live"})
		for _, item := range read(t, live, after, 512) {
			after = item.Position
			if err := live.Ack(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := dead.Stats(); st.Length != 1 || len(read(t, dead, 0, 10)) != 1 {
		t.Errorf("dead sink %+v", st)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAckWhileDetaching acknowledges entries while their payloads are copied: each
// is gone for good, and each that was not acknowledged is there.
func TestAckWhileDetaching(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	const n = 5000
	for range n / 100 {
		appendN(t, s, 100, "a")
	}
	done := make(chan error, 1)
	go func() {
		for {
			if _, moved, err := q.detach(); err != nil || !moved {
				done <- err
				return
			}
		}
	}()
	left := make(map[uint64]bool)
	after := uint64(0)
	for items := read(t, q, 0, 64); len(items) > 0; items = read(t, q, after, 64) {
		for _, item := range items {
			after = item.Position
			if string(item.Payload) != fmt.Sprintf("payload %d", item.Sequence) {
				t.Fatalf("item %d has payload %q", item.Sequence, item.Payload)
			}
			if item.Position%3 == 0 {
				left[item.Position] = true
			} else if err := q.Ack(item.Position); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
		t.Fatalf("check: %v %q", err, report.Problems)
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	items := read(t, ensure(t, s, "a"), 0, n)
	for _, item := range items {
		if !left[item.Position] {
			t.Fatalf("entry %d was acknowledged", item.Position)
		}
	}
	if len(items) != len(left) {
		t.Errorf("%d entries, want %d", len(items), len(left))
	}
}

// TestStatsDuringAStall stalls the write of a copy, as a full disk does: what does
// not write answers.
func TestStatsDuringAStall(t *testing.T) {
	f := &faulty{}
	s := openTest(t, "store", Options{FS: errorfs.Wrap(vfs.NewMem(), f), MaxBytes: 16 << 20, firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 12, 1<<20, "a")
	release := make(chan struct{})
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			<-release
		}
		return nil
	})
	copied := make(chan error, 1)
	go func() {
		for {
			if _, moved, err := q.detach(); err != nil || !moved {
				copied <- err
				return
			}
		}
	}()
	stacks := make([]byte, 1<<20)
	eventually(t, "the copy stalls", func() bool {
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte(".makeRoomForWrite("))
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if st := q.Stats(); st.Length != 12 {
			t.Errorf("stats %+v", st)
		}
		if items, err := q.Read(0, 10, 1<<30); err != nil || len(items) != 10 {
			t.Errorf("read %d, %v", len(items), err)
		}
	}()
	select {
	case <-answered:
	case <-time.After(time.Minute):
		t.Error("the queue does not answer")
	}
	close(release)
	if err := <-copied; err != nil {
		t.Error(err)
	}
	<-answered
}

// TestDetachDuringARead detaches the entries of a read, and deletes their records, before
// the read has come to these.
func TestDetachDuringARead(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 5, 10, "a")
	r := queueReader{q: q, max: 10, maxBytes: 1 << 20}
	if _, err := r.entries(0, q.tail); err != nil {
		t.Fatal(err)
	}
	relieveAll(t, s, q)
	if err := r.records(); err != nil {
		t.Fatal(err)
	}
	if len(r.items) != 5 || q.Stats().DeadLetters > 0 {
		t.Errorf("%d items; %+v", len(r.items), q.Stats())
	}
	for _, item := range r.items {
		if !bytes.Equal(item.Payload, noise(10)) {
			t.Errorf("entry %d: %q", item.Position, item.Payload)
		}
	}
}

// relieveAll detaches all entries of a queue and deletes their records.
func relieveAll(t *testing.T, s *Store, q *Queue) {
	t.Helper()
	detachAll(t, q)
	last := s.LogStats().Last
	minutes(t, s, 1000, 1, 10) // the last segment stays
	if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
		t.Fatal(err)
	}
	if st := s.LogStats(); st.First <= last {
		t.Fatalf("log %+v", st)
	}
}

// TestDetachBeforeAnEntryIsTaken detaches entries between the read of one and its entry
// into the window. Its acknowledgement counts it as one that carries its payload.
func TestDetachBeforeAnEntryIsTaken(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 5, 10, "a")
	first := q.window.head()
	e, err := q.entryAt(first)
	if err != nil || e.Kind == layout.EntryInline {
		t.Fatalf("%+v, %v", e, err)
	}
	relieveAll(t, s, q)
	before := q.detached
	r := queueReader{q: q, max: 10, maxBytes: 1 << 20}
	if err := r.take(first, e); err != nil {
		t.Fatal(err)
	}
	if err := q.Ack(first); err != nil {
		t.Fatal(err)
	}
	if before.Count != 5 || q.detached.Count != 4 {
		t.Errorf("%d entries carry their payload after one of %d was acknowledged", q.detached.Count, before.Count)
	}
}

// TestDetachUnderAClockAhead detaches all entries in a life whose sequences would have
// begun later, but which committed nothing. Those of the next life begin behind the last
// one that was used, and hold their records.
func TestDetachUnderAClockAhead(t *testing.T) {
	fs := vfs.NewMem()
	var q *Queue
	open := func(first uint64) *Store {
		t.Helper()
		s, err := Open("store", Options{FS: fs, firstSequence: first})
		if err != nil {
			t.Fatal(err)
		}
		q = ensure(t, s, "a")
		return s
	}
	s := open(1)
	minutes(t, s, 0, 5, 10, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(1000)
	detachAll(t, q)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(1)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	minutes(t, s, 10, 5, 10, "a")
	minutes(t, s, 1000, 1, 10)
	if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
		t.Fatal(err)
	}
	items, err := q.Read(0, 100, 1<<20)
	if err != nil || len(items) != 10 || q.Stats().DeadLetters != 0 {
		t.Errorf("%d items, %v; %+v", len(items), err, q.Stats())
	}
}

// TestDetachInSmallBatches copies payloads in a small store. A batch is no larger than a memtable, give or take a
// payload: it would be on the disk several times until compactions are done.
func TestDetachInSmallBatches(t *testing.T) {
	const size = 4 << 10
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1, MaxBytes: 16 << 20})
	q := ensure(t, s, "a")
	payload, total := noise(size), int64(2*detachBytes)
	for range total / size {
		commitOne(t, s, "thing", payload)
	}
	for copied := int64(0); copied < total; {
		n, moved, err := q.detach()
		if err != nil || !moved {
			t.Fatal(n, moved, err)
		}
		if most := int64(s.BatchBytes() + size); n > most {
			t.Fatalf("%d bytes are copied at a time, more than %d", n, most)
		}
		copied += n
	}
}

// detachAll detaches what can be.
func detachAll(t *testing.T, q *Queue) {
	t.Helper()
	for moved := true; moved; {
		var err error
		if _, moved, err = q.detach(); err != nil {
			t.Fatal(err)
		}
	}
}
