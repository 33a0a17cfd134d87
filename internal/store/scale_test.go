package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestOpenWithBacklog opens a store with a long queue: it must not read it.
func TestOpenWithBacklog(t *testing.T) {
	groups, group := 300, 1000
	if raceEnabled {
		group = 200
	}
	fs := vfs.NewMem()
	s, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	q := ensure(t, s, "a")
	payload := noise(100)
	for i := range groups {
		b := s.NewBatch()
		for range group {
			b.Append(Record{Time: testEpoch.Add(time.Duration(i) * time.Second), Payload: payload}, []Route{{Sink: "a"}})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	// The beginning of the queue is tombstones.
	after := uint64(0)
	for range 50 {
		positions := make([]uint64, 0, group)
		for _, item := range read(t, q, after, group) {
			after = item.Position
			positions = append(positions, after)
		}
		if err := q.Ack(positions...); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q = ensure(t, s, "a")
	st := q.Stats()
	atOpen := blockBytes(s)
	t.Logf("%d entries, %d MiB: %d KiB of blocks read", st.Length, st.Bytes>>20, atOpen>>10)
	if st.Length != int64((groups-50)*group) || st.Bytes != int64((groups-50)*group*100) || st.Head != after+1 || !st.OldestTime.Equal(testEpoch.Add(50*time.Second)) {
		t.Errorf("stats %+v", st)
	}
	if atOpen > 1<<20 {
		t.Errorf("opening read %d KiB of blocks", atOpen>>10)
	}
	if items := read(t, q, 0, 10); len(items) != 10 || items[0].Position != after+1 {
		t.Errorf("read %d items", len(items))
	}
	if n := blockBytes(s) - atOpen; n > 1<<20 {
		t.Errorf("the first read of the queue read %d KiB of blocks", n>>10)
	}
}

// blockBytes is how much of the tables readers have asked for, compactions left
// out.
func blockBytes(s *Store) uint64 {
	n := uint64(0)
	for _, c := range s.db.Metrics().CategoryStats {
		if c.Category.String() != "pebble-compaction" {
			n += c.CategoryStats.BlockBytes
		}
	}
	return n
}

// TestBigBatch commits more than a memtable holds.
func TestBigBatch(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	ensure(t, s, "a")
	b := s.NewBatch()
	payload := noise(64 << 10)
	for range 160 {
		b.Append(Record{Time: testEpoch, Payload: payload}, []Route{{Sink: "a"}})
	}
	b.PutMeta("k", []byte("v"))
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	items, err := q.Read(0, 1000, 1<<20)
	if err != nil || len(items) != 16 || q.Stats().Length != 160 {
		t.Errorf("%d items, %v, %+v", len(items), err, q.Stats())
	}
}

// TestAcksBecomeDurable lets Run sync acks while nothing is committed.
func TestAcksBecomeDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	q := ensure(t, s, "a")
	appendN(t, s, 10, "a")
	running(t, s)
	for _, item := range read(t, q, 0, 4) {
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the acks survive a power loss", func() bool {
		clone := openTest(t, "store", Options{firstSequence: 1, FS: fs.CrashClone(vfs.CrashCloneCfg{})})
		return ensure(t, clone, "a").Stats().Length == 6
	})
}

// TestTogether does everything at once: one committer, workers, replays, dead
// letters, retention, a stream of the log, figures. Every record is delivered
// and the log stream misses none.
func TestTogether(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem(), RetentionMaxBytes: 1 << 20})
	running(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var workers, others sync.WaitGroup
	const commits, group = 150, 20
	const total = commits * group

	for _, name := range []string{"a", "b"} {
		q := ensure(t, s, name)
		delivered := make(map[uint64]bool)
		workers.Go(func() {
			if err := work(ctx, q, delivered, total); err != nil {
				t.Errorf("worker %s: %v", name, err)
			}
			if len(delivered) != total {
				t.Errorf("worker %s: %d of %d delivered", name, len(delivered), total)
			}
		})
		others.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Replay(ctx, name, ReplayRange{FromSequence: s.LogStats().Last - 5}, always(9)); err != nil && ctx.Err() == nil {
					t.Errorf("replay: %v", err)
				}
				letters, err := q.DeadLetters(0, 100)
				if err != nil {
					t.Errorf("dead letters: %v", err)
				}
				for _, l := range letters {
					if _, err := q.RetryDeadLetters(0, l.Position); err != nil {
						t.Errorf("retry: %v", err)
					}
				}
				q.Stats()
				s.Health()
				if _, err := s.retain(time.Now(), Limits{}, 1<<30); err != nil {
					t.Errorf("retain: %v", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	for i := range commits {
		if err := s.WaitIngest(ctx); err != nil {
			t.Fatal(err)
		}
		b := s.NewBatch()
		for j := range group {
			b.Append(Record{Time: time.Now(), Lane: uint64(j), Payload: fmt.Appendf(nil, "%d/%d", i, j)}, []Route{{Sink: "a"}, {Sink: "b"}})
			b.PutState("objects", fmt.Sprint(j), fmt.Append(nil, i))
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	workers.Wait()
	cancel()
	others.Wait()
}

// work takes entries in random order until it has seen total records; some
// become dead letters first.
func work(ctx context.Context, q *Queue, delivered map[uint64]bool, total int) error {
	refused := make(map[uint64]bool)
	after := uint64(0)
	for len(delivered) < total {
		if err := q.Wait(ctx, after); err != nil {
			return err
		}
		items, err := q.Read(after, 50, 1<<20)
		if err != nil {
			return err
		}
		rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		for _, item := range items {
			after = max(after, item.Position)
			if len(item.Payload) == 0 {
				return errors.New("no payload")
			}
			if item.Sequence%17 == 0 && !refused[item.Sequence] {
				refused[item.Sequence] = true
				err = q.DeadLetter(item.Position, Letter{Reason: "r"})
			} else {
				delivered[item.Sequence] = true
				err = q.Ack(item.Position)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
