package store

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// gate pauses ingest. It decides by the last measurement of the disk and of level 0, plus
// every byte and every full memtable since.
type gate struct {
	news signal

	mu       sync.Mutex
	limits   Limits    // guarded by mu
	bytes    int64     // guarded by mu; size of the store when measured
	kept     int64     // guarded by mu; of bytes, what is obsolete and stays until a backup ends
	measured time.Time // guarded by mu
	free     int64     // guarded by mu; free disk when measured; -1 = unknown
	short    bool      // guarded by mu; the disk has no room for the reserve
	level0   int       // guarded by mu; tables over each other in level 0, and full memtables, when measured
	reason   string    // guarded by mu; of the pause; "" = none
	now      use       // guarded by mu; since Open
	then     use       // guarded by mu; of now, what the measurement includes

	maxLevel0 int // of which ingest waits
}

// use is what makes a measurement old.
type use struct {
	bytes     int64
	memtables int
}

// since is what the measurement does not include. It is called with mu held.
func (g *gate) since() use {
	return use{g.now.bytes - g.then.bytes, g.now.memtables - g.then.memtables}
}

// Reasons of a pause, as Health and the metrics name them.
const (
	ReasonBudget   = "store.maxBytes is reached, less the room for compactions (raise it unless a sink holds back the log)"
	ReasonDiskFree = "disk nearly full"
)

func newGate(l Limits) *gate {
	return &gate{limits: l, free: -1, maxLevel0: engine.Level0StopIngest(l.MaxBytes)}
}

// maxReserve bounds the part of the budget that is kept for Pebble's rewrites.
const maxReserve = 256 << 20

// pauseBytes is below the budget: flushed memtables and compacted tables exist twice
// for a while (see engine.SizeFor), and the last admitted batch comes on top. Of a small
// budget, the reserve of disk room takes 1/8, old write-ahead logs about 1/10, and one
// compaction was seen to take 1/4.
func (l Limits) pauseBytes() int64 { return l.MaxBytes - min(l.MaxBytes/2, maxReserve) }

// Ingest resumes with some room to spare, so that it does not flap.
func (l Limits) resumeBytes() int64 { return l.pauseBytes() - l.pauseBytes()/16 }
func (l Limits) resumeFree() int64  { return l.MinFree + l.MinFree/5 }

// Pressure comes before a pause: from here on, delivered records that are kept only for
// replay are deleted.
func (l Limits) pressureBytes() int64 { return l.pauseBytes() - l.pauseBytes()/8 }
func (l Limits) pressureFree() int64  { return l.MinFree + l.MinFree/4 }

// left returns what the store leaves of its budget, by the measurement and all that was
// written since. It is negative beyond the budget.
func (g *gate) left() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limits.MaxBytes <= 0 {
		return math.MaxInt64
	}
	return g.limits.MaxBytes - g.bytes - g.since().bytes
}

// pauseBytes is that of the limits as they are now.
func (g *gate) pauseBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.pauseBytes()
}

func (g *gate) wrote(n int64) {
	g.mu.Lock()
	g.now.bytes += n
	g.mu.Unlock()
}

// decideLocked updates reason and reports whether ingest is paused.
func (g *gate) decideLocked() bool {
	l := g.limits
	maxBytes, minFree := l.pauseBytes(), l.MinFree
	if g.reason != "" {
		maxBytes, minFree = l.resumeBytes(), l.resumeFree()
	}
	was, written := g.reason, g.since().bytes
	switch {
	case l.MaxBytes > 0 && g.bytes+written >= maxBytes:
		g.reason = ReasonBudget
	case g.short, l.MinFree > 0 && g.free >= 0 && g.free-written < minFree:
		g.reason = ReasonDiskFree
	default:
		g.reason = ""
	}
	if was != "" && g.reason == "" {
		g.news.notify()
	}
	return g.reason != ""
}

func (g *gate) behindLocked() bool { return g.level0+g.since().memtables >= g.maxLevel0 }

// closed reports whether ingest has to wait: it is paused, or compactions are behind.
func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.decideLocked() || g.behindLocked()
}

// rotated counts a full memtable, which is to be a table of level 0.
func (g *gate) rotated() {
	g.mu.Lock()
	g.now.memtables++
	g.mu.Unlock()
}

// compacted has those that wait for compactions measure again.
func (g *gate) compacted() {
	g.mu.Lock()
	behind := g.behindLocked()
	g.mu.Unlock()
	if behind {
		g.news.notify()
	}
}

// pressed returns the bytes of delivered records to delete; 0 without pressure. What a backup
// keeps does not count: to delete records would make no room before its end, and the compactions for
// it would leave more of that.
func (g *gate) pressed() (excess int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, written := g.limits, g.since().bytes-g.kept
	if l.MaxBytes > 0 {
		excess = g.bytes + written - l.pressureBytes()
	}
	if l.MinFree > 0 && g.free >= 0 {
		excess = max(excess, l.pressureFree()-(g.free-written))
	}
	if g.short && g.kept == 0 {
		excess = max(excess, 1<<20)
	}
	return max(excess, 0)
}

// cramped reports whether the disk, not the budget, lacks room.
func (g *gate) cramped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.short || g.limits.MinFree > 0 && g.free >= 0 && g.free-g.since().bytes < g.limits.pressureFree()
}

// SetLimits replaces the limits given to Open.
func (s *Store) SetLimits(l Limits) {
	s.gate.mu.Lock()
	s.gate.limits = l
	s.gate.decideLocked()
	s.gate.mu.Unlock()
	s.gate.news.notify()
}

// BatchBytes is the size at which a batch should be committed, give or take its last record: a memtable. What a batch
// has beyond it is on the disk up to four times until compactions are done, for which a small budget keeps no room.
func (s *Store) BatchBytes() int {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return int(engine.MemTableBytes(s.gate.limits.MaxBytes))
}

// Ingests reports whether WaitIngest need not wait. It does not block.
func (s *Store) Ingests() bool { return s.Err() == nil && !s.gate.closed() }

// WaitIngest returns nil once the store is below its budget, the disk has room and
// compactions keep up, else the context's error, ErrFailed or ErrClosed. Call it before
// each batch, while Run runs.
func (s *Store) WaitIngest(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	for {
		news := s.gate.news.wait()
		if !s.gate.closed() {
			return ctx.Err()
		}
		// The estimate counts rewritten bytes twice, and compacted tables still.
		if err := s.measure(); err != nil {
			return err
		}
		if err := s.await(ctx, news); err != nil {
			return err
		}
	}
}

// measure reads the size of the store from Pebble, if its files may have changed, and
// the free space from the filesystem.
func (s *Store) measure() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	g := s.gate
	g.mu.Lock()
	now, measured := g.now, g.measured
	g.mu.Unlock()

	var bytes, kept int64
	var level0 int
	moved := s.moved.Swap(false) || time.Since(measured) >= remeasureEvery
	if moved {
		measured = time.Now()
		m := s.db.Metrics()
		// Pebble knows the physical size of the WAL in use as of its creation. Old WALs
		// (five at most) do not count: Pebble keeps them and writes over them.
		bytes = int64(m.DiskSpaceUsage() - m.WAL.ObsoletePhysicalSize - m.WAL.PhysicalSize + max(m.WAL.PhysicalSize, m.WAL.Size))
		if s.files.Copying() { // no file is removed, flushed logs neither
			kept = int64(m.Table.Local.ObsoleteSize+m.Table.Local.ZombieSize+m.WAL.PhysicalSize) - int64(min(m.WAL.PhysicalSize, m.WAL.Size))
		}
		level0 = int(m.Levels[0].Sublevels) + int(m.MemTable.Count) - 1
		if m.Compact.NumInProgress > 0 {
			s.moved.Store(true)
		}
	}
	free := int64(-1)
	usage, err := s.opts.FS.GetDiskUsage(s.dir)
	switch {
	case err == nil:
		free = int64(usage.AvailBytes)
	case !errors.Is(err, vfs.ErrUnsupported):
		s.opts.Logger.Warn("free disk space is unknown", "error", err)
	}

	s.refill(free)

	g.mu.Lock()
	defer g.mu.Unlock()
	wasBehind := g.behindLocked()
	if moved {
		g.bytes, g.kept, g.measured, g.level0, g.then.memtables = bytes, kept, measured, level0, now.memtables
	}
	g.free, g.then.bytes, g.short = free, now.bytes, s.files.Short()
	if wasBehind && !g.behindLocked() {
		g.news.notify()
	}
	g.decideLocked()
	return nil
}

func (s *Store) refill(free int64) {
	if !s.files.Short() || s.Err() != nil {
		return
	}
	if err := s.files.Refill(free); err != nil {
		if suppressed, ok := s.limit.Allow("reserve"); ok {
			s.opts.Logger.Warn("no room is reserved on the disk", "error", salvage.FirstLine(err), "suppressed", suppressed)
		}
	}
}

// Health is the state of the store for operators and liveness probes.
type Health struct {
	// Failed is nil while the store works.
	Failed error
	// Paused reports whether ingest waits, Reason is the cause.
	Paused bool
	Reason string
	// Bytes is the size of the store on disk, MaxBytes its budget (0 = none).
	Bytes    int64
	MaxBytes int64
	// DiskFree is the free space of the disk (-1 = unknown), MinFree its lower bound
	// (0 = none).
	DiskFree int64
	MinFree  int64
	// LastCommit is the time of the last successful commit since Open; zero for none.
	LastCommit time.Time
	// CommitStuck is the age of the commit in progress; 0 for none.
	CommitStuck time.Duration
}

// Health returns the state of the store, from memory.
func (s *Store) Health() Health {
	h := Health{Failed: s.Err()}
	if at := s.lastCommit.Load(); at != 0 {
		h.LastCommit = time.Unix(0, at)
	}
	if began := s.commitBegan.Load(); began != 0 {
		h.CommitStuck = max(time.Duration(time.Now().UnixNano()-began), 1)
	}
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	h.Paused = g.decideLocked()
	h.Reason = g.reason
	h.Bytes, h.MaxBytes = g.bytes+g.since().bytes, g.limits.MaxBytes
	h.DiskFree, h.MinFree = g.free, g.limits.MinFree
	return h
}
