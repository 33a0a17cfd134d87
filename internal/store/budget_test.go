package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
)

// TestBudget fills and drains a store several times over, with a ledger that is
// written anew all the while. However fast that goes, what the store takes on disk
// never passes the budget, and each time ingest resumes by itself.
func TestBudget(t *testing.T) {
	budgets := []int64{16 << 20}
	if os.Getenv("WATCHERD_SOAK") != "" {
		budgets = append(budgets, 32<<20, 64<<20, 256<<20, 1<<30)
	}
	for _, budget := range budgets {
		t.Run(fmt.Sprintf("%dMiB", budget>>20), func(t *testing.T) { testBudget(t, budget) })
	}
}

func testBudget(t *testing.T, budget int64) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{firstSequence: 1, MaxBytes: budget})
	running(t, s)
	q := ensure(t, s, "a")
	peak := watchDisk(t, dir)
	after := uint64(0)
	for round := range 2 {
		written := fill(t, s, budget)
		h := s.Health()
		t.Logf("round %d: paused after %d MiB of payload at %d MiB, at most %d MiB were on disk", round, written>>20, h.Bytes>>20, peak()>>20)
		if !h.Paused || h.Reason != ReasonBudget {
			t.Errorf("round %d: %+v", round, h)
		}
		if round == 0 && written < budget/5 { // later, some of what was drained is still on disk
			t.Errorf("paused after only %d bytes", written)
		}
		for q.Stats().Length > 0 { // acks go on in a pause
			var positions []uint64
			for _, item := range read(t, q, after, 1000) {
				positions = append(positions, item.Position)
			}
			after = positions[len(positions)-1]
			if err := q.Ack(positions...); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "ingest resumes", func() bool { return !s.Health().Paused })
	}
	if most := peak(); most > budget {
		t.Errorf("%d bytes were on disk, of a budget of %d", most, budget)
	}
}

// TestEraseWithinTheBudget erases what is obsolete from a store in which ingest is paused: it
// rewrites the whole store, but a part at a time.
func TestEraseWithinTheBudget(t *testing.T) {
	const budget = 32 << 20
	dir := t.TempDir()
	s := openTest(t, dir, Options{firstSequence: 1, MaxBytes: budget})
	running(t, s)
	ensure(t, s, "a")
	fill(t, s, budget)
	// All of it into the lowest level, and a table above that spans it.
	if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false), s.awaitRemoval(t.Context())); err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		commitOne(t, s, fmt.Sprint("new", i%2), nil)
	}
	before, peak := diskUsage(t, dir), watchDisk(t, dir)
	if err := s.EraseObsolete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := peak(); most > min(budget, before+budget/4) {
		t.Errorf("%d bytes were on disk, before it %d, of a budget of %d", most, before, budget)
	}
}

// TestRewriteWithinTheBudget rewrites the log of a store that is almost full, as a scrub does: it waits for room before
// each part.
func TestRewriteWithinTheBudget(t *testing.T) {
	const budget, size = 16 << 20, 16 << 10
	dir := t.TempDir()
	s := openTest(t, dir, Options{firstSequence: 1, MaxBytes: budget})
	running(t, s)
	ensure(t, s, "a")
	for range budget / 3 / size {
		commitOne(t, s, "thing", noise(size))
	}
	peak := watchDisk(t, dir)
	for after, end := uint64(0), false; !end; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := s.WaitIngest(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if s.Health().Paused {
				break // the rest waits for room
			}
			continue // compactions are behind
		}
		if err == nil {
			after, _, end, err = s.RewriteLog(after, func([]byte) ([]byte, bool) { return noise(size), true })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if most := peak(); most > budget {
		t.Errorf("%d bytes were on disk, of a budget of %d", most, budget)
	}
}

// TestEngineKnowsTheBudget fills a store. The engine, which expands compactions by up to half
// of the free space that it is told of, is told of what is left of the budget.
func TestEngineKnowsTheBudget(t *testing.T) {
	const budget = 16 << 20
	dir := t.TempDir()
	s := openTest(t, dir, Options{firstSequence: 1, MaxBytes: budget})
	running(t, s)
	ensure(t, s, "a")
	available := func() uint64 {
		t.Helper()
		usage, err := s.files.FS().GetDiskUsage(dir)
		if err != nil {
			t.Fatal(err)
		}
		return usage.AvailBytes
	}
	if empty := available(); empty == 0 || empty > budget {
		t.Errorf("%d bytes are available to an empty store with a budget of %d", empty, budget)
	}
	fill(t, s, budget)
	if full := available(); full > budget/2 {
		t.Errorf("%d bytes are available to a full store with a budget of %d", full, budget)
	}
}

// TestBudgetWithManyDeadSinks lets sinks that take nothing hold the log: their records are
// copied out of it only where that makes room, and never faster than the log is deleted.
func TestBudgetWithManyDeadSinks(t *testing.T) {
	const budget, dead = 32 << 20, 20
	for _, tc := range []struct {
		name  string
		every int   // one event of so many is a dead sink's; others are delivered
		least int64 // bytes of payload before ingest pauses
	}{
		{"all dead", 1, budget / 4},
		{"others are delivered", 8, budget * 3 / 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openTest(t, dir, Options{firstSequence: 1, MaxBytes: budget, RetentionMaxBytes: 1 << 20})
			running(t, s)
			live := ensure(t, s, "live")
			for i := range dead {
				ensure(t, s, fmt.Sprint(i))
			}
			peak := watchDisk(t, dir)
			payload := noise(4 << 10)
			written, n, after := int64(0), 0, uint64(0)
			for written < 2*budget {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				err := s.WaitIngest(ctx)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					if s.Health().Paused {
						break
					}
					continue // compactions are behind
				}
				if err != nil {
					t.Fatal(err)
				}
				b := s.NewBatch()
				for range 64 {
					to := "live"
					if n++; n%tc.every == 0 {
						to = fmt.Sprint(n / tc.every % dead)
					}
					b.Append(Record{Time: time.Now(), Payload: payload}, []Route{{Sink: to}})
					written += int64(len(payload))
				}
				if err := s.Commit(b); err != nil {
					t.Fatal(err)
				}
				var positions []uint64
				for _, item := range read(t, live, after, 100) {
					after = item.Position
					positions = append(positions, after)
				}
				if err := live.Ack(positions...); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("paused after %d MiB of payload, at most %d MiB were on disk", written>>20, peak()>>20)
			if written < tc.least {
				t.Errorf("paused after only %d bytes; health %+v, log %+v", written, s.Health(), s.LogStats())
			}
			// A compaction may pass it for a moment, by what it rewrites.
			if most := peak(); most > budget+budget/16 {
				t.Errorf("%d bytes were on disk, of a budget of %d", most, budget)
			}
		})
	}
}

// fill commits groups of events and ledger entries until ingest pauses for good,
// and returns how many bytes of payload that took.
func fill(t *testing.T, s *Store, budget int64) (written int64) {
	t.Helper()
	payload, entry := noise(4<<10), noise(600)
	for n := 0; written < 4*budget; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := s.WaitIngest(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if s.Health().Paused {
				return written
			}
			continue // compactions are behind
		}
		if err != nil {
			t.Fatal(err)
		}
		b := s.NewBatch()
		for range 64 {
			n++
			b.Append(Record{Time: time.Now(), Payload: payload}, []Route{{Sink: "a"}})
			b.PutState("things", fmt.Sprintf("ns/%d", n*7919%2000), entry)
			written += int64(len(payload))
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("ingest never pauses")
	return 0
}

// watchDisk looks at what dir takes on disk until the test ends. The function that
// it returns tells the most so far.
func watchDisk(t *testing.T, dir string) (peak func() int64) {
	t.Helper()
	var most atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			most.Store(max(most.Load(), diskUsage(t, dir)))
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		wg.Wait()
	})
	return most.Load
}

// diskUsage is what the files below dir take on disk, as du counts.
func diskUsage(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				const block = 512 // the unit, whatever the file system's own
				total += info.Sys().(*syscall.Stat_t).Blocks * block
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return total
}

// TestLargeBatchLeavesNoLargeLog commits batches that are larger than a memtable. The
// write-ahead logs that they made are not written over: their size would count against the
// budget for ever, and keep ingest paused.
func TestLargeBatchLeavesNoLargeLog(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{firstSequence: 1, MaxBytes: 12 << 20})
	ensure(t, s, "a")
	large := noise(3 << 20)
	for range 2 {
		commitOne(t, s, "large", large)
	}
	for range 2 * engine.MemTables {
		commitOne(t, s, "small", nil)
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if size := s.db.Metrics().WAL.PhysicalSize; size > 1<<20 {
		t.Errorf("the log in use has %d bytes", size)
	}
}

// slowRemoval is a filesystem on which the removal of a table waits.
type slowRemoval struct {
	vfs.FS
	resume    chan struct{}
	removing  atomic.Int32 // tables
	compacted atomic.Int32 // tables that compactions have begun
}

func (f *slowRemoval) Remove(name string) error {
	if strings.HasSuffix(name, ".sst") {
		f.removing.Add(1)
		<-f.resume
	}
	return f.FS.Remove(name)
}

func (f *slowRemoval) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if c == "pebble-compaction" {
		f.compacted.Add(1)
	}
	return f.FS.Create(name, c)
}

// TestCompactionWaitsForRemoval compacts a store twice. The second compaction writes nothing
// before the tables that the first replaced are removed: else the disk held the inputs of
// both.
func TestCompactionWaitsForRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &slowRemoval{FS: vfs.NewMem(), resume: make(chan struct{})}
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: 16 << 20})
		ensure(t, s, "a")
		compact := func() error {
			appendN(t, s, 100, "a")
			if err := s.db.Flush(); err != nil {
				return err
			}
			return s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		}
		if err := errors.Join(compact(), compact()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := fs.compacted.Load()
		if fs.removing.Load() == 0 || before == 0 {
			t.Fatalf("%d tables are removed after compactions of %d", fs.removing.Load(), before)
		}
		done := make(chan error, 1)
		go func() { done <- compact() }()
		synctest.Wait()
		if n := fs.compacted.Load() - before; n > 0 {
			t.Errorf("a compaction began %d tables beside those that are not removed", n)
		}
		close(fs.resume)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if fs.compacted.Load() == before {
			t.Error("nothing was compacted")
		}
	})
}

// TestCompactionWaitsForReaders compacts a store in which ingest is paused, while a reader keeps what an
// earlier compaction replaced. The compaction writes nothing before the reader ends.
func TestCompactionWaitsForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &slowRemoval{FS: vfs.NewMem(), resume: make(chan struct{})}
		close(fs.resume)
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: 16 << 20})
		ensure(t, s, "a")
		compact := func() error {
			appendN(t, s, 100, "a")
			return errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
		}
		if err := compact(); err != nil {
			t.Fatal(err)
		}
		reader, err := s.db.NewIter(nil)
		if err != nil {
			t.Fatal(err)
		}
		reader.First()
		if err := compact(); err != nil {
			t.Fatal(err)
		}
		s.SetLimits(Limits{MaxBytes: 1})
		synctest.Wait()
		if m := s.db.Metrics(); m.Table.ZombieCount == 0 || m.Table.ObsoleteCount > 0 {
			t.Fatalf("the reader keeps %d tables, and %d are not removed", m.Table.ZombieCount, m.Table.ObsoleteCount)
		}
		before := fs.compacted.Load()
		done := make(chan error, 1)
		go func() { done <- compact() }()
		synctest.Wait()
		if n := fs.compacted.Load() - before; n > 0 {
			t.Errorf("a compaction began %d tables beside those that the reader keeps", n)
		}
		if err := errors.Join(reader.Close(), <-done); err != nil {
			t.Fatal(err)
		}
		if fs.compacted.Load() == before {
			t.Error("nothing was compacted")
		}
	})
}

// TestBudgetCountsTablesThatReadersKeep compacts a store while a reader has its tables open.
// Until it ends, what it keeps on disk counts as the store's.
func TestBudgetCountsTablesThatReadersKeep(t *testing.T) {
	const kept = 2 << 20
	s := openTest(t, t.TempDir(), Options{firstSequence: 1})
	ensure(t, s, "a")
	b := s.NewBatch()
	b.PutState("things", "kept", noise(kept))
	if err := errors.Join(s.Commit(b), flush(s)); err != nil {
		t.Fatal(err)
	}
	reader, err := s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if reader != nil {
			_ = reader.Close()
		}
	}()
	reader.First()
	b = s.NewBatch()
	b.DeleteState("things", "kept")
	if err := errors.Join(s.Commit(b), flush(s), engine.CompactAll(t.Context(), s.db)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "only what the reader keeps is left", func() bool { return s.db.Metrics().Table.ObsoleteCount == 0 })
	if err := s.measure(); err != nil {
		t.Fatal(err)
	}
	if bytes := s.Health().Bytes; bytes < kept {
		t.Errorf("the store takes %d bytes, and a reader keeps %d", bytes, kept)
	}
	err, reader = reader.Close(), nil
	if err := errors.Join(err, s.awaitRemoval(t.Context()), s.measure()); err != nil {
		t.Fatal(err)
	}
	if bytes := s.Health().Bytes; bytes >= kept {
		t.Errorf("the store takes %d bytes after the reader ended, which kept %d", bytes, kept)
	}
}
