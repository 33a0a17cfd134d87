package outbox

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// counter is a running total that is kept exact without reading it back: each
// batch merges the difference it makes, in the same atomic write. count and
// bytes add up; high only rises. Opening a store reads a handful of counters
// instead of scanning queues.
type counter struct {
	count int64
	bytes int64
	high  uint64
}

const counterLen = 24

// mergerName is stored by Pebble in the directory; a store cannot be opened
// with a merger of another name.
const mergerName = "watcherd.outbox.counter"

func (c counter) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.count))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.bytes))
	return binary.BigEndian.AppendUint64(dst, c.high)
}

func parseCounter(value []byte) (counter, error) {
	if len(value) != counterLen {
		return counter{}, fmt.Errorf("counter of %d bytes", len(value))
	}
	return counter{
		count: int64(binary.BigEndian.Uint64(value)),
		bytes: int64(binary.BigEndian.Uint64(value[8:])),
		high:  binary.BigEndian.Uint64(value[16:]),
	}, nil
}

func (c counter) plus(d counter) counter {
	return counter{count: c.count + d.count, bytes: c.bytes + d.bytes, high: max(c.high, d.high)}
}

// negative takes count and bytes away.
func (c counter) negative() counter { return counter{count: -c.count, bytes: -c.bytes} }

func newMerger() *pebble.Merger {
	return &pebble.Merger{
		Name: mergerName,
		Merge: func(_, value []byte) (pebble.ValueMerger, error) {
			c, err := parseCounter(value)
			if err != nil {
				return nil, err
			}
			return &counterMerger{total: c}, nil
		},
	}
}

// counterMerger folds counters; addition and maximum do not care about order.
type counterMerger struct{ total counter }

func (m *counterMerger) MergeNewer(value []byte) error {
	c, err := parseCounter(value)
	if err != nil {
		return err
	}
	m.total = m.total.plus(c)
	return nil
}

func (m *counterMerger) MergeOlder(value []byte) error { return m.MergeNewer(value) }

func (m *counterMerger) Finish(bool) ([]byte, io.Closer, error) {
	return m.total.append(make([]byte, 0, counterLen)), nil, nil
}
