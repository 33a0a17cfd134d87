package store

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/waittest"
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

var eventually = waittest.Until

func TestMinFree(t *testing.T) {
	mem := vfs.NewMem()
	disk := func(free uint64) {
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40})
	}
	disk(100 << 20)
	s := openTest(t, "store", Options{firstSequence: 1, FS: mem, MinFree: 50 << 20})
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
	for _, tc := range []struct {
		limits      Limits
		reason      string
		least, most int // commits of 1 MiB
	}{
		{Limits{MinFree: 90 << 20}, ReasonDiskFree, 10, 10},
		{Limits{MaxBytes: 16 << 20}, ReasonBudget, 4, 8},
	} {
		mem := vfs.NewMem()
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 1 << 40})
		s := openTest(t, "store", Options{firstSequence: 1, FS: mem, MinFree: tc.limits.MinFree, MaxBytes: tc.limits.MaxBytes})
		if err := s.measure(); err != nil {
			t.Fatal(err)
		}
		payload := noise(1 << 20)
		commits := 0
		for ; commits < 100; commits++ {
			if s.gate.closed() {
				break
			}
			b := s.NewBatch()
			b.Append(Record{Time: testEpoch, Payload: payload}, nil)
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		if reason := s.Health().Reason; commits < tc.least || commits > tc.most || reason != tc.reason {
			t.Errorf("%+v: closed after %d commits of 1 MiB, reason %q", tc.limits, commits, reason)
		}
	}
}

// TestNoRoomForTheReserve pauses ingest while the disk cannot hold the reserve, whatever
// the limits.
func TestNoRoomForTheReserve(t *testing.T) {
	mem := vfs.NewMem()
	disk := func(free uint64) {
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40})
	}
	disk(0)
	s := openTest(t, "store", Options{firstSequence: 1, FS: mem, MaxBytes: 64 << 20})
	if h := s.Health(); !h.Paused || h.Reason != ReasonDiskFree {
		t.Errorf("health %+v", h)
	}
	running(t, s)
	disk(100 << 20)
	eventually(t, "ingest resumes", func() bool { return !s.Health().Paused && !s.files.Short() })
}
