package outbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// keyRange is the keys from lower to upper, both included.
type keyRange struct{ lower, upper []byte }

// overlaps reports whether the range reaches into [from, to).
func (r keyRange) overlaps(from, to []byte) bool {
	return bytes.Compare(r.lower, to) < 0 && bytes.Compare(r.upper, from) >= 0
}

// repairKey is where the ranges of a repair in progress are kept.
func repairKey() []byte { return []byte{prefixRepair} }

// appendRanges is the value of a note: the lengths and bytes of all bounds.
func appendRanges(dst []byte, ranges []keyRange) []byte {
	for _, r := range ranges {
		for _, key := range [][]byte{r.lower, r.upper} {
			dst = binary.AppendUvarint(dst, uint64(len(key)))
			dst = append(dst, key...)
		}
	}
	return dst
}

func parseRanges(value []byte) ([]keyRange, error) {
	var keys [][]byte
	for len(value) > 0 {
		n, size := binary.Uvarint(value)
		if size <= 0 || n > uint64(len(value)-size) {
			return nil, errMalformed
		}
		keys = append(keys, value[size:size+int(n)])
		value = value[size+int(n):]
	}
	if len(keys)%2 != 0 {
		return nil, errMalformed
	}
	var ranges []keyRange
	for pair := range slices.Chunk(keys, 2) {
		ranges = append(ranges, keyRange{lower: pair[0], upper: pair[1]})
	}
	return ranges, nil
}

// positions is the part of a range in one sink's keys, as positions; false if there is
// none.
func (r keyRange) positions(prefix byte, sink uint32) (first, last uint64, ok bool) {
	lower, upper := sinkRange(prefix, sink)
	if !r.overlaps(lower, upper) {
		return 0, 0, false
	}
	last = ^uint64(0)
	position := func(key []byte) uint64 {
		var b [8]byte
		copy(b[:], key[len(lower):])
		return binary.BigEndian.Uint64(b[:])
	}
	if bytes.HasPrefix(r.lower, lower) {
		first = position(r.lower)
	}
	if bytes.HasPrefix(r.upper, lower) {
		last = position(r.upper)
	}
	return first, last, true
}

// String describes what may be lost.
func (r keyRange) String() string {
	var parts []byte
	for _, prefix := range keyspaceOrder {
		lower, upper := prefixRange(prefix)
		if !r.overlaps(lower, upper) {
			continue
		}
		after, before := r.lower, r.upper
		if bytes.Compare(after, lower) <= 0 {
			after = nil
		}
		if bytes.Compare(before, upper) >= 0 {
			before = nil
		}
		if len(parts) > 0 {
			parts = append(parts, "; "...)
		}
		parts = append(parts, describeSpan(prefix, after, before)...)
	}
	return string(parts)
}

// describeSpan names the keys of a keyspace between two keys. A nil key is the
// beginning or the end of the keyspace.
func describeSpan(prefix byte, after, before []byte) string {
	bound := func(key []byte, otherwise string) string {
		if key == nil {
			return otherwise
		}
		if n, ok := positionOfKey(key); ok && prefix != prefixState && prefix != prefixMeta && prefix != prefixName {
			if len(key) == queueKeyLen {
				return fmt.Sprintf("%d of sink number %d", n, binary.BigEndian.Uint32(key[1:]))
			}
			return fmt.Sprint(n)
		}
		return fmt.Sprintf("%q", key[1:])
	}
	return fmt.Sprintf("%s after %s and before %s", keyspaces[prefix], bound(after, "the beginning"), bound(before, "the end"))
}

// keyspaces names what an operator may lose.
var keyspaces = map[byte]string{
	prefixCounter: "counters", prefixDeadLetter: "dead letters", prefixMark: "marks of the log", prefixLog: "log records",
	prefixFormat: "the format", prefixMeta: "metadata", prefixName: "names", prefixNote: "notes of sinks", prefixPin: "pins of replays", prefixRepair: "a repair in progress", prefixQueue: "queue entries", prefixState: "ledger entries",
}

// keyspaceOrder are the keyspaces as they lie on disk.
var keyspaceOrder = slices.Sorted(maps.Keys(keyspaces))
