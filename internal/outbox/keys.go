package outbox

import "encoding/binary"

// The layout of the store. All integers in keys are big-endian and of fixed
// width, so that byte order is number order. The first byte names the keyspace;
// the keyspaces are listed here in the order in which they lie on disk.
//
//	c kind id32            counter{count, bytes, high}, kept by merging (counter.go)
//	                         kind p (id 0): high = highest position handed out
//	                         kind l (id 0): count, bytes of the log; high = lowest sequence kept
//	                         kind q (id sink): count, bytes of a queue; high = its head
//	                         kind i (id sink): count, bytes of its entries that carry their payload;
//	                           high = position up to which no entry refers to the log (detach.go)
//	                         kind d (id sink): count, bytes of its dead letters
//	                         kind n (id 0): high = highest number ever given to a sink
//	d sink32 position64    dead letter, payload included
//	f "format"             version of this layout (uint32)
//	k sequence64           mark: a segment of the log begins (marks.go)
//	l sequence64           log record: time64 lane64 size32 payload
//	m key                  metadata of the caller
//	n kind name            id32 of a ledger partition (kind p) or a sink (kind s), of a sink its membership, too
//	o sink32               note of a sink
//	p sink32 position64    pin: entries of a replay that refer to old records
//	q sink32 position64    queue entry (values.go)
//	r                      ranges of keys lost by a repair in progress (repair.go)
//	s partition32 key      ledger entry
//
// Log records and queue entries are written once under keys that only grow;
// log records and marks are deleted by range, each range beginning where the
// last one ended, never from the start of the keyspace (cockroachdb/pebble#2415);
// queue entries are deleted one by one. Iterators begin at heads kept in counters,
// never at the start of a keyspace whose beginning is tombstones
// (cockroachdb/pebble#3744).
const (
	prefixCounter    = 'c'
	prefixDeadLetter = 'd'
	prefixFormat     = 'f'
	prefixMark       = 'k'
	prefixLog        = 'l'
	prefixMeta       = 'm'
	prefixName       = 'n'
	prefixNote       = 'o'
	prefixPin        = 'p'
	prefixQueue      = 'q'
	prefixRepair     = 'r'
	prefixState      = 's'
)

// The kinds of counters and names.
const (
	kindPosition   = 'p'
	kindLog        = 'l'
	kindQueue      = 'q'
	kindDetached   = 'i'
	kindDeadLetter = 'd'
	kindSinkNumber = 'n'

	kindSink      = 's'
	kindPartition = 'p'
)

// layoutVersion is the version of the layout above. Raise it when an older
// release could no longer read what this one writes.
const layoutVersion = 2

const (
	logKeyLen   = 1 + 8
	queueKeyLen = 1 + 4 + 8
)

func appendSequenceKey(dst []byte, prefix byte, sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefix), sequence)
}

func appendLogKey(dst []byte, sequence uint64) []byte {
	return appendSequenceKey(dst, prefixLog, sequence)
}

func markKey(sequence uint64) []byte { return appendSequenceKey(nil, prefixMark, sequence) }

// appendSinkKey is for the keyspaces sorted by sink and position: queue
// entries, dead letters and pins.
func appendSinkKey(dst []byte, prefix byte, sink uint32, position uint64) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, prefix), sink)
	return binary.BigEndian.AppendUint64(dst, position)
}

// positionOfKey is the inverse of appendSinkKey and appendSequenceKey for the
// last eight bytes.
func positionOfKey(key []byte) (uint64, bool) {
	if len(key) != logKeyLen && len(key) != queueKeyLen {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[len(key)-8:]), true
}

// sinkRange is every key of a sink in a keyspace: [lower, upper).
func sinkRange(prefix byte, sink uint32) (lower, upper []byte) {
	return sinkPrefix(prefix, sink), sinkPrefix(prefix, sink+1)
}

func sinkPrefix(prefix byte, sink uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefix}, sink)
}

func counterKey(kind byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{prefixCounter, kind}, id)
}

func nameKey(kind byte, name string) []byte {
	return append([]byte{prefixName, kind}, name...)
}

func metaKey(key string) []byte { return append([]byte{prefixMeta}, key...) }

func noteKey(sink uint32) []byte { return sinkPrefix(prefixNote, sink) }

func formatKey() []byte { return append([]byte{prefixFormat}, "format"...) }

func appendStateKey(dst []byte, partition uint32, key string) []byte {
	dst = binary.BigEndian.AppendUint32(append(dst, prefixState), partition)
	return append(dst, key...)
}

// stateRange is every ledger entry of a partition whose key begins with prefix.
func stateRange(partition uint32, prefix string) (lower, upper []byte) {
	lower = appendStateKey(nil, partition, prefix)
	return lower, successor(lower)
}

// prefixRange is the whole of a keyspace: [lower, upper).
func prefixRange(prefix byte) (lower, upper []byte) {
	return []byte{prefix}, []byte{prefix + 1}
}

// successor is the smallest key greater than every key that begins with prefix.
// Keyspace letters are far below 0xff, so there always is one.
func successor(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return end
}

// id32 encodes the number of a sink or a partition.
func id32(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }
