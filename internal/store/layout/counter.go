package layout

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// Counter is a running total that is kept exact without reading it back: each
// batch merges its difference in the same atomic write. Count and Bytes add up;
// High only rises. Opening a store reads a handful of counters
// instead of scanning queues.
type Counter struct {
	Count int64
	Bytes int64
	High  uint64
}

// CounterLen is the length of an encoded counter.
const CounterLen = 24

// mergerName is stored by Pebble in the directory; a store cannot be opened
// with a merger of another name.
const mergerName = "watcherd.outbox.counter"

// Append appends the encoded counter.
func (c Counter) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Count))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Bytes))
	return binary.BigEndian.AppendUint64(dst, c.High)
}

// ParseCounter decodes a counter.
func ParseCounter(value []byte) (Counter, error) {
	if len(value) != CounterLen {
		return Counter{}, fmt.Errorf("counter of %d bytes", len(value))
	}
	return Counter{
		Count: int64(binary.BigEndian.Uint64(value)),
		Bytes: int64(binary.BigEndian.Uint64(value[8:])),
		High:  binary.BigEndian.Uint64(value[16:]),
	}, nil
}

// Plus returns the sum of two counters, with the higher High.
func (c Counter) Plus(d Counter) Counter {
	return Counter{Count: c.Count + d.Count, Bytes: c.Bytes + d.Bytes, High: max(c.High, d.High)}
}

// Negative returns what Plus subtracts Count and Bytes with.
func (c Counter) Negative() Counter { return Counter{Count: -c.Count, Bytes: -c.Bytes} }

// NewMerger makes Pebble add the merged counters of a key.
func NewMerger() *pebble.Merger {
	return &pebble.Merger{
		Name: mergerName,
		Merge: func(_, value []byte) (pebble.ValueMerger, error) {
			c, err := ParseCounter(value)
			if err != nil {
				return nil, err
			}
			return &counterMerger{total: c}, nil
		},
	}
}

// counterMerger folds counters; addition and maximum do not care about order.
type counterMerger struct{ total Counter }

func (m *counterMerger) MergeNewer(value []byte) error {
	c, err := ParseCounter(value)
	if err != nil {
		return err
	}
	m.total = m.total.Plus(c)
	return nil
}

func (m *counterMerger) MergeOlder(value []byte) error { return m.MergeNewer(value) }

func (m *counterMerger) Finish(bool) ([]byte, io.Closer, error) {
	return m.total.Append(make([]byte, 0, CounterLen)), nil, nil
}
