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
	log   *recordReader

	damaged bool // the last record could not be read
}

type entryAt struct {
	position uint64
	entry
}

// entries reads entries after from, up to and including tail.
func (r *queueReader) entries(from, tail uint64) error {
	for {
		at, err := r.entriesFrom(from+1, tail)
		if err == nil || !errors.Is(err, ErrUnreadable) {
			return err
		}
		if len(r.taken) > 0 {
			return nil // deal with the damage when it is first
		}
		if from, err = r.q.skipDamage(at, tail, err); err != nil || from >= tail {
			return err
		}
	}
}

// entriesFrom stops at the first damage and returns the position it may begin at.
func (r *queueReader) entriesFrom(from, tail uint64) (at uint64, err error) {
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
			return position, readError(err)
		}
		e, err := parseEntry(position, value)
		if err != nil {
			return position, fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		if !r.take(position, e) {
			return 0, nil
		}
		from = position + 1
	}
	return from, readError(it.Error())
}

// take adds an entry, unless it was acknowledged since the iterator was made;
// false if the result is full.
func (r *queueReader) take(position uint64, e entry) bool {
	if len(r.taken) > 0 && r.bytes+int(e.size) > r.maxBytes {
		return false
	}
	r.q.mu.Lock()
	inFlight := r.q.window.add(slot{
		position: position, sequence: e.sequence, time: e.time, size: e.size, kind: e.kind, flags: e.flags,
	})
	r.q.mu.Unlock()
	if inFlight {
		e.payload = append([]byte(nil), e.payload...)
		r.taken = append(r.taken, entryAt{position, e})
		r.bytes += int(e.size)
	}
	return len(r.taken) < r.max
}

// records fills the items. An entry whose record is damaged becomes a dead
// letter instead.
func (r *queueReader) records() error {
	defer func() {
		if r.log != nil {
			r.log.close()
		}
	}()
	if len(r.taken) == 0 {
		return nil
	}
	r.items = make([]Item, 0, len(r.taken))
	buf := make([]byte, 0, r.bytes)
	for i := range r.taken {
		e := &r.taken[i]
		item := Item{Position: e.position, Sequence: e.sequence, Flags: e.flags, Lane: e.lane, Time: e.time}
		payload := e.payload
		if e.kind != entryInline {
			value, err := r.record(e.sequence)
			if errors.Is(err, ErrUnreadable) {
				value, err = r.q.detached(e.position, err)
			}
			if errors.Is(err, ErrUnreadable) {
				if err = r.q.setUnreadable(e.position, err); err == nil {
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

// record finds the log record of an entry. A record that is not there cannot
// come back either.
func (r *queueReader) record(sequence uint64) (logValue, error) {
	if !r.damaged {
		value, ok, err := r.iterate(sequence)
		if err == nil && ok {
			return value, nil
		}
	}
	// The iterator may have failed on a neighbour in the same block or file.
	value, ok, err := r.q.s.recordAt(sequence)
	if err == nil && !ok {
		err = fmt.Errorf("%w: record %d is missing", ErrUnreadable, sequence)
	}
	// Reading damage is expensive: Pebble searches for the bit that flipped. Try
	// the iterator again only when the damage is over.
	r.damaged = err != nil
	return value, err
}

func (r *queueReader) iterate(sequence uint64) (logValue, bool, error) {
	if r.log == nil {
		var err error
		if r.log, err = r.q.s.newRecordReader(0); err != nil {
			return logValue{}, false, err
		}
	}
	value, ok, err := r.log.exact(sequence)
	if err != nil {
		r.log.close()
		r.log = nil
	}
	return value, ok, err
}
