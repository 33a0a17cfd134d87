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

// Rewrite returns the payload that is to be in the place of another; it is not
// changed if that is the one that is there. It must not keep the payload, and not
// return it changed in place.
type Rewrite func(payload []byte) (rewritten []byte, changed bool)

// What one call of a Rewrite method looks at, at most.
const (
	rewriteItems = 256
	rewriteBytes = 1 << 20
)

// RewriteLog rewrites records with sequences greater than after, a few hundred, and
// returns the last one that it looked at, how many of them were rewritten, and whether
// it came to the log's end. Records keep their place, and count with the size that
// they were appended with.
//
// Like acks, what is rewritten is durable with the next commit.
func (s *Store) RewriteLog(after uint64, rewrite Rewrite) (last uint64, rewritten int, end bool, err error) {
	if err := s.use(); err != nil {
		return after, 0, false, err
	}
	defer s.life.leave()
	release := s.log.hold(after + 1) // what is deleted meanwhile would come back
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
	return b.Close()
}

// RewriteQueue is [Store.RewriteLog] for those entries of a queue that carry their
// payload, by position.
func (q *Queue) RewriteQueue(after uint64, rewrite Rewrite) (last uint64, rewritten int, end bool, err error) {
	s := q.s
	if err := s.use(); err != nil {
		return after, 0, false, err
	}
	defer s.life.leave()
	last, end = after, true
	b := s.db.NewBatch()
	q.settling.Lock() // nothing is removed until it is written
	defer q.settling.Unlock()
	q.mu.Lock()
	lower := layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, max(after+1, q.window.head()))
	q.mu.Unlock()
	_, upper := layout.SinkRange(layout.PrefixQueue, q.id)
	size, entries := 0, 0
	err = salvage.Scan(s.db, lower, upper, func(key, value []byte) error {
		if size > rewriteBytes || entries >= rewriteItems*rewriteItems {
			end = false
			return errEnough
		}
		position, ok := layout.PositionOfKey(key)
		e, err := layout.ParseEntry(position, value)
		last = max(last, position)
		entries++
		if !ok || err != nil || e.Kind != layout.EntryInline {
			return nil //nolint:nilerr // what is damaged is for the queue's reader to report
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
	if err != nil && !errors.Is(err, errEnough) {
		return after, 0, false, err
	}
	if err := s.applyRewritten(b); err != nil {
		return after, 0, false, err
	}
	return last, rewritten, end, nil
}

// RewriteDeadLetters is [Store.RewriteLog] for a sink's dead letters, by position. Of
// the reason of one that is rewritten only the class stays: its text may quote what was
// in the payload.
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
	b.hold() // so that nobody settles the letters meanwhile
	// What is being set aside with a payload of before the rewrite of the log is there first.
	q.settling.Lock()
	defer q.settling.Unlock()
	last, end = after, true
	var change layout.Counter
	size := 0
	lower := layout.AppendSinkKey(nil, layout.PrefixDeadLetter, q.id, after+1)
	_, upper := layout.SinkRange(layout.PrefixDeadLetter, q.id)
	err = salvage.Scan(q.s.db, lower, upper, func(key, value []byte) error {
		if size > rewriteBytes {
			end = false
			return errEnough
		}
		position, ok := layout.PositionOfKey(key)
		d, err := layout.ParseDeadLetter(value)
		last = max(last, position)
		if !ok || err != nil || len(d.Payload) == 0 {
			return nil //nolint:nilerr // listing them reports what is damaged
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
	if err != nil && !errors.Is(err, errEnough) {
		return after, 0, false, err
	}
	if rewritten == 0 {
		return last, 0, end, nil
	}
	b.merge(layout.CounterKey(layout.KindDeadLetter, q.id), change)
	b.committed = append(b.committed, func() { q.countDead(change, time.Time{}) })
	return last, rewritten, end, q.s.Commit(b)
}

// EraseObsolete rewrites the store's files so that nothing is left of what was
// deleted or overwritten before the call, in tables or write-ahead logs. It takes as
// long as reading and writing the whole store does.
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
	if err := s.db.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return s.awaitRemoval(ctx)
}

// renewLogs writes into new write-ahead logs until none of those that there were is
// left: Pebble keeps some to write over.
func (s *Store) renewLogs(ctx context.Context) error {
	s.files.RenewLogs(true)
	defer s.files.RenewLogs(false)
	for range engine.MemTables + 3 {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := s.db.NewBatch()
		if err := b.Set(layout.FormatKey(), layout.ID32(layout.Version), nil); err != nil {
			return err
		}
		if err := s.apply(b, pebble.Sync); err != nil {
			return err
		}
		if err := b.Close(); err != nil {
			return err
		}
		if err := s.db.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// removalPoll is how often the removal of files is looked at. Readers hold files
// back; they end.
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
