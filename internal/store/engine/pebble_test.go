package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// compactions is a database with so many waiting compactions, of which so many may run.
type compactions struct{ allowed, waiting, looks atomic.Int64 }

func (c *compactions) GetAllowedWithoutPermission() int {
	c.looks.Add(1)
	return int(c.allowed.Load())
}

func (c *compactions) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	return c.waiting.Load() > 0, pebble.WaitingCompaction{}
}

func (c *compactions) Schedule(pebble.CompactionGrantHandle) bool { return c.waiting.Add(-1) >= 0 }

// TestScheduler lets two compactions wait for one that does not end. Each begins soon
// after more are allowed, although nothing tells the scheduler so. Then nothing waits, and
// the scheduler sleeps.
func TestScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &compactions{}
		db.allowed.Store(1)
		s := newScheduler()
		s.Register(2, db)
		permitted, running := s.TrySchedule()
		if !permitted {
			t.Fatal("the only compaction may not run")
		}
		if permitted, _ := s.TrySchedule(); permitted {
			t.Fatal("a second compaction may run")
		}
		db.waiting.Store(2)
		for left := int64(1); left >= 0; left-- {
			time.Sleep(10 * permitEvery)
			if n := db.waiting.Load(); n != left+1 {
				t.Errorf("%d compactions wait, want %d", n, left+1)
			}
			db.allowed.Add(1)
			time.Sleep(permitEvery)
			synctest.Wait()
			if n := db.waiting.Load(); n != left {
				t.Errorf("%d compactions wait, want %d", n, left)
			}
		}
		before := db.looks.Load()
		time.Sleep(time.Hour)
		if n := db.looks.Load() - before; n > 0 {
			t.Errorf("%d looks in an hour without a waiting compaction", n)
		}
		running.Done()
		s.Unregister()
		if permitted, _ := s.TrySchedule(); permitted {
			t.Error("a compaction may run after the end")
		}
	})
}

// heldFS holds up the creation of a table.
type heldFS struct {
	vfs.FS

	hold atomic.Bool
	held chan struct{} // it is held up
	free chan struct{} // closed when it may go on
}

func (f *heldFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") && f.hold.CompareAndSwap(true, false) {
		f.held <- struct{}{}
		<-f.free
	}
	return f.FS.Create(name, category)
}

// TestCompactEndsWhileItWaits ends the context of a compaction that is the next to run. The
// one behind it runs in its place.
func TestCompactEndsWhileItWaits(t *testing.T) {
	fs := &heldFS{FS: vfs.NewMem(), held: make(chan struct{}), free: make(chan struct{})}
	var allowed atomic.Int64
	allowed.Store(1)
	options := Options(fs, pebble.DefaultLogger, nil, 16<<20)
	options.DisableAutomaticCompactions = true
	options.CompactionConcurrencyRange = func() (int, int) { return 1, int(allowed.Load()) }
	db, err := pebble.Open("db", options)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // tables of level 0 over each other, three times beside each other
		for part := range 3 {
			for n := range 4 {
				if err := db.Set(fmt.Appendf(nil, "%d/%d", part, n), []byte("value"), nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	compact := func(ctx context.Context, part int) <-chan error {
		done := make(chan error, 1)
		go func() { done <- db.Compact(ctx, fmt.Appendf(nil, "%d", part), fmt.Appendf(nil, "%d/9", part), false) }()
		return done
	}
	fs.hold.Store(true)
	first := compact(t.Context(), 0)
	<-fs.held
	ctx, cancel := context.WithCancel(t.Context())
	second := compact(ctx, 1)
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		waits, _ = options.Experimental.CompactionScheduler.(*scheduler).db.GetWaitingCompaction()
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("compaction whose context ended: %v", err)
	}
	third := compact(t.Context(), 2)
	allowed.Store(2)
	if err := <-third; err != nil {
		t.Error(err)
	}
	close(fs.free)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
