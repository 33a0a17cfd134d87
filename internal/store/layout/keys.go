package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The layout of the store. All integers in keys are big-endian and of fixed
// width, so that byte order is number order. The first byte names the keyspace;
// the keyspaces are listed here in the order in which they lie on disk. A file in brackets is
// one of package store.
//
//	c kind id32            counter{count, bytes, high}, kept by merging (see Counter)
//	                         kind p (id 0): high = highest position handed out
//	                         kind l (id 0): count, bytes of the log; high = lowest sequence kept
//	                         kind q (id sink): count, bytes of a queue; high = its head
//	                         kind i (id sink): count, bytes of its entries that carry their payload;
//	                           high = position up to which no entry refers to the log (detach.go)
//	                         kind d (id sink): count, bytes of its dead letters
//	                         kind n (id 0): high = highest number ever given to a sink
//	d sink32 position64    dead letter, payload included
//	f "format"             version of this layout (uint32)
//	h sequence64           headlines of the caller's: of the records up to the sequence, after
//	                         the key before (headlines.go)
//	j                      what the directory has of its journal (see Position)
//	k sequence64           mark: a segment of the log begins (retention.go)
//	l sequence64           log record: time64 lane64 size32 payload
//	m key                  metadata of the caller
//	n kind name            id32 of a ledger partition (kind p), or of a sink (kind s) with its membership
//	o sink32               note of a sink
//	p sink32 position64    pin: entries of a replay that refer to old records
//	q sink32 position64    queue entry (see Entry)
//	r                      ranges of keys lost by a repair in progress (repair.go)
//	r l                    ranges of the log and of headlines that repairs have removed (lostlog.go)
//	r s                    the same of the ledger (loststate.go)
//	s partition32 key      ledger entry
//	t sequence64           term of the journal (see Term)
//
// Log records and queue entries are written once under keys that only grow;
// log records and marks are deleted by range, each range beginning where the
// last one ended, never from the start of the keyspace (cockroachdb/pebble#2415);
// queue entries are deleted one by one. Iterators begin at heads kept in counters,
// never at the start of a keyspace whose beginning is tombstones
// (cockroachdb/pebble#3744).
const (
	PrefixCounter    = 'c'
	PrefixDeadLetter = 'd'
	PrefixFormat     = 'f'
	PrefixHeadline   = 'h'
	PrefixJournal    = 'j'
	PrefixMark       = 'k'
	PrefixLog        = 'l'
	PrefixMeta       = 'm'
	PrefixName       = 'n'
	PrefixNote       = 'o'
	PrefixPin        = 'p'
	PrefixQueue      = 'q'
	PrefixRepair     = 'r'
	PrefixState      = 's'
	PrefixTerm       = 't'
)

// The kinds of counters and names.
const (
	KindPosition   = 'p'
	KindLog        = 'l'
	KindQueue      = 'q'
	KindDetached   = 'i'
	KindDeadLetter = 'd'
	KindSinkNumber = 'n'

	KindSink      = 's'
	KindPartition = 'p'
)

// Version is the version of the layout above. Raise it when an older
// release could no longer read what this one writes.
const Version = 4

// The lengths of keys with a sequence, and with a sink and a position.
const (
	LogKeyLen   = 1 + 8
	QueueKeyLen = 1 + 4 + 8
)

func appendSequenceKey(dst []byte, prefix byte, sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefix), sequence)
}

// AppendLogKey appends the key of a log record.
func AppendLogKey(dst []byte, sequence uint64) []byte {
	return appendSequenceKey(dst, PrefixLog, sequence)
}

// MarkKey returns the key of a mark.
func MarkKey(sequence uint64) []byte { return appendSequenceKey(nil, PrefixMark, sequence) }

// HeadlineKey returns the key of headlines.
func HeadlineKey(sequence uint64) []byte { return appendSequenceKey(nil, PrefixHeadline, sequence) }

// AppendSinkKey appends a key of a keyspace that is sorted by sink and position:
// queue entries, dead letters and pins.
func AppendSinkKey(dst []byte, prefix byte, sink uint32, position uint64) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, prefix), sink)
	return binary.BigEndian.AppendUint64(dst, position)
}

// PositionOfKey returns the position or sequence at the end of a key.
func PositionOfKey(key []byte) (uint64, bool) {
	if len(key) != LogKeyLen && len(key) != QueueKeyLen {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[len(key)-8:]), true
}

// SinkRange returns the bounds of every key of a sink in a keyspace: [lower, upper).
func SinkRange(prefix byte, sink uint32) (lower, upper []byte) {
	return SinkPrefix(prefix, sink), SinkPrefix(prefix, sink+1)
}

// SinkPrefix returns what all keys of a sink in a keyspace begin with.
func SinkPrefix(prefix byte, sink uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefix}, sink)
}

// CounterKey returns the key of a counter.
func CounterKey(kind byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{PrefixCounter, kind}, id)
}

// NameKey returns the key of the name of a partition or a sink.
func NameKey(kind byte, name string) []byte {
	return append([]byte{PrefixName, kind}, name...)
}

// MetaKey returns the key of a metadata value.
func MetaKey(key string) []byte { return append([]byte{PrefixMeta}, key...) }

// NoteKey returns the key of a sink's note.
func NoteKey(sink uint32) []byte { return SinkPrefix(PrefixNote, sink) }

// JournalKey returns the key of the journal's position.
func JournalKey() []byte { return []byte{PrefixJournal} }

// TermKey returns the key of a term of the journal that begins behind a sequence.
func TermKey(after uint64) []byte { return binary.BigEndian.AppendUint64([]byte{PrefixTerm}, after) }

// FormatKey returns the key of the layout's version.
func FormatKey() []byte { return append([]byte{PrefixFormat}, "format"...) }

// AppendStateKey appends the key of a ledger entry.
func AppendStateKey(dst []byte, partition uint32, key string) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, PrefixState), partition)
	return append(dst, key...)
}

// StateRange returns the bounds of every ledger entry of a partition whose key begins with prefix.
func StateRange(partition uint32, prefix string) (lower, upper []byte) {
	lower = AppendStateKey(nil, partition, prefix)
	return lower, Successor(lower)
}

// PrefixRange returns the bounds of a keyspace: [lower, upper).
func PrefixRange(prefix byte) (lower, upper []byte) {
	return []byte{prefix}, []byte{prefix + 1}
}

// Successor returns the smallest key greater than every key that begins with prefix.
// Keyspace letters are far below 0xff, so there always is one.
func Successor(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return end
}

// ID32 encodes the number of a sink or a partition.
func ID32(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }

// Range is the keys from Lower to Upper, both included.
type Range struct{ Lower, Upper []byte }

// Overlaps reports whether the range reaches into [from, to).
func (r Range) Overlaps(from, to []byte) bool {
	return bytes.Compare(r.Lower, to) < 0 && bytes.Compare(r.Upper, from) >= 0
}

// Equal reports whether the ranges have the same bounds.
func (r Range) Equal(other Range) bool {
	return bytes.Equal(r.Lower, other.Lower) && bytes.Equal(r.Upper, other.Upper)
}

// RepairKey returns the key of the note of a repair in progress.
func RepairKey() []byte { return []byte{PrefixRepair} }

// LostStatesKey returns the key of the ranges of the ledger that repairs have removed.
func LostStatesKey() []byte { return []byte{PrefixRepair, PrefixState} }

// LostLogKey returns the key of the ranges of the log and of its headlines that repairs have removed.
func LostLogKey() []byte { return []byte{PrefixRepair, PrefixLog} }

// AppendRanges appends ranges of keys: the lengths and bytes of all bounds.
func AppendRanges(dst []byte, ranges []Range) []byte {
	for _, r := range ranges {
		for _, key := range [][]byte{r.Lower, r.Upper} {
			dst = binary.AppendUvarint(dst, uint64(len(key)))
			dst = append(dst, key...)
		}
	}
	return dst
}

// ParseRanges decodes what AppendRanges has made.
func ParseRanges(value []byte) ([]Range, error) {
	var keys [][]byte
	for len(value) > 0 {
		n, size := binary.Uvarint(value)
		if size <= 0 || n > uint64(len(value)-size) {
			return nil, malformed(PrefixRepair, value)
		}
		keys = append(keys, value[size:size+int(n)])
		value = value[size+int(n):]
	}
	if len(keys)%2 != 0 {
		return nil, malformed(PrefixRepair, value)
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
	return r.numbers(lower, upper)
}

// Sequences returns the part of a range in a keyspace that is sorted by sequence; false if there is none.
func (r Range) Sequences(prefix byte) (first, last uint64, ok bool) {
	lower, upper := PrefixRange(prefix)
	return r.numbers(lower, upper)
}

// numbers returns the part of a range in [lower, upper), where all keys are lower and a number.
func (r Range) numbers(lower, upper []byte) (first, last uint64, ok bool) {
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
		text := describe(prefix, key)
		if strings.HasPrefix(text, "of ") {
			text = "that " + text
		}
		return text
	}
	return fmt.Sprintf("%s after %s and before %s", keyspaces[prefix].all, bound(after, "the beginning"), bound(before, "the end"))
}

// DescribeKey names a key in messages: its keyspace and what it is of.
func DescribeKey(key []byte) string {
	if len(key) == 0 || keyspaces[key[0]].one == "" {
		return fmt.Sprintf("key %q of no keyspace", key)
	}
	one := keyspaces[key[0]].one
	if len(key) == 1 || key[0] == PrefixFormat {
		return one // the only key
	}
	return one + " " + describe(key[0], key)
}

// describe names what a key is of, in a keyspace that has many. A bound of a span may be a part of a key.
func describe(prefix byte, key []byte) string {
	switch prefix {
	case PrefixState:
		if len(key) > 1+4 {
			return fmt.Sprintf("%q of partition number %d", key[1+4:], binary.BigEndian.Uint32(key[1:]))
		}
	case PrefixCounter:
		if len(key) == 1+1+4 && counters[key[1]] != "" {
			if id := binary.BigEndian.Uint32(key[2:]); id > 0 {
				return fmt.Sprintf("%s of sink number %d", counters[key[1]], id)
			}
			return counters[key[1]]
		}
	case PrefixNote:
		if len(key) == 1+4 {
			return fmt.Sprintf("of sink number %d", binary.BigEndian.Uint32(key[1:]))
		}
	case PrefixName:
		if len(key) > 1+1 && key[1] == KindSink {
			return fmt.Sprintf("of sink %q", key[2:])
		} else if len(key) > 1+1 && key[1] == KindPartition {
			return fmt.Sprintf("of partition %q", key[2:])
		}
	case PrefixMeta:
	default:
		if n, ok := PositionOfKey(key); ok && len(key) == QueueKeyLen {
			return fmt.Sprintf("%d of sink number %d", n, binary.BigEndian.Uint32(key[1:]))
		} else if ok {
			return fmt.Sprint(n)
		}
	}
	return fmt.Sprintf("%q", key[1:])
}

// keyspaces are the names of the keyspaces in messages: of one key, and of all.
var keyspaces = map[byte]struct{ one, all string }{
	PrefixCounter:    {"counter", "counters"},
	PrefixDeadLetter: {"dead letter", "dead letters"},
	PrefixFormat:     {"version of the layout", "the version of the layout"},
	PrefixHeadline:   {"headlines", "headlines"},
	PrefixJournal:    {"position in the journal", "the position in the journal"},
	PrefixMark:       {"mark of the log", "marks of the log"},
	PrefixLog:        {"log record", "log records"},
	PrefixMeta:       {"metadata", "metadata"},
	PrefixName:       {"name", "names"},
	PrefixNote:       {"note", "notes of sinks"},
	PrefixPin:        {"pin of a replay", "pins of replays"},
	PrefixQueue:      {"queue entry", "queue entries"},
	PrefixRepair:     {"note of a repair", "a repair in progress"},
	PrefixState:      {"ledger entry", "ledger entries"},
	PrefixTerm:       {"term of the journal", "terms of the journal"},
}

// counters are the names of the kinds of counters in messages.
var counters = map[byte]string{
	KindPosition: "of positions", KindLog: "of the log", KindQueue: "of the queue", KindDetached: "of the entries with a payload",
	KindDeadLetter: "of the dead letters", KindSinkNumber: "of the numbers of sinks",
}

// keyspaceOrder are the keyspaces as they lie on disk.
var keyspaceOrder = slices.Sorted(maps.Keys(keyspaces))
