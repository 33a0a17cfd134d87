package outbox

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// queueReader is one Queue.Read: it takes the entries first, so that their
// payloads fit one allocation, and then the records.
type queueReader struct {
	q        *Queue
	max      int
	maxBytes int

	taken []entryAt
	bytes int
	items []Item
}

type entryAt struct {
	position uint64
	entry
}

// entries reads entries after from, up to and including tail, and returns the
// position it has come to.
func (r *queueReader) entries(from, tail uint64) (reached uint64, err error) {
	for {
		next, err := r.entriesFrom(from+1, tail)
		if err == nil || !errors.Is(err, ErrUnreadable) {
			return next - 1, err
		}
		if len(r.taken) > 0 {
			return next - 1, nil // deal with the damage when it is first
		}
		if from, err = r.q.skipDamage(next, tail, err); err != nil || from >= tail {
			return from, err
		}
	}
}

// entriesFrom stops at the first damage, and returns the position after the last it
// has read.
func (r *queueReader) entriesFrom(from, tail uint64) (next uint64, err error) {
	it, err := r.q.s.db.NewIter(&pebble.IterOptions{
		LowerBound: appendSinkKey(nil, prefixQueue, r.q.id, from),
		UpperBound: appendSinkKey(nil, prefixQueue, r.q.id, tail+1),
	})
	if err != nil {
		return from, readError(err)
	}
	defer func() { _ = it.Close() }() // its error was seen while reading
	for it.First(); it.Valid(); it.Next() {
		position, ok := positionOfKey(it.Key())
		if !ok {
			return from, fmt.Errorf("%w: %w", ErrUnreadable, errMalformed)
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return from, readError(err)
		}
		e, err := parseEntry(position, value)
		if err != nil {
			return from, fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		if len(r.taken) > 0 && r.bytes+int(e.size) > r.maxBytes {
			return from, nil
		}
		if err := r.take(position, e); err != nil {
			return from, err
		}
		from = position + 1
		if len(r.taken) >= r.max {
			return from, nil
		}
	}
	if err := readError(it.Error()); err != nil {
		return from, err
	}
	return tail + 1, nil
}

// take adds an entry, unless it was acknowledged since the iterator was made.
func (r *queueReader) take(position uint64, e entry) error {
	q := r.q
	q.mu.Lock()
	if e.kind != entryInline && position <= q.detached.high {
		// Perhaps rewritten since the iterator was made.
		q.mu.Unlock()
		now, err := q.entryAt(position)
		switch {
		case err == nil:
			e = now
		case !errors.Is(err, ErrUnreadable):
			return err
		}
		q.mu.Lock()
	}
	inFlight := q.window.add(slot{
		position: position, sequence: e.sequence, time: e.time, size: e.size, kind: e.kind, flags: e.flags,
	})
	q.mu.Unlock()
	if inFlight {
		e.payload = append([]byte(nil), e.payload...)
		r.taken = append(r.taken, entryAt{position, e})
		r.bytes += int(e.size)
	}
	return nil
}

// records fills the items. An entry whose record is damaged becomes a dead
// letter instead.
func (r *queueReader) records() error {
	if len(r.taken) == 0 {
		return nil
	}
	log := recordFinder{s: r.q.s}
	defer log.close()
	r.items = make([]Item, 0, len(r.taken))
	buf := make([]byte, 0, r.bytes)
	for i := range r.taken {
		e := &r.taken[i]
		item := Item{Position: e.position, Sequence: e.sequence, Flags: e.flags, Lane: e.lane, Time: e.time}
		payload := e.payload
		if e.kind != entryInline {
			value, err := log.find(e.sequence)
			if errors.Is(err, ErrUnreadable) {
				value, err = r.q.carried(e.position, err)
			}
			if errors.Is(err, ErrUnreadable) {
				if err = r.q.setUnreadable(e.position); err == nil {
					continue
				}
			}
			if err != nil {
				return err
			}
			item.Lane, payload = value.lane, value.payload
		}
		begin := len(buf)
		buf = append(buf, payload...)
		item.Payload = buf[begin:len(buf):len(buf)]
		r.items = append(r.items, item)
	}
	return nil
}
