package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// The tests of this file damage a block of a store that runs: what of its keys is elsewhere is delivered.

// aliveEntries are the entries of the only queue of closedQueue.
const aliveEntries = 3000

func closedQueue(t *testing.T) vfs.FS {
	t.Helper()
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	appendN(t, s, aliveEntries, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	compactApart(t, fs)
	return fs
}

// runningQueue opens a store that runs, with its only queue.
func runningQueue(t *testing.T, fs vfs.FS) (*Store, *Queue) {
	t.Helper()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	t.Cleanup(runStore(t, s))
	eventually(t, "the store runs", s.running.Load)
	return s, ensure(t, s, "a")
}

// wantWhole wants entries of a queue, all that it counts, and no dead letter.
func wantWhole(t *testing.T, q *Queue, entries int) {
	t.Helper()
	got, after := 0, uint64(0)
	for items := read(t, q, after, 1000); len(items) > 0; items = read(t, q, after, 1000) {
		got, after = got+len(items), items[len(items)-1].Position
	}
	letters, err := q.DeadLetters(0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); got != entries || st.Length != int64(got) || st.DeadLetters != 0 {
		t.Errorf("%d entries of %d, the queue counts %d and %d dead letters: %.300v", got, entries, st.Length, st.DeadLetters, letters)
	}
}

// queueBlock identifies blocks of the only queue.
var queueBlock = append(layout.SinkPrefix(layout.PrefixQueue, 1), 0)

// TestDamageUnderRewrittenEntries damages entries of which another table has a newer form.
func TestDamageUnderRewrittenEntries(t *testing.T) {
	fs := closedQueue(t)
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	detachAll(t, q)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !damageKeys(t, fs, queueBlock, 30) {
		t.Fatal("no block of the queue")
	}
	_, q = runningQueue(t, fs)
	wantWhole(t, q, aliveEntries)
}

// TestDamageOfEntriesInFlight damages entries after they were read, and reads them again.
func TestDamageOfEntriesInFlight(t *testing.T) {
	fs := closedQueue(t)
	s, q := runningQueue(t, fs)
	wantWhole(t, q, aliveEntries)
	if err := q.Ack(1, aliveEntries); err != nil { // so that the table is made again, of which nothing is in a cache
		t.Fatal(err)
	}
	compactAll(t, s)
	settled(t, s)
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range slices.Concat(levels...) {
		name := table.BackingSSTNum.String() + ".sst"
		for b, nth := content(t, fs, name), 30; damageKey(b, queueBlock, &nth); {
			patchFile(t, fs, name, b)
			break
		}
	}
	unreadable := 0
	for position := uint64(2); position < aliveEntries; position += 50 {
		if _, err := q.entryAt(position); err != nil {
			unreadable++
		}
	}
	if unreadable == 0 {
		t.Fatal("all entries can be read")
	}
	wantWhole(t, q, aliveEntries-2)
}

// passingDisk does not read what has a key in it, from a moment on, until the file is opened again.
type passingDisk struct {
	vfs.FS
	key    []byte
	failed atomic.Int64
	bad    atomic.Bool
}

func (d *passingDisk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if d.failed.Load() > 0 {
		d.bad.Store(false)
	}
	f, err := d.FS.Open(name, opts...)
	return passingFile{f, d}, err
}

type passingFile struct {
	vfs.File
	disk *passingDisk
}

func (f passingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if f.disk.bad.Load() && bytes.Contains(p, f.disk.key) {
		f.disk.failed.Add(1)
		return 0, syscall.EIO
	}
	return n, err
}

// TestDamageThatPasses fails to read entries, or records, for a moment.
func TestDamageThatPasses(t *testing.T) {
	for what, key := range map[string][]byte{"queue": queueBlock, "log": []byte("payload 2")} {
		t.Run(what, func(t *testing.T) {
			disk := &passingDisk{FS: closedQueue(t), key: key}
			s := openTest(t, "store", Options{FS: disk, firstSequence: 1})
			disk.bad.Store(true) // what Open has read is in a cache
			t.Cleanup(runStore(t, s))
			eventually(t, "the store runs", s.running.Load)
			wantWhole(t, ensure(t, s, "a"), aliveEntries)
			if disk.failed.Load() == 0 {
				t.Error("no read failed")
			}
		})
	}
}

// recordsWithGaps damages the last records that are in tables, and appends others. Of the positions since, which are in memory, most are not
// of records.
func recordsWithGaps(t *testing.T) (s *Store, q *Queue, since []uint64) {
	t.Helper()
	fs := storeFiles(t, true)
	compactApart(t, fs)
	if !damageKeys(t, fs, []byte("150:"), 0) {
		t.Fatal("there is no last record")
	}
	s, q = runningQueue(t, fs)
	ensure(t, s, "b")
	for range 20 {
		since = append(since, appendN(t, s, 1, "a")...)
		b := s.NewBatch()
		for range 10 {
			b.Enqueue(Record{Time: testEpoch, Payload: []byte("of another sink")}, 1, Route{Sink: "b"})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	return s, q, since
}

// TestDamageBeforeRecordsWithGaps has the records behind the damage delivered, also after another reader has met it.
func TestDamageBeforeRecordsWithGaps(t *testing.T) {
	s, q, want := recordsWithGaps(t)
	if _, err := s.ReadLog(damageRecords-1, 10); err != nil { // finds the damage first
		t.Fatal(err)
	}
	var got []uint64
	for items := read(t, q, damageRecords, 1000); len(items) > 0; items = read(t, q, items[len(items)-1].Position, 1000) {
		for _, it := range items {
			if it.Sequence > damageRecords {
				got = append(got, it.Sequence)
			}
		}
	}
	if len(got) != len(want) {
		letters, _ := q.DeadLetters(0, 100)
		t.Errorf("%d of %d records are delivered, and there are %d dead letters", len(got), len(want), len(letters))
	}
}

// fillAll fills a sink with all records, also with those that cannot be read, and returns how many of those from a sequence on are delivered.
func fillAll(t *testing.T, s *Store, sink string, from uint64) (delivered int) {
	t.Helper()
	_, err := s.Fill(t.Context(), sink, func(*Item) (Selected, bool, error) { return Selected{}, true, nil })
	if err = errors.Join(err, s.Filled(sink)); err != nil {
		t.Fatal(err)
	}
	q := ensure(t, s, sink)
	for items := read(t, q, 0, 1000); len(items) > 0; items = read(t, q, items[len(items)-1].Position, 1000) {
		for _, it := range items {
			if it.Sequence >= from {
				delivered++
			}
		}
	}
	return delivered
}

// TestFillWithGapsBehindDamage gives a new sink the whole log: it gets all that is behind the damage, and one dead letter for what was there.
func TestFillWithGapsBehindDamage(t *testing.T) {
	s, _, since := recordsWithGaps(t)
	q, err := s.EnsureSink("new", FromLogStart)
	if err != nil {
		t.Fatal(err)
	}
	if got := fillAll(t, s, "new", since[0]); got != len(since) || q.Stats().DeadLetters != 1 {
		t.Errorf("%d of %d records are delivered, and there are %d dead letters", got, len(since), q.Stats().DeadLetters)
	}
}

// removeBlock has the damaged block of a key removed.
func removeBlock(t *testing.T, s *Store, key []byte) {
	t.Helper()
	_, _, damage := s.get(key)
	repaired, err := s.awaitRepair(damage)
	if _, ok, gerr := s.get(key); !repaired || ok || errors.Join(err, gerr) != nil {
		t.Fatalf("%v: repaired %v, there %v, %v", damage, repaired, ok, errors.Join(err, gerr))
	}
}

// TestFillOfARepairedLog puts a sink back, or makes one, after a repair has removed records: it is told that there were some.
func TestFillOfARepairedLog(t *testing.T) {
	const lost, most = aliveEntries / 2, 200 // the record in the damaged block, and how many that may have
	for name, left := range map[string]uint64{"before": 1, "amid": lost, "behind": lost + most, "new": 0} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restarted=%v", name, restarted), func(t *testing.T) {
				fs := vfs.NewMem()
				s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
				ensure(t, s, "a")
				ensure(t, s, "back")
				appendN(t, s, int(left))
				if err := s.LeaveSink("back"); err != nil {
					t.Fatal(err)
				}
				appendN(t, s, aliveEntries-int(left), "a")
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				compactApart(t, fs)
				if !damageKeys(t, fs, fmt.Appendf(nil, "payload %d", lost), 0) {
					t.Fatal("the record is nowhere")
				}
				s, _ = runningQueue(t, fs)
				removeBlock(t, s, layout.AppendLogKey(nil, lost))
				if restarted {
					settled(t, s)
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s, _ = runningQueue(t, fs)
				}
				since := appendN(t, s, 10)[0]
				sink := "back"
				if left == 0 {
					sink = "new"
					if _, err := s.EnsureSink("new", FromLogStart); err != nil {
						t.Fatal(err)
					}
				} else if err := s.RejoinSink("back", FromNow); err != nil {
					t.Fatal(err)
				}
				told := int64(1)
				if name == "behind" {
					told = 0
				}
				got := fillAll(t, s, sink, left+1)
				all := aliveEntries - int(left) + 10
				if st := ensure(t, s, sink).Stats(); st.DeadLetters != told || got > all-int(told) || got < all-int(told)*most {
					t.Errorf("%d of %d records are delivered, those from %d on included, and there are %d dead letters", got, all, since, st.DeadLetters)
				}
			})
		}
	}
}

// TestHeadlinesOfARepairedLog wants the loss of headlines told, of the records that they were of.
func TestHeadlinesOfARepairedLog(t *testing.T) {
	const n, lost = 3000, 1500
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	for i := range n {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: []byte("record")}, nil)
		b.PutHeadlines(fmt.Appendf(nil, "headline %d.", i+1))
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	compactApart(t, fs)
	if !damageKeys(t, fs, fmt.Appendf(nil, "headline %d.", lost), 0) {
		t.Fatal("the headline is nowhere")
	}
	for _, life := range []string{"of the repair", "after"} {
		t.Run(life, func(t *testing.T) {
			s, _ := runningQueue(t, fs)
			if life != "after" {
				removeBlock(t, s, layout.HeadlineKey(lost))
			}
			appendN(t, s, 10)
			for _, newestFirst := range []bool{false, true} {
				for _, of := range []struct {
					from, to uint64
					told     bool
				}{{1, math.MaxUint64, true}, {lost, lost, true}, {1, lost - 500, false}, {lost + 500, math.MaxUint64, false}} {
					err := s.ScanHeadlines(of.from, of.to, newestFirst, func([]byte) error { return nil })
					if told := errors.Is(err, ErrUnreadable); told != of.told || !told && err != nil {
						t.Errorf("from %d to %d, newest first %v: %v", of.from, of.to, newestFirst, err)
					}
				}
			}
		})
	}
}

// TestRepairBesideAFill repairs a table while a sink is filled, which may take long: who waits for the repair gives up, and takes for
// lost what is elsewhere.
func TestRepairBesideAFill(t *testing.T) {
	fs := storeFiles(t, true)
	if !damageKeys(t, fs, []byte("40:"), 0) {
		t.Fatal("the record is nowhere")
	}
	s, q := runningQueue(t, fs)
	if _, err := s.EnsureSink("new", FromLogStart); err != nil {
		t.Fatal(err)
	}
	filling, end, filled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		first := sync.OnceFunc(func() { close(filling) })
		_, err := s.Fill(t.Context(), "new", func(*Item) (Selected, bool, error) {
			first()
			<-end
			return Selected{}, true, nil
		})
		filled <- err
	}()
	<-filling
	began := time.Now()
	for items := read(t, q, 0, 1000); len(items) > 0; items = read(t, q, items[len(items)-1].Position, 1000) {
	}
	if waited := time.Since(began); waited >= repairWait || s.damaged.first() != "" {
		t.Errorf("the table is not repaired after %v", waited)
	}
	close(end)
	if err := <-filled; err != nil {
		t.Fatal(err)
	}
}
