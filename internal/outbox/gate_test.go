package outbox

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// running runs s.Run until the test or the returned function ends it.
func running(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 30 s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func diskUsage(t *testing.T, dir string) int64 {
	t.Helper()
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// TestBudget fills a store until ingest pauses, drains it, and wants it to
// accept again by itself with its disk space given back.
func TestBudget(t *testing.T) {
	dir := t.TempDir()
	const budget = 64 << 20
	s := openTest(t, dir, Options{MaxBytes: budget})
	running(t, s)
	q := ensure(t, s, "a")
	payload := noise(32 << 10)
	const group = 16
	written := int64(0)
	fill := func() {
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := s.WaitIngest(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b := s.NewBatch()
			for range group {
				b.Append(Record{Time: time.Now(), Payload: payload}, []Route{{Sink: "a"}})
			}
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
			written += group * int64(len(payload))
			if written > 4*budget {
				t.Fatal("ingest never pauses")
			}
		}
	}
	fill()
	full := diskUsage(t, dir)
	h := s.Health()
	t.Logf("paused after %d MiB of payload at %d MiB on disk (%d MiB known): %s", written>>20, full>>20, h.Bytes>>20, h.Reason)
	if !h.Paused || h.Reason != ReasonBudget {
		t.Errorf("health %+v", h)
	}
	if written < budget/4 {
		t.Errorf("paused after only %d bytes", written)
	}
	// The batch asked for last, memtables on their way to tables, and one
	// compaction.
	most := budget + int64(group*len(payload)) + 4*int64(memTableFor(budget)) + 25*tableSizeFor(budget)
	if full > most {
		t.Errorf("%d bytes on disk, want at most %d", full, most)
	}

	// Acks go on while ingest is paused.
	after := uint64(0)
	for q.Stats().Length > 0 {
		items, err := q.Read(after, 100, 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			after = item.Position
			if err := q.Ack(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.WaitIngest(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk space comes back", func() bool { return diskUsage(t, dir) < budget })
	// And again: the budget holds for good.
	written = 0
	fill()
	if written < budget/8 {
		t.Errorf("the second time it took only %d bytes", written)
	}
	if full = diskUsage(t, dir); full > most {
		t.Errorf("the second time %d bytes on disk, want at most %d", full, most)
	}
}

func TestMinFree(t *testing.T) {
	mem := vfs.NewMem()
	disk := func(free uint64) {
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40})
	}
	disk(100 << 20)
	s := openTest(t, "store", Options{FS: mem, MinFree: 50 << 20})
	running(t, s)
	eventually(t, "free space is known", func() bool { return s.Health().DiskFree == 100<<20 })
	if err := s.WaitIngest(t.Context()); err != nil {
		t.Fatal(err)
	}
	disk(49 << 20)
	eventually(t, "ingest pauses", func() bool { return s.Health().Paused })
	if h := s.Health(); h.Reason != ReasonDiskFree {
		t.Errorf("health %+v", h)
	}
	// A little more is not enough to go on.
	disk(55 << 20)
	eventually(t, "free space is known", func() bool { return s.Health().DiskFree == 55<<20 })
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- s.WaitIngest(ctx) }()
	if h := s.Health(); !h.Paused {
		t.Errorf("health %+v", h)
	}
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait returns %v", err)
	}
	go func() { waited <- s.WaitIngest(t.Context()) }()
	disk(70 << 20)
	if err := <-waited; err != nil {
		t.Error(err)
	}
	// The floor can be moved.
	s.SetLimits(Limits{MinFree: 80 << 20})
	eventually(t, "ingest pauses", func() bool { return s.Health().Paused })
	s.SetLimits(Limits{})
	if err := s.WaitIngest(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBurstIsCounted commits faster than the disk is measured.
func TestBurstIsCounted(t *testing.T) {
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 1 << 40})
	s := openTest(t, "store", Options{FS: mem, MinFree: 90 << 20})
	if err := s.measure(); err != nil {
		t.Fatal(err)
	}
	payload := noise(1 << 20)
	commits := 0
	for ; commits < 100; commits++ {
		if s.gate.paused() {
			break
		}
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: payload}, nil)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	if commits != 10 {
		t.Errorf("paused after %d commits of 1 MiB with 10 MiB to go", commits)
	}
}
