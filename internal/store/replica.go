package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Replica is the directory of a store that follows a journal: it applies entries and knows
// nothing of what is in them. One goroutine at a time may use it.
type Replica struct {
	s        *Store // of which the files and Pebble are open, and nothing is loaded
	position Position
	fresh    bool
	lossy    bool
}

// OpenReplica opens or creates the directory; see [Open] for its errors.
func OpenReplica(dir string, o Options) (*Replica, error) {
	s, err := newStore(dir, o)
	if err != nil {
		return nil, err
	}
	if err := s.openFiles(); err != nil {
		return nil, errors.Join(err, s.files.Close())
	}
	r := &Replica{s: s}
	if r.position, err = s.position(); err == nil && r.position == (Position{}) {
		r.fresh, err = s.isFresh()
	}
	if err == nil {
		r.lossy, err = s.files.HasLoss()
	}
	if err == nil && s.needsDamaged() {
		r.lossy = true
	}
	if err == nil {
		err = s.Err()
	}
	if err == nil {
		s.files.Opened()
		err = s.measure()
	}
	if err != nil {
		return nil, errors.Join(openError(dir, err), r.Close())
	}
	return r, nil
}

// needsDamaged reports whether what start loads is damaged. Other errors are those of start.
func (s *Store) needsDamaged() bool {
	err := s.load()
	if !errors.Is(err, ErrUnreadable) {
		return false
	}
	s.opts.Logger.Error("a part of the store is damaged without which it cannot lead", "error", salvage.FirstLine(err))
	return true
}

// isFresh reports whether nothing was ever written to the store.
func (s *Store) isFresh() (bool, error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return false, err
	}
	n := 0
	for it.First(); it.Valid() && n < 2; it.Next() {
		n++ // the version of the layout is one
	}
	return n < 2, errors.Join(it.Error(), it.Close())
}

// Position is what the directory has of the journal.
func (r *Replica) Position() Position { return r.position }

// Fresh reports whether the directory had nothing in it when it was opened.
func (r *Replica) Fresh() bool { return r.fresh }

// Meta is [Store.Meta].
func (r *Replica) Meta(key string) ([]byte, bool, error) { return r.s.Meta(key) }

// ErrLoss means that a directory is no copy of its journal.
var ErrLoss = errors.New("the store has lost keys that its journal has had")

// Loss returns [ErrLoss] if the directory lacks keys: a table of it is damaged, a repair has removed a damaged block while
// it led, or Lead would fail for damage. But for that, it may lead all the same, if no other directory has led since; else it must
// be seeded.
func (r *Replica) Loss() error {
	if r.lossy {
		return fmt.Errorf("%w: a block was damaged", ErrLoss)
	}
	if table := r.s.damaged.first(); table != "" {
		return fmt.Errorf("%w: the table %s is damaged", ErrLoss, table)
	}
	return nil
}

// Loss returns [ErrLoss] if a repair has removed a damaged block of the directory, which is no copy of its journal then. The next
// start may replace it by one.
func (s *Store) Loss() error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	lossy, err := s.files.HasLoss()
	if err == nil && lossy {
		err = fmt.Errorf("%w: a damaged block was removed; restart this replica, so that it is seeded", ErrLoss)
	}
	return err
}

// NoteLoss has [Replica.Loss] return [ErrLoss] from the next start on: the caller cannot continue for damage.
func (s *Store) NoteLoss() error { return s.files.NoteLoss() }

// Apply writes an entry, which may be empty, after which the directory is at p. A crash may undo it. On a full disk it waits for room; when
// ctx is done, the store fails soon.
func (r *Replica) Apply(ctx context.Context, p Position, batch []byte) error {
	if err := r.s.use(); err != nil {
		return err
	}
	defer r.s.life.leave()
	b := r.s.db.NewBatch()
	var err error
	if len(batch) > 0 {
		err = b.SetRepr(append([]byte(nil), batch...))
	}
	if err == nil {
		err = setPosition(b, p)
	}
	if err == nil {
		err = r.s.within(ctx.Done(), func() error { return r.s.applyNow(b, pebble.NoSync) })
	}
	if err != nil {
		return fmt.Errorf("apply entry %d of the journal: %w", p.First, err)
	}
	r.s.gate.wrote(int64(b.Len()))
	r.position = p
	return b.Close()
}

// errStalled is the cause of a failure for want of room, at the end of the process.
var errStalled = fmt.Errorf("storage engine: a write does not end: %w", context.Canceled)

// within returns what do returns. Pebble may hang in it for as long as a disk is full: once ending is closed, the store fails soon.
func (s *Store) within(ending <-chan struct{}, do func() error) error {
	if err := s.use(); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.writers.Go(func() {
		defer s.life.leave()
		done <- do()
	})
	var late <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case <-s.failed:
			return s.failure
		case <-ending:
			ending, late = nil, time.After(closeFailedWait)
		case <-late:
			s.fail(errStalled)
		}
	}
}

// Lead makes the directory an open [Store] that appends to j what it writes, as [Open] does with a directory that is closed, and
// shows from here on that it lives. It ends the Replica; after an error, only Close may be called.
func (r *Replica) Lead(j Journal) (*Store, error) {
	r.s.sequencer = newSequencer(j)
	if err := r.s.start(); err != nil {
		return nil, err
	}
	r.s.startSequence() // Run may come late
	return r.s, nil
}

// Erase is [Store.EraseObsolete]; see Apply for a full disk.
func (r *Replica) Erase(ctx context.Context) error {
	const pause = 2 * time.Second // an attempt may have written much
	return r.s.within(ctx.Done(), func() error {
		for {
			err := r.s.EraseObsolete(ctx)
			if !errors.Is(err, syscall.ENOSPC) || r.s.Err() != nil {
				return err
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return err
			}
		}
	})
}

// Sync makes durable what was applied, and measures the directory.
func (r *Replica) Sync() error {
	if err := r.s.use(); err != nil {
		return err
	}
	defer r.s.life.leave()
	return errors.Join(r.s.syncLog(), r.s.measure())
}

// Close releases the directory.
func (r *Replica) Close() error {
	if !r.s.life.end() {
		return nil
	}
	if r.s.Err() != nil {
		return r.s.closeFailed()
	}
	<-r.s.life.idle
	return errors.Join(r.s.db.Close(), r.s.files.Close())
}

// LeaveJournal removes from a closed store's directory what it has of a journal, so that it can begin another. It fails where there is
// no store, or an empty one.
func LeaveJournal(dir string, o Options) error {
	o = o.withDefaults()
	if err := engine.Exists(o.FS, dir); err != nil { // OpenReplica would make one
		return err
	}
	r, err := OpenReplica(dir, o)
	if err != nil {
		return err
	}
	if r.Fresh() {
		return errors.Join(fmt.Errorf("the store in %s is empty", dir), r.Close())
	}
	r.s.leaveJournal()
	return errors.Join(r.s.Err(), r.Close())
}
