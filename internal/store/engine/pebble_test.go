package engine

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
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
