package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Range is the keys from Lower to Upper, both included.
type Range struct{ Lower, Upper []byte }

// Overlaps reports whether the range reaches into [from, to).
func (r Range) Overlaps(from, to []byte) bool {
	return bytes.Compare(r.Lower, to) < 0 && bytes.Compare(r.Upper, from) >= 0
}

// RepairKey returns the key of the note of a repair in progress.
func RepairKey() []byte { return []byte{PrefixRepair} }

// AppendRanges appends the note of a repair: the lengths and bytes of all bounds.
func AppendRanges(dst []byte, ranges []Range) []byte {
	for _, r := range ranges {
		for _, key := range [][]byte{r.Lower, r.Upper} {
			dst = binary.AppendUvarint(dst, uint64(len(key)))
			dst = append(dst, key...)
		}
	}
	return dst
}

// ParseRanges decodes the note of a repair.
func ParseRanges(value []byte) ([]Range, error) {
	var keys [][]byte
	for len(value) > 0 {
		n, size := binary.Uvarint(value)
		if size <= 0 || n > uint64(len(value)-size) {
			return nil, ErrMalformed
		}
		keys = append(keys, value[size:size+int(n)])
		value = value[size+int(n):]
	}
	if len(keys)%2 != 0 {
		return nil, ErrMalformed
	}
	var ranges []Range
	for pair := range slices.Chunk(keys, 2) {
		ranges = append(ranges, Range{Lower: pair[0], Upper: pair[1]})
	}
	return ranges, nil
}

// Positions returns the part of a range in one sink's keys, as positions; false if there is
// none.
func (r Range) Positions(prefix byte, sink uint32) (first, last uint64, ok bool) {
	lower, upper := SinkRange(prefix, sink)
	if !r.Overlaps(lower, upper) {
		return 0, 0, false
	}
	last = ^uint64(0)
	position := func(key []byte) uint64 {
		var b [8]byte
		copy(b[:], key[len(lower):])
		return binary.BigEndian.Uint64(b[:])
	}
	if bytes.HasPrefix(r.Lower, lower) {
		first = position(r.Lower)
	}
	if bytes.HasPrefix(r.Upper, lower) {
		last = position(r.Upper)
	}
	return first, last, true
}

// String describes what may be lost.
func (r Range) String() string {
	var parts []byte
	for _, prefix := range keyspaceOrder {
		lower, upper := PrefixRange(prefix)
		if !r.Overlaps(lower, upper) {
			continue
		}
		after, before := r.Lower, r.Upper
		if bytes.Compare(after, lower) <= 0 {
			after = nil
		}
		if bytes.Compare(before, upper) >= 0 {
			before = nil
		}
		if len(parts) > 0 {
			parts = append(parts, "; "...)
		}
		parts = append(parts, DescribeSpan(prefix, after, before)...)
	}
	return string(parts)
}

// DescribeSpan names the keys of a keyspace between two keys. A nil key is the
// beginning or the end of the keyspace.
func DescribeSpan(prefix byte, after, before []byte) string {
	bound := func(key []byte, otherwise string) string {
		if key == nil {
			return otherwise
		}
		if n, ok := PositionOfKey(key); ok && prefix != PrefixState && prefix != PrefixMeta && prefix != PrefixName {
			if len(key) == QueueKeyLen {
				return fmt.Sprintf("%d of sink number %d", n, binary.BigEndian.Uint32(key[1:]))
			}
			return fmt.Sprint(n)
		}
		return fmt.Sprintf("%q", key[1:])
	}
	return fmt.Sprintf("%s after %s and before %s", keyspaces[prefix], bound(after, "the beginning"), bound(before, "the end"))
}

// keyspaces are the names of the keyspaces in messages.
var keyspaces = map[byte]string{
	PrefixCounter: "counters", PrefixDeadLetter: "dead letters", PrefixMark: "marks of the log", PrefixLog: "log records",
	PrefixFormat: "the format", PrefixHeadline: "headlines", PrefixMeta: "metadata", PrefixName: "names", PrefixNote: "notes of sinks", PrefixPin: "pins of replays", PrefixRepair: "a repair in progress", PrefixQueue: "queue entries", PrefixState: "ledger entries",
}

// keyspaceOrder are the keyspaces as they lie on disk.
var keyspaceOrder = slices.Sorted(maps.Keys(keyspaces))
