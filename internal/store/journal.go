package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// Position is what a store has of its journal; see [layout.Position].
type Position = layout.Position

// Journal is a replicated log with one writer at a time that takes every batch of a store
// before its directory does: what the journal has is committed, and the directory is a copy
// that may be lost.
type Journal interface {
	// Append returns the position of a store that has the batch, once the journal has made it durable. It
	// repeats what is unknown until that is known. Every error is final: [ErrStolen] if there is another writer,
	// else the context's. One call at a time; the batch is not kept.
	Append(ctx context.Context, batch []byte) (Position, error)
	// Erase is Append of an empty batch, before which every other directory erases what is obsolete.
	Erase(ctx context.Context) (Position, error)
	// Resign is the last call, when a store is closed that has not failed: another writer may follow at once.
	Resign(ctx context.Context) error
}

const (
	// ackDelay is how long acks wait for others, or for a commit, before they are appended. After the loss of the
	// process, what was acknowledged since is delivered again.
	ackDelay = 100 * time.Millisecond
	// groupBytes is the size up to which waiting batches become one entry of the journal.
	groupBytes = 1 << 20
	// idleAfter is how long a journal is silent before an empty entry shows that its writer lives.
	idleAfter = time.Second
	// resignWait bounds how long the end of a store waits for the journal to take its resignation.
	resignWait = 2 * time.Second
)

// sequencer appends the batches of a store to its journal, and applies them to the directory in that order. Batches
// that wait meanwhile become one entry.
type sequencer struct {
	journal Journal
	start   sync.Once
	ctx     context.Context //nolint:containedctx // of the appends of the store's whole life
	cancel  context.CancelFunc
	due     chan struct{} // holds a token when there are acks
	erases  chan chan<- erased

	mu       sync.Mutex
	acks     *pebble.Batch // guarded by mu; nil for none
	position Position      // guarded by mu; of the directory
}

func newSequencer(j Journal) *sequencer {
	q := &sequencer{journal: j, due: make(chan struct{}, 1), erases: make(chan chan<- erased)}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// JournalPosition is what the directory has of the journal, the zero value without one.
func (s *Store) JournalPosition() Position {
	if s.sequencer == nil {
		return Position{}
	}
	s.sequencer.mu.Lock()
	defer s.sequencer.mu.Unlock()
	return s.sequencer.position
}

// SyncJournal makes the directory durable, and returns the position up to which it is.
func (s *Store) SyncJournal() (Position, error) {
	if err := s.use(); err != nil {
		return Position{}, err
	}
	defer s.life.leave()
	p := s.JournalPosition()
	return p, s.syncLog()
}

func (s *Store) syncLog() error {
	b := s.db.NewBatch()
	return errors.Join(b.LogData(nil, nil), s.applyNow(b, pebble.Sync), b.Close())
}

// EraseReplicas appends to the journal an entry before which every replica erases what was deleted or overwritten, as
// [Store.EraseObsolete] does here, and returns its position: a replica that is there has none of that in its files.
func (s *Store) EraseReplicas(ctx context.Context) (Position, error) {
	if err := s.use(); err != nil {
		return Position{}, err
	}
	defer s.life.leave()
	s.startSequence()
	done := make(chan erased, 1)
	select {
	case s.sequencer.erases <- done:
	case <-ctx.Done():
		return Position{}, ctx.Err()
	case <-s.failed:
		return Position{}, s.failure
	}
	select {
	case e := <-done:
		return e.position, e.err
	case <-ctx.Done():
		return Position{}, ctx.Err()
	case <-s.failed:
		return Position{}, s.failure
	}
}

// erased is the outcome of an erase entry: its own position.
type erased struct {
	position Position
	err      error
}

// StopAppends ends what waits for the journal: the store fails. It is for an end of the process that cannot wait for
// servers that do not answer. The store fails, too, unless a write ends within closeFailedWait: on a full disk, Pebble
// has all of them wait for room. The cause is [context.Canceled] in both cases.
func (s *Store) StopAppends() {
	if s.sequencer != nil {
		s.sequencer.cancel()
	}
	ending := make(chan struct{})
	close(ending)
	_ = s.within(ending, func() error { // its error is that of the store
		b := s.db.NewBatch()
		return errors.Join(b.LogData(nil, nil), s.applyNow(b, pebble.NoSync), b.Close())
	})
}

// acknowledge writes a batch of acks, which is lost with the process within ackDelay at most.
func (s *Store) acknowledge(b *pebble.Batch) error {
	q := s.sequencer
	if q == nil {
		return s.applyLazily(b)
	}
	if err := s.Err(); err != nil {
		return err
	}
	s.startSequence()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.acks == nil {
		q.acks = s.db.NewBatch()
	}
	err := q.acks.Apply(b, nil)
	select {
	case q.due <- struct{}{}:
	default:
	}
	s.shrunk.Store(true)
	return errors.Join(err, b.Close())
}

// lockSettling excludes acks of the queue, and returns when those before it are in the directory. It locks first: acks
// that came between a wait for the journal and the lock would not be there.
func (q *Queue) lockSettling() (unlock func()) {
	q.settling.Lock()
	if q.s.sequencer != nil {
		_ = q.s.apply(q.s.db.NewBatch(), pebble.NoSync) // its error is that of the caller's next write, too
	}
	return q.settling.Unlock
}

// startSequence starts the goroutine of a journal, if there is one and it does not run. The caller is in a call of the
// store, or is Replica.Lead, Run or Close.
func (s *Store) startSequence() {
	if q := s.sequencer; q != nil {
		q.start.Do(func() { s.writers.Go(s.sequence) })
	}
}

// sequence is the goroutine that appends and applies all batches, until no call of a store that is closed is left.
func (s *Store) sequence() {
	q := s.sequencer
	var later <-chan time.Time
	idle := time.NewTicker(idleAfter)
	defer idle.Stop()
	for {
		var group []write
		var alive bool
		select {
		case w := <-s.writes:
			group = append(group, w)
		case <-q.due:
			if later == nil {
				later = time.After(ackDelay)
			}
			continue
		case <-later:
		case done := <-q.erases:
			err := s.appendNow(s.db.NewBatch(), true)
			done <- erased{s.JournalPosition(), err}
			idle.Reset(idleAfter)
			continue
		case <-idle.C:
			alive = true
		case <-s.life.idle:
			s.appendGroup(nil, false)
			s.resign()
			return
		case <-s.failed:
			return
		}
		later = nil
		for size := 0; size < groupBytes; {
			select {
			case w := <-s.writes:
				group = append(group, w)
				size += w.batch.Len()
				continue
			default:
			}
			break
		}
		s.appendGroup(group, alive)
		idle.Reset(idleAfter)
	}
}

// resign lets another writer follow before the directory is closed, which waits for compactions.
func (s *Store) resign() {
	if s.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.sequencer.ctx, resignWait)
	defer cancel()
	if err := s.sequencer.journal.Resign(ctx); err != nil {
		s.opts.Logger.Warn("another replica takes over only after the time-out", "error", err)
	}
}

// appendGroup appends and applies acks and batches together, and answers those who wait. With alive, it appends an
// entry even if that is empty.
func (s *Store) appendGroup(group []write, alive bool) {
	q := s.sequencer
	q.mu.Lock()
	b := q.acks
	q.acks = nil
	q.mu.Unlock()
	var errs []error
	for _, w := range group {
		if w.batch.Empty() {
			continue
		}
		if b == nil {
			b = s.db.NewBatch()
		}
		errs = append(errs, b.Apply(w.batch, nil))
	}
	if b == nil && alive {
		b = s.db.NewBatch()
	}
	err := errors.Join(errs...)
	if err == nil && b != nil {
		err = s.appendNow(b, false)
	}
	for _, w := range group {
		w.done <- err
		s.life.leave()
	}
}

// appendNow appends a batch and applies it; with erase, it is an empty one.
func (s *Store) appendNow(b *pebble.Batch, erase bool) error {
	if err := s.Err(); err != nil {
		return err
	}
	q := s.sequencer
	var p Position
	var err error
	if erase {
		p, err = q.journal.Erase(q.ctx)
	} else {
		p, err = q.journal.Append(q.ctx, b.Repr())
	}
	if err != nil {
		s.fail(fmt.Errorf("journal: %w", err))
		return s.Err()
	}
	if err := setPosition(b, p); err != nil {
		s.fail(err)
		return s.Err()
	}
	if err := s.applyNow(b, pebble.NoSync); err != nil {
		return err
	}
	q.mu.Lock()
	q.position = p
	q.mu.Unlock()
	return b.Close()
}

// setPosition adds to a batch the position of a directory that has it.
func setPosition(b *pebble.Batch, p Position) error {
	return b.Set(layout.JournalKey(), p.Append(nil), nil)
}

// leaveJournal removes the position of a directory that is written without its journal: the journal lacks what follows, so
// neither that nor its other directories may take the two for the same.
func (s *Store) leaveJournal() {
	if p, err := s.position(); err == nil && p == (Position{}) {
		return
	}
	lossy, err := s.files.HasLoss()
	b := s.db.NewBatch()
	lower, upper := layout.PrefixRange(layout.PrefixTerm)
	err = errors.Join(err, b.Delete(layout.JournalKey(), nil), b.DeleteRange(lower, upper, nil))
	if lossy { // another directory may have ended the repair
		err = errors.Join(err, b.Set(layout.RepairKey(), layout.AppendRanges(nil, []layout.Range{everything}), nil))
	}
	if err = errors.Join(err, s.applyNow(b, pebble.Sync), b.Close()); err != nil {
		s.fail(fmt.Errorf("leave the journal: %w", err))
		return
	}
	s.opts.Logger.Warn("the store is written without its journal and has left it; to be a replica again, it must be adopted, or removed and seeded")
}

// position reads what the directory has of a journal.
func (s *Store) position() (Position, error) {
	value, ok, err := s.get(layout.JournalKey())
	if err != nil || !ok {
		return Position{}, err
	}
	p, err := layout.ParsePosition(value)
	if err != nil {
		return Position{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return p, nil
}
