package outbox

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// skipDamage deals with queue entries that cannot be read: which they were is
// not known any more, so one dead letter stands for the range of positions, and
// reading goes on after it. It returns the last position that is lost.
func (q *Queue) skipDamage(from, tail uint64, cause error) (uint64, error) {
	next, err := q.firstReadable(from, tail)
	if err != nil {
		return 0, err
	}
	q.s.metrics.unreadable.Inc()
	q.s.opts.Logger.Error("a part of a queue cannot be read; one dead letter stands for it",
		"sink", q.name, "from", from, "to", next-1, "error", cause)
	now := q.s.opts.Now()
	d := deadLetterValue{
		sequence: from,
		first:    now,
		last:     now,
		reason:   fmt.Sprintf("%s: queue entries %d to %d are lost", ReasonUnreadable, from, next-1),
	}
	left, err := q.recount(next, tail)
	if err != nil {
		return 0, err
	}
	b := q.s.db.NewBatch()
	if err := errors.Join(
		b.DeleteRange(appendSinkKey(nil, prefixQueue, q.id, from), appendSinkKey(nil, prefixQueue, q.id, next), nil),
		b.Set(appendSinkKey(nil, prefixDeadLetter, q.id, from), d.append(nil), nil),
		b.Merge(counterKey(kindDeadLetter, q.id), counter{count: 1}.append(nil), nil),
	); err != nil {
		return 0, err
	}
	q.mu.Lock()
	// What is in flight was counted when it was read; what is behind is counted
	// anew.
	var inFlight counter
	for _, s := range q.window.slots {
		if !s.acked {
			inFlight = inFlight.plus(counter{count: 1, bytes: int64(s.size)})
		}
	}
	found := inFlight.plus(left)
	change := counter{count: found.count - q.total.count, bytes: found.bytes - q.total.bytes}
	q.total = found
	q.window.readTo = max(q.window.readTo, next-1)
	change.high = q.window.head()
	err = b.Merge(counterKey(kindQueue, q.id), change.append(nil), nil)
	q.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := q.s.applyLazily(b); err != nil {
		return 0, err
	}
	q.countDead(counter{count: 1})
	return next - 1, b.Close()
}

// firstReadable finds where a queue can be read again: it doubles its step
// until a seek succeeds, and then halves the distance. tail+1 if nowhere.
func (q *Queue) firstReadable(from, tail uint64) (uint64, error) {
	bad, good := from, tail+1
	for step := uint64(1); from+step <= tail; step *= 2 {
		ok, err := q.readable(from+step, tail)
		if err != nil {
			return 0, err
		}
		if ok {
			good = from + step
			break
		}
		bad = from + step
	}
	for bad+1 < good {
		middle := bad + (good-bad)/2
		ok, err := q.readable(middle, tail)
		if err != nil {
			return 0, err
		}
		if ok {
			good = middle
		} else {
			bad = middle
		}
	}
	return good, nil
}

// readable reports whether the first entry at or after the position can be read.
func (q *Queue) readable(position, tail uint64) (bool, error) {
	it, err := q.s.db.NewIter(&pebble.IterOptions{
		LowerBound: appendSinkKey(nil, prefixQueue, q.id, position),
		UpperBound: appendSinkKey(nil, prefixQueue, q.id, tail+1),
	})
	if err != nil {
		return false, readError(err)
	}
	if it.First() {
		_, err = it.ValueAndErr()
	} else {
		err = it.Error()
	}
	_ = it.Close() // repeats the error
	if err = readError(err); errors.Is(err, ErrUnreadable) {
		return false, nil
	}
	return err == nil, err
}

// recount counts the entries from the given position on, as far as they can be
// read.
func (q *Queue) recount(from, tail uint64) (counter, error) {
	var n counter
	err := q.s.scan(
		appendSinkKey(nil, prefixQueue, q.id, from), appendSinkKey(nil, prefixQueue, q.id, tail+1),
		func(_, value []byte) error {
			if e, err := parseEntry(0, value); err == nil {
				n = n.plus(counter{count: 1, bytes: int64(e.size)})
			}
			return nil
		})
	if errors.Is(err, ErrUnreadable) {
		return n, nil // counted again when the reader gets there
	}
	return n, err
}
