package store

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestReplay replays what the selector accepts, in order and with its flags.
func TestReplay(t *testing.T) {
	s, err := Open(t.TempDir(), Options{firstSequence: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q, err := s.EnsureSink("sink", FromNow)
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	for i := range byte(10) {
		b.Append(Record{Time: time.Unix(int64(i)+1, 0), Payload: []byte{i}}, nil)
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	even := func(it *Item) (s Selected, ok bool, err error) {
		if it.Payload[0] == 6 {
			s.Payload = []byte{6, 6}
		}
		s.Flags = uint32(it.Payload[0]) + 100
		return s, it.Payload[0]%2 == 0, nil
	}
	n, err := s.Replay(t.Context(), "sink", ReplayRange{FromSequence: 3}, even)
	if err != nil || n != 4 {
		t.Fatalf("replayed %d, %v", n, err)
	}
	items, err := q.Read(0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(items) != 4 {
		t.Fatalf("%d items", len(items))
	}
	for i, it := range items {
		value := byte(2 + 2*i)
		if it.Payload[0] != value || it.Flags != uint32(value)+100 || it.Sequence != uint64(value)+1 {
			t.Errorf("item %d: %+v", i, it)
		}
	}
	if len(items[2].Payload) != 2 || q.Stats().Bytes != 5 {
		t.Errorf("the payload in the place of a record's is %v, %d bytes are queued", items[2].Payload, q.Stats().Bytes)
	}
	none := func(*Item) (s Selected, ok bool, err error) { return s, false, nil }
	if n, err := s.Replay(t.Context(), "sink", ReplayRange{}, none); err != nil || n != 0 {
		t.Errorf("replayed %d, %v", n, err)
	}
	failing := func(it *Item) (s Selected, ok bool, err error) {
		if it.Sequence == 5 {
			err = io.ErrUnexpectedEOF
		}
		return s, true, err
	}
	if n, err := s.Replay(t.Context(), "sink", ReplayRange{}, failing); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("replayed %d, %v", n, err)
	}
	if length := q.Stats().Length; length != 4 {
		t.Errorf("queue length %d", length)
	}
}

// A replay until a time has all records before it where their times are not in order: the deletions that a list shows are late,
// and the clock may have been set.
func TestReplayUntil(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q := ensure(t, s, "a")
	minute := func(n int) time.Time { return testEpoch.Add(time.Duration(n) * time.Minute) }
	for _, n := range []int{0, 10, 90, 11, 12, 14, 13, 20, 12} {
		b := s.NewBatch()
		b.Append(Record{Time: minute(n), Payload: []byte{byte(n)}}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	n, err := s.Replay(t.Context(), "a", ReplayRange{FromTime: minute(11), ToTime: minute(14)}, always(1))
	var got []byte
	for _, item := range read(t, q, 0, 100) {
		got = append(got, item.Payload...)
	}
	if want := []byte{11, 12, 13, 12}; n != len(want) || err != nil || !bytes.Equal(got, want) {
		t.Errorf("replayed %d, %v: minutes %v, want %v", n, err, got, want)
	}
}

// TestRetentionBesideAReplay queues a replay while retention, which has looked at its queue already,
// waits for an acknowledgement of another: what the replay refers to stays.
func TestRetentionBesideAReplay(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q, other := ensure(t, s, "a"), ensure(t, s, "b")
	minutes(t, s, 0, 10, 100)
	other.settling.RLock()
	retained := make(chan error, 1)
	go func() {
		_, err := s.retain(testEpoch.Add(time.Hour), Limits{RetentionMaxAge: time.Minute}, 0)
		retained <- err
	}()
	for other.settling.TryRLock() { // until retention waits
		other.settling.RUnlock()
		runtime.Gosched()
	}
	if n, err := s.Replay(t.Context(), "a", ReplayRange{}, always(1)); n != 10 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	other.settling.RUnlock()
	if err := <-retained; err != nil {
		t.Fatal(err)
	}
	if items := read(t, q, 0, 100); len(items) != 10 || q.Stats().DeadLetters != 0 {
		t.Errorf("%d of 10 events are replayed: %+v", len(items), q.Stats())
	}
}

// TestReplayOvertakenByRetention replays a log of which retention deletes what is next: it queues the rest, and says so.
func TestReplayOvertakenByRetention(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q := ensure(t, s, "a")
	minutes(t, s, 0, 20, 1000)
	chunks := 0
	wait := func() error {
		if chunks++; chunks != 2 {
			return nil
		}
		if items := read(t, q, 0, 100); len(items) > 0 {
			if err := q.Ack(items[len(items)-1].Position); err != nil {
				return err
			}
		}
		_, err := s.retain(testEpoch.Add(40*time.Minute), Limits{RetentionMaxAge: 30 * time.Minute * historyLag / (historyLag + 1)}, 0)
		return err
	}
	inline := func(*Item) (Selected, bool, error) {
		return Selected{Payload: make([]byte, s.BatchBytes()/2)}, true, nil
	}
	n, err := s.enqueueSelected(q, 1, 20, inline, wait, &s.sinks.ensuring)
	if first := s.LogStats().First; first <= 3 || !errors.Is(err, ErrOvertaken) || n != 2+int(21-first) {
		t.Errorf("the log begins at %d, and %d records are queued: %v", first, n, err)
	}
}
