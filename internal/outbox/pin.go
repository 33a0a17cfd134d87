package outbox

import (
	"encoding/binary"

	"github.com/watcherd/watcherd/internal/outbox/layout"
)

// pin keeps old records in the log for entries of a replay, one chunk of them: those
// at the positions first to last refer to records from sequence on.
type pin struct {
	first, last uint64
	sequence    uint64
}

func (s *Store) loadPins(sink uint32) ([]pin, error) {
	var pins []pin
	lower, upper := layout.SinkRange(layout.PrefixPin, sink)
	err := s.scan(lower, upper, func(key, value []byte) error {
		first, ok := layout.PositionOfKey(key)
		if !ok || len(value) != 16 {
			return layout.ErrMalformed
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

func (p pin) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, p.last)
	return binary.BigEndian.AppendUint64(dst, p.sequence)
}

// pin writes p with the batch.
func (b *Batch) pin(q *Queue, p pin) {
	b.misuseIf(b.pb.Set(layout.AppendSinkKey(nil, layout.PrefixPin, q.id, p.first), p.append(nil), nil))
	b.committed = append(b.committed, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.pins = append(q.pins, p)
	})
}
