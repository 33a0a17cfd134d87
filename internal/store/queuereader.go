package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
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
	layout.Entry
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
		LowerBound: layout.AppendSinkKey(nil, layout.PrefixQueue, r.q.id, from),
		UpperBound: layout.AppendSinkKey(nil, layout.PrefixQueue, r.q.id, tail+1),
	})
	if err != nil {
		return from, salvage.ReadError(err)
	}
	defer func() { _ = it.Close() }() // its error was seen while reading
	for it.First(); it.Valid(); it.Next() {
		position, ok := layout.PositionOfKey(it.Key())
		if !ok {
			return from, fmt.Errorf("%w: %w", ErrUnreadable, layout.ErrMalformed)
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return from, salvage.ReadError(err)
		}
		e, err := layout.ParseEntry(position, value)
		if err != nil {
			return from, fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		if len(r.taken) > 0 && r.bytes+int(e.Size) > r.maxBytes {
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
	if err := salvage.ReadError(it.Error()); err != nil {
		return from, err
	}
	return tail + 1, nil
}

// take adds an entry, unless it was acknowledged since the iterator was made.
func (r *queueReader) take(position uint64, e layout.Entry) error {
	q := r.q
	q.mu.Lock()
	if e.Kind != layout.EntryInline && position <= q.detached.High {
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
		position: position, sequence: e.Sequence, time: e.Time, size: e.Size, kind: e.Kind, flags: e.Flags,
	})
	q.mu.Unlock()
	if inFlight {
		e.Payload = append([]byte(nil), e.Payload...)
		r.taken = append(r.taken, entryAt{position, e})
		r.bytes += int(e.Size)
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
		item := Item{Position: e.position, Sequence: e.Sequence, Flags: e.Flags, Lane: e.Lane, Time: e.Time}
		payload := e.Payload
		if e.Kind != layout.EntryInline {
			value, err := log.find(e.Sequence)
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
			item.Lane, payload = value.Lane, value.Payload
		}
		begin := len(buf)
		buf = append(buf, payload...)
		item.Payload = buf[begin:len(buf):len(buf)]
		r.items = append(r.items, item)
	}
	return nil
}
