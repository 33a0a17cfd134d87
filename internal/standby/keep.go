package standby

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/wait"
)

// snapshotRetry is the pause after a snapshot that failed: it may have read the whole store.
const snapshotRetry = time.Minute

// Run trims the journal, and keeps a snapshot that it continues, while the store is open: every ten seconds, and sooner
// when an eighth of the stream's room was written. It returns when ctx is done or the store fails.
func (m *Member) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var kept time.Time
	var at uint64 // what was written when it was kept
	swept := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.store.Failed():
			return m.store.Err()
		case <-ticker.C:
		}
		written := m.writer.Written()
		if time.Since(kept) < syncEvery && written-at < m.room/8 {
			continue
		}
		if err := m.keep(ctx); err != nil {
			return err
		}
		swept = swept || m.sweepLeft(ctx)
		kept, at = time.Now(), written
	}
}

// keep makes durable what was applied, and does the rest of Run's work. An error is the store's.
func (m *Member) keep(ctx context.Context) error {
	durable, err := m.store.SyncJournal()
	if err != nil {
		return cmp.Or(m.store.Err(), err)
	}
	if err := m.trim(ctx, durable, m.save); err != nil && ctx.Err() == nil && m.store.Err() == nil {
		m.cfg.Log.Warn("the journal is not trimmed", "error", err)
	}
	return m.store.Err()
}

// trim removes the oldest entries when they take half of the stream's room, until they take three eighths, but none behind the
// snapshot, and none that this directory could need after a crash of its machine. Without a snapshot, or an answer about it, it waits until three
// quarters are taken: a journal that is full records nothing. Save makes a snapshot, also of a store that much was written
// behind: a replica that is seeded reads that before it can lead. No replica reads beyond entries that are missing: they are trimmed
// with all before them, behind another snapshot. Save's argument is the snapshot that there is.
func (m *Member) trim(ctx context.Context, durable store.Position, save func(context.Context, *journal.Snapshot) (*journal.Snapshot, error)) error {
	x, err := m.client.Extent(ctx)
	if err != nil {
		return err
	}
	m.room = x.Room
	full := func(quarters uint64) bool { return x.Bytes >= m.room/4*quarters }
	before := durable.First
	if full(2) { // entries are about equally large
		share := 1 - 0.375*float64(m.room)/float64(x.Bytes)
		before = min(before, x.First+uint64(float64(x.Last-x.First)*share))
	}
	snapshot, err := m.snapshot(ctx)
	mended := false
	switch {
	case err != nil && (ctx.Err() != nil || !full(3)):
		return err
	case err != nil: // its stream may not answer for long
		m.cfg.Log.Warn("it is not known up to where the journal has a snapshot", "error", err)
	case snapshot == nil || snapshot.Old || x.Holes || behind(x, snapshot) || full(2) && snapshot.First < before:
		if fresh, err := save(ctx, snapshot); err == nil {
			snapshot, mended = fresh, x.Holes
		} else if ctx.Err() == nil && !errors.Is(err, errSaveLater) && m.store.Err() == nil {
			m.cfg.Log.Error("the snapshot of the journal fails; no replica can be seeded", "error", err)
		}
	}
	switch {
	case mended:
		m.cfg.Log.Error("the journal has lost entries amid others; a replica that lacks them is seeded behind them")
		before = min(durable.First, snapshot.First)
	case !full(2):
		return nil
	case snapshot != nil && snapshot.First >= before:
	case !full(3):
		return nil
	case snapshot != nil && snapshot.First > x.First:
		before = snapshot.First
	default:
		m.cfg.Log.Error("the journal is trimmed beyond its snapshot; a replica that is behind cannot follow until there is another")
	}
	return m.client.Trim(ctx, before)
}

// behind reports whether the journal has a lot behind a snapshot: a sixteenth of its room, and four times what another costs. The
// snapshot may be younger than the extent, as a scrub makes one, too.
func behind(x journal.Extent, s *journal.Snapshot) bool {
	if s.Last >= x.Last {
		return false
	}
	share := float64(x.Last-s.Last) / float64(x.Last-x.First+1) // as above
	return uint64(float64(x.Bytes)*share) > max(x.Room/16, 4*s.Size)
}

// makeRoom trims a stream that is full, and removes what a leader has left of a snapshot: no replica leads that would. What is trimmed is
// in the snapshot, or in this directory.
func (f *follower) makeRoom(ctx context.Context, full error) error {
	if !f.full {
		f.full = true
		f.cfg.Log.Warn("the journal is full and no replica leads; this one trims it", "error", full)
	}
	if err := f.folder.Sync(); err != nil {
		return err
	}
	later := func(context.Context, *journal.Snapshot) (*journal.Snapshot, error) { return nil, errSaveLater }
	if err := f.trim(ctx, f.folder.Position(), later); err != nil {
		return err
	}
	f.sweepLeft(ctx)
	return nil
}

// snapshot is what the journal continues; nil if there is none, or one that cannot be used.
func (m *Member) snapshot(ctx context.Context) (*journal.Snapshot, error) {
	s, err := m.client.Snapshot(ctx)
	var continued, whole bool
	if err == nil && s != nil {
		continued, err = m.client.Has(ctx, s.Position)
	}
	if err == nil && continued {
		whole, err = m.client.Whole(ctx, s)
	}
	switch {
	case final(err):
		m.cfg.Log.Warn("the snapshot of the journal cannot be used", "error", err)
		return nil, nil //nolint:nilnil // as documented
	case err != nil || !whole:
		return nil, err
	}
	if now := m.State(); now.Leads && now.Term > s.Last { // this store has begun a journal behind it, see journal.Client.Begin
		return nil, nil //nolint:nilnil // as documented
	}
	return s, nil
}

var errSaveLater = errors.New("it failed a moment ago, or this replica does not lead")

// save makes a snapshot, for Run.
func (m *Member) save(ctx context.Context, before *journal.Snapshot) (*journal.Snapshot, error) {
	if time.Now().Before(m.retry) {
		return nil, errSaveLater
	}
	s, err := m.saveNow(ctx, before)
	if err != nil {
		m.retry = time.Now().Add(snapshotRetry)
	}
	return s, err
}

// saveNow makes a snapshot in place of the one before, nil for none. A directory that has lost keys replaces none: with that and
// the journal all is there.
func (m *Member) saveNow(ctx context.Context, before *journal.Snapshot) (*journal.Snapshot, error) {
	loss := func() error {
		if before == nil {
			return nil
		}
		return m.store.Loss()
	}
	if err := loss(); err != nil {
		return nil, err
	}
	select {
	case m.saving <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-m.saving }()
	began := time.Now()
	s, err := m.client.Save(ctx, func(w io.Writer) (store.Position, error) {
		p, err := m.store.Dump(ctx, w)
		return p, errors.Join(err, loss())
	})
	if err == nil {
		m.cfg.Log.Info("the journal has a new snapshot", "sequence", s.Last, "took", time.Since(began).Round(time.Millisecond))
	}
	return s, err
}

// sweepLeft is sweep of what leaders before have left, which may take the room of entries. It reports whether that is done.
func (m *Member) sweepLeft(ctx context.Context) bool {
	err := m.sweep(ctx)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("what is left of other snapshots is not removed", "error", err)
	}
	return err == nil || final(err) // then another snapshot is made, which does it
}

// sweep removes what is left of other snapshots, which may have what is to be erased.
func (m *Member) sweep(ctx context.Context) error {
	select {
	case m.saving <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.saving }()
	return m.client.Sweep(ctx)
}

// Erase returns when nothing that the store deleted or overwrote before the call is left in the journal, its snapshot,
// or the directories of the replicas that answer. One that does not is seeded again when it returns: the journal does not have what it lacks. It
// is called after the store's own EraseObsolete.
func (m *Member) Erase(ctx context.Context) error {
	p, err := m.store.EraseReplicas(ctx)
	for said := false; err == nil; {
		err = m.erase(ctx, p)
		switch {
		case err == nil:
			return nil
		case m.store.Err() != nil:
			return m.store.Err()
		case !said && ctx.Err() == nil:
			said = true
			m.cfg.Log.Warn("what was hidden is still in the journal; this is repeated", "error", err)
		}
		err = wait.For(ctx, syncEvery)
	}
	return err
}

// erase has a snapshot of the position, waits for replicas, and removes what was before it.
func (m *Member) erase(ctx context.Context, p store.Position) error {
	snapshot, err := m.snapshot(ctx)
	if err == nil && (snapshot == nil || snapshot.Last < p.Last) {
		_, err = m.saveNow(ctx, snapshot)
	}
	if err == nil {
		err = m.sweep(ctx) // Run may have made another snapshot
	}
	if err == nil {
		err = m.await(ctx, p)
	}
	if err == nil {
		_, err = m.store.SyncJournal() // this directory needs none of them after a crash of its machine
	}
	if err != nil {
		return err
	}
	return m.client.Trim(ctx, p.First)
}

const (
	// roundWait is how long replicas have to answer, rounds how often they are asked at least.
	roundWait, rounds = time.Second, 3
	// silentAfter is how long a replica does not answer before it is not waited for.
	silentAfter = 30 * time.Second
)

// await returns when all replicas that answer have applied the entry at a position.
func (m *Member) await(ctx context.Context, p store.Position) error {
	behind := make(map[string]time.Time) // when they answered last
	said := false
	for round := 1; ; round++ {
		present, err := m.client.Ask(ctx, roundWait)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for _, r := range present {
			if r.Last < p.Last && r.Replica != m.id {
				behind[r.Replica] = time.Now()
			} else {
				delete(behind, r.Replica)
			}
		}
		var names []string
		for name, answered := range behind {
			if time.Since(answered) > silentAfter {
				delete(behind, name)
			} else {
				names = append(names, name)
			}
		}
		if len(names) == 0 && round >= rounds {
			return nil
		}
		if len(names) > 0 && !said {
			said = true
			slices.Sort(names)
			m.cfg.Log.Info("the scrub waits for replicas", "replicas", names)
		}
	}
}
