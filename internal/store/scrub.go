package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Rewrite returns the replacement of a payload; changed is false if it stays. It must
// neither keep the payload nor modify it in place.
type Rewrite func(payload []byte) (rewritten []byte, changed bool)

// The bounds of one call of a Rewrite method.
const (
	rewriteItems    = 256
	maxRewriteBytes = 1 << 20
)

func (s *Store) rewriteBytes() int { return min(maxRewriteBytes, s.BatchBytes()) }

// RewriteLog rewrites a few hundred records with sequences greater than after. It
// returns the last sequence that it read, the number of rewritten records, and whether
// the log ends there. Records keep their sequence, and the size that they count with.
//
// Like an ack, a rewrite is durable with the next commit.
func (s *Store) RewriteLog(after uint64, rewrite Rewrite) (last uint64, rewritten int, end bool, err error) {
	if err := s.use(); err != nil {
		return after, 0, false, err
	}
	defer s.life.leave()
	release := s.log.hold(after + 1) // a deleted record would come back
	defer release()
	items, err := s.ReadLog(after, rewriteItems)
	if err != nil {
		return after, 0, false, err
	}
	if len(items) == 0 {
		return after, 0, true, nil
	}
	b := s.db.NewBatch()
	for i := range items {
		it := &items[i]
		if b.Len() >= s.rewriteBytes() {
			break
		}
		last = it.Sequence
		if it.Unreadable {
			continue
		}
		payload, changed := rewrite(it.Payload)
		if !changed {
			continue
		}
		rewritten++
		value := make([]byte, layout.LogHeaderLen, layout.LogHeaderLen+len(payload))
		layout.PutLogHeader(value, it.Time, it.Lane, it.size)
		if err := b.Set(layout.AppendLogKey(nil, it.Sequence), append(value, payload...), nil); err != nil {
			return after, 0, false, err
		}
	}
	if err := s.applyRewritten(b); err != nil {
		return after, 0, false, err
	}
	return last, rewritten, false, nil
}

func (s *Store) applyRewritten(b *pebble.Batch) error {
	if b.Empty() {
		return b.Close()
	}
	size := int64(b.Len())
	if err := s.applyLazily(b); err != nil {
		return err
	}
	s.rewrites.Add(1)
	s.gate.wrote(size)
	return nil
}

// RewriteQueue is [Store.RewriteLog] for the queue entries that carry their payload, by
// position.
func (q *Queue) RewriteQueue(after uint64, rewrite Rewrite) (last uint64, rewritten int, end bool, err error) {
	s := q.s
	if err := s.use(); err != nil {
		return after, 0, false, err
	}
	defer s.life.leave()
	last, end = after, true
	b := s.db.NewBatch()
	unlock := q.lockSettling() // entries are not removed before the write
	defer unlock()
	q.mu.Lock()
	lower := layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, max(after+1, q.window.head()))
	q.mu.Unlock()
	_, upper := layout.SinkRange(layout.PrefixQueue, q.id)
	size, entries := 0, 0
	err = salvage.Scan(s.db, lower, upper, func(key, value []byte) error {
		if size > s.rewriteBytes() || entries >= rewriteItems*rewriteItems {
			end = false
			return errEnough
		}
		position, ok := layout.PositionOfKey(key)
		e, err := layout.ParseEntry(position, value)
		last = max(last, position)
		entries++
		if !ok || err != nil || e.Kind != layout.EntryInline {
			return nil //nolint:nilerr // the queue's reader reports damage
		}
		size += len(e.Payload)
		payload, changed := rewrite(e.Payload)
		if !changed {
			return nil
		}
		rewritten++
		e.Payload = payload
		op := b.SetDeferred(len(key), e.EncodedLen())
		copy(op.Key, key)
		e.Encode(op.Value)
		return op.Finish()
	}, func(salvage.LostSpan) error { return nil }) // the queue's reader reports it
	if err := ignore(err, errEnough); err != nil {
		return after, 0, false, err
	}
	if err := s.applyRewritten(b); err != nil {
		return after, 0, false, err
	}
	return last, rewritten, end, nil
}

// RewriteDeadLetters is [Store.RewriteLog] for a sink's dead letters, by position. A
// rewritten letter keeps only the class of its reason: the text may quote the payload.
func (q *Queue) RewriteDeadLetters(after uint64, rewrite Rewrite) (last uint64, rewritten int, end bool, err error) {
	if err := q.s.use(); err != nil {
		return after, 0, false, err
	}
	defer q.s.life.leave()
	b := q.s.NewBatch()
	defer b.Discard()
	if b.err != nil {
		return after, 0, false, b.err
	}
	b.hold() // excludes settle
	// Letters made with a payload from before the rewrite of the log come first.
	unlock := q.lockSettling()
	defer unlock()
	last, end = after, true
	var change layout.Counter
	size := 0
	lower := layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, after+1)
	_, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	err = salvage.Scan(q.s.db, lower, upper, func(key, value []byte) error {
		if size > q.s.rewriteBytes() {
			end = false
			return errEnough
		}
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(value)
		last = max(last, position)
		if !ok || err != nil || len(d.Payload) == 0 {
			return nil //nolint:nilerr // listing them reports damage
		}
		size += len(d.Payload)
		payload, changed := rewrite(d.Payload)
		if !changed {
			return nil
		}
		rewritten++
		change.Bytes += int64(len(payload) - len(d.Payload))
		d.Payload, d.Reason = payload, ReasonClass(d.Reason)
		return b.pb.Set(append([]byte(nil), key...), d.Encode(), nil)
	}, func(salvage.LostSpan) error { return nil }) // listing them reports it
	if err := ignore(err, errEnough); err != nil {
		return after, 0, false, err
	}
	if rewritten == 0 {
		return last, 0, end, nil
	}
	b.merge(layout.CounterKey(layout.KindDeadLetter, q.id), change)
	b.committed = append(b.committed, func() { q.countDead(change, time.Time{}) })
	return last, rewritten, end, q.s.Commit(b)
}

// EraseObsolete rewrites tables and write-ahead logs, so that they have no data that was
// deleted or overwritten before the call. It reads and writes the whole store.
func (s *Store) EraseObsolete(ctx context.Context) (err error) {
	if err := s.use(); err != nil {
		return err
	}
	defer s.life.leave()
	defer func() {
		if r := recover(); r != nil { // see applyNow
			s.fail(errors.New("storage engine panicked in a compaction"))
			err = s.Err()
		}
	}()
	if err := s.renewLogs(ctx); err != nil {
		return err
	}
	if err := engine.CompactAll(ctx, s.db); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return s.awaitRemoval(ctx)
}

// renewLogs writes into new write-ahead logs until the old ones are gone: Pebble keeps
// some to write over.
func (s *Store) renewLogs(ctx context.Context) error {
	s.files.RenewLogs(true)
	defer s.files.RenewLogs(false)
	for range engine.MemTables + 3 {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := s.db.NewBatch() // of this directory alone, not of its journal
		if err := errors.Join(b.Set(layout.FormatKey(), layout.ID32(layout.Version), nil), s.applyNow(b, pebble.Sync), b.Close()); err != nil {
			return err
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// removalPoll is how often the removal of files is checked. Files stay while readers
// use them.
const removalPoll = 50 * time.Millisecond

func (s *Store) awaitRemoval(ctx context.Context) error {
	ticker := time.NewTicker(removalPoll)
	defer ticker.Stop()
	for {
		m := s.db.Metrics()
		if m.Table.ObsoleteCount+m.Table.ZombieCount == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.failed:
			return s.failure
		}
	}
}
