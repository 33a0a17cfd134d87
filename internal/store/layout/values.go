package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// ErrMalformed means that a key or a value does not have the format of its keyspace.
// The errors of all parsers wrap it.
var ErrMalformed = errors.New("malformed value")

// Malformed is the error of a key that, or whose value, does not have the format of its keyspace.
func Malformed(key []byte) error { return fmt.Errorf("%s: %w", DescribeKey(key), ErrMalformed) }

// malformed is the error of a value of a keyspace.
func malformed(prefix byte, value []byte) error {
	return fmt.Errorf("%w: a %s of %d bytes", ErrMalformed, keyspaces[prefix].one, len(value))
}

// LogHeaderLen is the length of a log record before its payload: its time (Unix
// nanoseconds), its lane, and the payload's size when it was appended, by which the
// record counts.
const LogHeaderLen = 20

// PutLogHeader writes the header of a log record into dst.
func PutLogHeader(dst []byte, t time.Time, lane uint64, size uint32) {
	binary.BigEndian.PutUint64(dst, Nanos(t))
	binary.BigEndian.PutUint64(dst[8:], lane)
	binary.BigEndian.PutUint32(dst[16:], size)
}

// LogRecord is the value of a log record.
type LogRecord struct {
	Time    time.Time
	Lane    uint64
	Size    uint32
	Payload []byte // part of the value it was parsed from
}

// ParseLogRecord decodes a log record.
func ParseLogRecord(value []byte) (LogRecord, error) {
	if len(value) < LogHeaderLen {
		return LogRecord{}, malformed(PrefixLog, value)
	}
	return LogRecord{
		Time:    UnixNano(value),
		Lane:    binary.BigEndian.Uint64(value[8:]),
		Size:    binary.BigEndian.Uint32(value[16:]),
		Payload: value[LogHeaderLen:],
	}, nil
}

// Nanos returns t in Unix nanoseconds, and 0 for the zero time.
func Nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

// UnixNano is the inverse of Nanos.
func UnixNano(b []byte) time.Time {
	n := binary.BigEndian.Uint64(b)
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(n)).UTC()
}

// The kinds of queue entries.
const (
	EntryNew    = 0 // refers to the log record whose sequence is the position
	EntryReplay = 1 // refers to an older log record
	EntryInline = 2 // carries its payload: a retried dead letter, or see detach.go of package store
)

// Entry is a queue entry:
//
//	kind8 flags32 size32 time64 [sequence64 [lane64 payload]]
//
// size is the payload's length, so that a queue's bytes can be counted without
// the log; time is the record's, so that a queue's age can.
type Entry struct {
	Kind     byte
	Flags    uint32
	Size     uint32
	Time     time.Time
	Sequence uint64
	Lane     uint64 // EntryInline only
	Payload  []byte // EntryInline only; part of the value it was parsed from
}

const (
	entryLen       = 1 + 4 + 4 + 8
	entryReplayLen = entryLen + 8
	entryInlineLen = entryReplayLen + 8
)

// EncodedLen returns the length of the encoded entry.
func (e *Entry) EncodedLen() int {
	switch e.Kind {
	case EntryReplay:
		return entryReplayLen
	case EntryInline:
		return entryInlineLen + len(e.Payload)
	default:
		return entryLen
	}
}

// Encode fills dst, which has EncodedLen bytes.
func (e *Entry) Encode(dst []byte) {
	dst[0] = e.Kind
	binary.BigEndian.PutUint32(dst[1:], e.Flags)
	binary.BigEndian.PutUint32(dst[5:], e.Size)
	binary.BigEndian.PutUint64(dst[9:], Nanos(e.Time))
	if e.Kind == EntryNew {
		return
	}
	binary.BigEndian.PutUint64(dst[entryLen:], e.Sequence)
	if e.Kind == EntryInline {
		binary.BigEndian.PutUint64(dst[entryReplayLen:], e.Lane)
		copy(dst[entryInlineLen:], e.Payload)
	}
}

// ParseEntry decodes the queue entry at a position.
func ParseEntry(position uint64, value []byte) (Entry, error) {
	if len(value) < entryLen {
		return Entry{}, malformed(PrefixQueue, value)
	}
	e := Entry{
		Kind: value[0], Flags: binary.BigEndian.Uint32(value[1:]), Size: binary.BigEndian.Uint32(value[5:]),
		Time: UnixNano(value[9:]), Sequence: position,
	}
	if e.Kind == EntryNew {
		return e, nil
	}
	if e.Kind > EntryInline || len(value) < entryReplayLen {
		return Entry{}, malformed(PrefixQueue, value)
	}
	e.Sequence = binary.BigEndian.Uint64(value[entryLen:])
	if e.Kind == EntryInline {
		if len(value) < entryInlineLen {
			return Entry{}, malformed(PrefixQueue, value)
		}
		e.Lane = binary.BigEndian.Uint64(value[entryReplayLen:])
		e.Payload = value[entryInlineLen:]
	}
	return e, nil
}

// DeadLetter is a dead letter:
//
//	sequence64 lane64 time64 flags32 attempts32 first64 last64 reasonlen32 reason payload
type DeadLetter struct {
	Sequence uint64
	Lane     uint64
	Time     time.Time
	Flags    uint32
	Attempts uint32
	First    time.Time
	Last     time.Time
	Reason   string
	Payload  []byte
}

const deadLetterHeaderLen = 8*3 + 4*2 + 8*2 + 4

// Encode returns the value of a dead letter.
func (d *DeadLetter) Encode() []byte {
	dst := binary.BigEndian.AppendUint64(nil, d.Sequence)
	dst = binary.BigEndian.AppendUint64(dst, d.Lane)
	dst = binary.BigEndian.AppendUint64(dst, Nanos(d.Time))
	dst = binary.BigEndian.AppendUint32(dst, d.Flags)
	dst = binary.BigEndian.AppendUint32(dst, d.Attempts)
	dst = binary.BigEndian.AppendUint64(dst, Nanos(d.First))
	dst = binary.BigEndian.AppendUint64(dst, Nanos(d.Last))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(d.Reason)))
	dst = append(dst, d.Reason...)
	return append(dst, d.Payload...)
}

// ParseDeadLetter decodes a dead letter.
func ParseDeadLetter(value []byte) (DeadLetter, error) {
	if len(value) < deadLetterHeaderLen {
		return DeadLetter{}, malformed(PrefixDeadLetter, value)
	}
	d := DeadLetter{
		Sequence: binary.BigEndian.Uint64(value), Lane: binary.BigEndian.Uint64(value[8:]), Time: UnixNano(value[16:]),
		Flags: binary.BigEndian.Uint32(value[24:]), Attempts: binary.BigEndian.Uint32(value[28:]), First: UnixNano(value[32:]),
		Last: UnixNano(value[40:]),
	}
	n := int(binary.BigEndian.Uint32(value[48:]))
	rest := value[deadLetterHeaderLen:]
	if n > len(rest) {
		return DeadLetter{}, malformed(PrefixDeadLetter, value)
	}
	d.Reason, d.Payload = string(rest[:n]), rest[n:]
	return d, nil
}

// ReasonClass returns the reason of a dead letter without its text.
func ReasonClass(reason string) string {
	class, _, _ := strings.Cut(reason, ":")
	return class
}

// Position is the entry of a journal that a directory has applied last. The zero value is that of
// a directory without a journal.
type Position struct {
	// First and Last are the journal's sequences of the first and last part of the entry.
	First, Last uint64
	// Term is the number of the writer, counted from 1.
	Term uint64
	// Sum is the checksum of all entries up to this one.
	Sum uint64
}

// Append appends the encoded position.
func (p Position) Append(dst []byte) []byte {
	for _, v := range [...]uint64{p.First, p.Last, p.Term, p.Sum} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// ParsePosition decodes a position.
func ParsePosition(value []byte) (Position, error) {
	if len(value) != 32 {
		return Position{}, malformed(PrefixJournal, value)
	}
	at := func(i int) uint64 { return binary.BigEndian.Uint64(value[8*i:]) }
	return Position{First: at(0), Last: at(1), Term: at(2), Sum: at(3)}, nil
}

// Term is what one writer has appended to a journal: all entries behind the sequence After, up to the next term.
type Term struct{ After, ID uint64 } // ID is random

// Value returns the encoded value of the term, whose key is TermKey(After).
func (t Term) Value() []byte { return binary.BigEndian.AppendUint64(nil, t.ID) }

// ParseTerm decodes a term.
func ParseTerm(key, value []byte) (Term, error) {
	after, ok := PositionOfKey(key)
	if !ok || len(value) != 8 {
		return Term{}, malformed(PrefixTerm, value)
	}
	return Term{after, binary.BigEndian.Uint64(value)}, nil
}

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
		return Counter{}, malformed(PrefixCounter, value)
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
