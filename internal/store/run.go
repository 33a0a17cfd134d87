package store

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

const (
	measureEvery = 250 * time.Millisecond
	retainEvery  = 10 * time.Second
	// remeasureEvery is how often the size is read without an event of a change: Pebble
	// may report a deleted file before it counts it.
	remeasureEvery = 10 * time.Second
	syncEvery      = 50 * time.Millisecond
	// reclaimAfter is how many deleted bytes are worth a flush without pressure.
	reclaimAfter = 32 << 20
	// reclaimPause is the time between two reclaims under pressure.
	reclaimPause = 5 * time.Second
)

// Run measures the disk, applies retention, repairs tables and makes acks durable. It
// returns nil when the context ends, and Err when the store fails.
func (s *Store) Run(ctx context.Context) error {
	s.startSequence()
	s.running.Store(true)
	defer s.running.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	reclaim := make(chan reclaimable, 1)
	var reclaiming atomic.Int32 // requests without an end
	wg.Go(func() { s.reclaimLoop(ctx, reclaim, &reclaiming) })
	wg.Go(func() { s.syncLoop(ctx) })
	wg.Go(func() { s.expireLoop(ctx) })
	wg.Go(func() { s.relieveLoop(ctx) })
	defer wg.Wait()
	defer cancel()
	if err := s.resumeRepair(); err != nil {
		return ended(ctx, err)
	}

	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	var unflushed int64
	var retained, reclaimed, pausedAt time.Time
	var paused bool
	for {
		damaged := s.damaged.news.wait()
		if err := s.repairTables(); err != nil { //nolint:contextcheck // a repair that has begun is completed
			return ended(ctx, err)
		}
		if err := s.measure(); err != nil {
			return ended(ctx, err)
		}
		if paused = s.logPause(paused); !paused {
			pausedAt = time.Now()
		}
		excess := s.gate.pressed()
		if excess > 0 || time.Since(retained) >= retainEvery {
			retained = time.Now()
			// What is copied takes room until the original is compacted away.
			if reclaiming.Load() == 0 || !s.gate.cramped() {
				more, err := s.relieve(s.Age(), s.limits(), excess)
				if err != nil {
					return ended(ctx, err)
				}
				if more {
					retained = time.Time{} // continue at the next tick
				}
			}
			if err := s.joinHeadlines(); err != nil {
				return ended(ctx, err)
			}
			gone, err := s.retain(s.Age(), s.limits(), excess)
			if err != nil {
				return ended(ctx, err)
			}
			unflushed += gone
			// Under pressure, acknowledged entries count too: no later write pushes their
			// deletions down while ingest is paused.
			pressed := excess > 0 && (unflushed > 0 || time.Since(reclaimed) >= reclaimPause)
			if unflushed >= reclaimAfter || pressed {
				reclaiming.Add(1)
				select {
				case reclaim <- reclaimable{log: s.LogStats().First, queues: time.Since(pausedAt) >= reclaimPause}:
					unflushed, reclaimed = 0, time.Now()
				default: // the last one is in progress
					reclaiming.Add(-1)
				}
			}
		}
		select {
		case <-ticker.C:
		case <-damaged:
		case <-ctx.Done():
			return nil
		case <-s.failed:
			return s.failure
		}
	}
}

// relieveLoop compacts level 0 while Pebble postpones it after damage.
func (s *Store) relieveLoop(ctx context.Context) {
	for {
		damaged := s.damaged.news.wait()
		var next <-chan time.Time
		if s.damaged.shunned() {
			next = time.After(measureEvery)
		}
		select {
		case <-damaged:
			continue
		case <-next:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		}
		if err := s.relieveLevel0(ctx); err != nil && ctx.Err() == nil && s.Err() == nil {
			if suppressed, ok := s.limit.Allow("level0"); ok {
				s.opts.Logger.Warn("a compaction failed", "error", salvage.FirstLine(err), "suppressed", suppressed)
			}
		}
	}
}

// logPause logs changes of the pause of ingest and reports whether it is paused. It
// misses a pause between two measurements.
func (s *Store) logPause(was bool) bool {
	h := s.Health()
	switch {
	case h.Paused && !was:
		s.opts.Logger.Warn("ingest is paused until there is room; deliveries continue", "reason", h.Reason,
			"bytes", h.Bytes, "maxBytes", h.MaxBytes, "diskFree", h.DiskFree, "minFree", h.MinFree)
	case was && !h.Paused:
		s.opts.Logger.Info("ingest resumed", "bytes", h.Bytes, "diskFree", h.DiskFree)
	}
	return h.Paused
}

// ended returns nil for ErrClosed and for errors after the end of the context.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}

func (s *Store) limits() Limits {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return s.gate.limits
}

// syncLoop makes acks durable when no commit does. An error fails the store.
func (s *Store) syncLoop(ctx context.Context) {
	for s.syncLazy() == nil {
		select {
		case <-s.unsynced:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(syncEvery): // one sync for many acks
		case <-ctx.Done():
			return
		}
	}
}

// reclaimable are deleted ranges whose space is still used.
type reclaimable struct {
	log    uint64 // the log before this sequence
	queues bool   // entries removed from queues, and dead letters
}

// reclaimLoop turns deleted ranges into free disk, one at a time; it takes each away from
// pending.
func (s *Store) reclaimLoop(ctx context.Context, requests <-chan reclaimable, pending *atomic.Int32) {
	from := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		case r := <-requests:
			err := s.reclaim(ctx, from, r)
			pending.Add(-1)
			if err != nil {
				if ctx.Err() == nil && s.Err() == nil {
					if suppressed, ok := s.limit.Allow("reclaim"); ok {
						s.opts.Logger.Warn("deleted records still take disk space", "error", salvage.FirstLine(err), "suppressed", suppressed)
					}
				}
				continue
			}
			from = r.log
		}
	}
}

// reclaim flushes the deletions and compacts the deleted part of the log; otherwise only
// later writes would push the deletions down. Queues and dead letters are compacted only while
// ingest stays paused and such writes are missing: their payloads take space twice meanwhile.
func (s *Store) reclaim(ctx context.Context, from uint64, r reclaimable) (err error) {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	defer func() {
		if v := recover(); v != nil { // see applyNow
			s.fail(errors.New("storage engine panicked in a flush"))
			err = s.Err()
		}
	}()
	if err := s.flush(ctx); err != nil {
		return err
	}
	if s.gate.pressed() > 0 {
		from = 0
	}
	if !s.gate.cramped() {
		return s.compactDeleted(ctx, from, r)
	}
	// Pebble tries compactions of its own first, again and again while they find no room.
	// Meanwhile a flush of later deletions frees whole tables.
	wait := func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, reclaimPause, errNoRoom)
		defer cancel()
		if err := s.compactDeleted(ctx, from, r); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return context.Cause(ctx)
	}
	if err = wait(); err == nil || ctx.Err() != nil {
		return err
	}
	// What is left of a table is written before the table goes.
	giveBack := s.files.Lend()
	defer giveBack()
	return wait()
}

// flush makes tables of what was written before. Pebble tries that again for as long as the disk is full.
func (s *Store) flush(ctx context.Context) error {
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.failed:
		return s.failure
	}
}

var errNoRoom = errors.New("compactions wait for disk space")

func (s *Store) compactDeleted(ctx context.Context, from uint64, r reclaimable) error {
	for prefix, shrunk := range map[byte]*atomic.Bool{layout.PrefixQueue: &s.shrunk, layout.PrefixDeadLetter: &s.dropped} {
		if !r.queues || !shrunk.Swap(false) {
			continue
		}
		lower, upper := layout.PrefixRange(prefix)
		if err := s.db.Compact(ctx, lower, upper, false); err != nil {
			shrunk.Store(true)
			return err
		}
	}
	if from >= r.log {
		return nil
	}
	return s.db.Compact(ctx, layout.AppendLogKey(nil, from), layout.AppendLogKey(nil, r.log), false)
}
