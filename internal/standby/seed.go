package standby

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/wait"
)

// findSnapshot fails with errEmpty if there is a snapshot.
func (f *follower) findSnapshot(ctx context.Context) error {
	for {
		snapshot, err := f.client.Snapshot(ctx)
		switch {
		case snapshot != nil:
			return errEmpty
		case err == nil, final(err):
			return err
		}
		f.fails(err)
		if err := wait.For(ctx, readWait); err != nil {
			return err
		}
	}
}

// findLoss fails with [store.ErrLoss] if the directory has lost keys, and is of the journal and its snapshot, with which it is whole again.
// Without a snapshot it may be the best there is.
func (f *follower) findLoss(ctx context.Context, at store.Position) error {
	loss := f.folder.Loss()
	for loss != nil {
		var snapshot *journal.Snapshot
		has, err := f.client.Has(ctx, at)
		if err == nil && has {
			snapshot, err = f.snapshot(ctx)
		}
		switch {
		case snapshot != nil:
			return loss
		case err == nil, final(err): // that is met again
			return nil
		}
		f.fails(err)
		if err := wait.For(ctx, readWait); err != nil {
			return err
		}
	}
	return nil
}

// seedPatience is how long a replica waits for a snapshot by default: a leader that is there makes one if it is missing, and
// again if that fails.
const seedPatience = 2 * snapshotRetry

// errNoSnapshot: there is none that the journal continues.
var errNoSnapshot = errors.New("the journal has no snapshot that it continues")

// seed replaces the contents of the directory, by those of the snapshot, which must have what that has. It tries until that
// is done; if there is no snapshot for a while, the error is why.
func (m *Member) seed(ctx context.Context, at store.Past, why error) error {
	began, said := time.Now(), false
	for {
		again, err := m.seedOnce(ctx, at)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !again, final(err):
			return err
		case !errors.Is(err, errNoSnapshot):
			began = time.Now()
		case time.Since(began) > m.seedPatience:
			return errors.Join(why, err)
		}
		if !said {
			said = true
			m.cfg.Log.Warn("this replica waits until it can be seeded", "reason", why, "error", err)
		}
		if err := wait.For(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// seedOnce reports whether its error may pass.
func (m *Member) seedOnce(ctx context.Context, at store.Past) (again bool, err error) {
	snapshot, err := m.client.Snapshot(ctx)
	if err != nil {
		return true, err
	}
	if snapshot == nil {
		return true, errNoSnapshot
	}
	continued, err := m.client.Has(ctx, snapshot.Position)
	whole := false
	if err == nil && continued {
		whole, err = m.client.Whole(ctx, snapshot)
	}
	switch {
	case err != nil:
		return true, fmt.Errorf("the journal's snapshot of sequence %d: %w", snapshot.Last, err)
	case !continued:
		return true, fmt.Errorf("%w: the one at sequence %d is older", errNoSnapshot, snapshot.Last)
	case !whole: // the leader makes another
		return true, fmt.Errorf("%w: the one at sequence %d lacks parts", errNoSnapshot, snapshot.Last)
	}
	known := at
	if at.Last > 0 {
		switch has, err := m.client.Has(ctx, at.Position); {
		case err != nil:
			return true, err
		case has && snapshot.Term <= at.Last: // and what the snapshot lacks: no journal has begun behind it, see journal.Client.Begin
			known = store.Past{}
		case snapshot.Last < at.Last || snapshot.Term < at.Term:
			return false, fmt.Errorf("%w: the journal's snapshot is of sequence %d in term %d, this store is at %d in term %d",
				journal.ErrDiverged, snapshot.Last, snapshot.Term, at.Last, at.Term)
		}
	}
	m.cfg.Log.Info("this replica is seeded with the journal's snapshot", "from", at.Last, "to", snapshot.Last, "made", snapshot.Made)
	m.note(func(s *replica.State) { s.Last = 0 }) // the snapshot may have what a scrub erases, which waits then
	began := time.Now()
	err = m.client.Load(ctx, snapshot, func(r io.Reader) error { return store.Seed(ctx, m.cfg.Dir, m.cfg.Options, r, snapshot.Position, known) })
	if errors.Is(err, store.ErrOtherPast) {
		err = fmt.Errorf("%w: %w", journal.ErrDiverged, err)
	}
	if err != nil {
		return errors.Is(err, journal.ErrInterrupted), err
	}
	m.cfg.Log.Info("this replica has been seeded", "took", time.Since(began).Round(time.Millisecond))
	return false, nil
}
