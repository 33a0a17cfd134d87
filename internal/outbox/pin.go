package outbox

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
)

// pin keeps old records in the log for the entries of a replay: those at the
// positions first to last refer to records from sequence on.
type pin struct {
	first, last uint64
	sequence    uint64
}

func (s *Store) loadPins(sink uint32) ([]pin, error) {
	var pins []pin
	lower, upper := sinkRange(prefixPin, sink)
	err := s.scan(lower, upper, func(key, value []byte) error {
		first, ok := positionOfKey(key)
		if !ok || len(value) != 16 {
			return errMalformed
		}
		pins = append(pins, pin{
			first:    first,
			last:     binary.BigEndian.Uint64(value),
			sequence: binary.BigEndian.Uint64(value[8:]),
		})
		return nil
	})
	return pins, err
}

// pin writes p with the batch; it replaces a pin with the same first position.
func (b *Batch) pin(q *Queue, p pin) {
	value := binary.BigEndian.AppendUint64(nil, p.last)
	value = binary.BigEndian.AppendUint64(value, p.sequence)
	b.misuseIf(b.pb.Set(appendSinkKey(nil, prefixPin, q.id, p.first), value, nil))
	b.committed = append(b.committed, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		for i := range q.pins {
			if q.pins[i].first == p.first {
				q.pins[i] = p
				return
			}
		}
		q.pins = append(q.pins, p)
	})
}

// unpinLocked removes the pins whose entries all lie before needed.
func (q *Queue) unpinLocked(b *pebble.Batch, needed uint64) {
	for len(q.pins) > 0 && q.pins[0].last < needed {
		_ = b.Delete(appendSinkKey(nil, prefixPin, q.id, q.pins[0].first), nil) // fails only for an indexed batch
		q.pins = q.pins[1:]
	}
}

// lowest is the smallest sequence the queue still needs; the largest number
// there is if it needs none.
func (q *Queue) lowest() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.total.count == 0 {
		return ^uint64(0)
	}
	low := q.window.needed()
	for _, p := range q.pins {
		low = min(low, p.sequence)
	}
	return low
}
