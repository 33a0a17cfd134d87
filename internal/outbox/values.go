package outbox

import (
	"encoding/binary"
	"errors"
	"strings"
	"time"
)

var errMalformed = errors.New("malformed value")

// A log record's value is its time (Unix nanoseconds), its lane, the size that the
// payload had when it was appended, by which it counts, and the payload.
const logHeaderLen = 20

func putLogHeader(dst []byte, t time.Time, lane uint64, size uint32) {
	binary.BigEndian.PutUint64(dst, nanos(t))
	binary.BigEndian.PutUint64(dst[8:], lane)
	binary.BigEndian.PutUint32(dst[16:], size)
}

type logValue struct {
	time    time.Time
	lane    uint64
	size    uint32
	payload []byte // part of the value it was parsed from
}

func parseLogValue(value []byte) (logValue, error) {
	if len(value) < logHeaderLen {
		return logValue{}, errMalformed
	}
	return logValue{
		time:    unixNano(value),
		lane:    binary.BigEndian.Uint64(value[8:]),
		size:    binary.BigEndian.Uint32(value[16:]),
		payload: value[logHeaderLen:],
	}, nil
}

// nanos is t in Unix nanoseconds, and 0 for the zero time.
func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

func unixNano(b []byte) time.Time {
	n := binary.BigEndian.Uint64(b)
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(n)).UTC()
}

// The kinds of queue entries.
const (
	entryNew    = 0 // refers to the log record whose sequence is the position
	entryReplay = 1 // refers to an older log record
	entryInline = 2 // carries its payload: a retried dead letter, or see detach.go
)

// entry is a queue entry:
//
//	kind8 flags32 size32 time64 [sequence64 [lane64 payload]]
//
// size is the payload's length, so that a queue's bytes can be counted without
// the log; time is the record's, so that a queue's age can.
type entry struct {
	kind     byte
	flags    uint32
	size     uint32
	time     time.Time
	sequence uint64
	lane     uint64 // entryInline only
	payload  []byte // entryInline only; part of the value it was parsed from
}

const (
	entryLen       = 1 + 4 + 4 + 8
	entryReplayLen = entryLen + 8
	entryInlineLen = entryReplayLen + 8
)

func (e *entry) encodedLen() int {
	switch e.kind {
	case entryReplay:
		return entryReplayLen
	case entryInline:
		return entryInlineLen + len(e.payload)
	default:
		return entryLen
	}
}

// encode fills dst, which has encodedLen bytes.
func (e *entry) encode(dst []byte) {
	dst[0] = e.kind
	binary.BigEndian.PutUint32(dst[1:], e.flags)
	binary.BigEndian.PutUint32(dst[5:], e.size)
	binary.BigEndian.PutUint64(dst[9:], nanos(e.time))
	if e.kind == entryNew {
		return
	}
	binary.BigEndian.PutUint64(dst[entryLen:], e.sequence)
	if e.kind == entryInline {
		binary.BigEndian.PutUint64(dst[entryReplayLen:], e.lane)
		copy(dst[entryInlineLen:], e.payload)
	}
}

func parseEntry(position uint64, value []byte) (entry, error) {
	if len(value) < entryLen {
		return entry{}, errMalformed
	}
	e := entry{
		kind:     value[0],
		flags:    binary.BigEndian.Uint32(value[1:]),
		size:     binary.BigEndian.Uint32(value[5:]),
		time:     unixNano(value[9:]),
		sequence: position,
	}
	if e.kind == entryNew {
		return e, nil
	}
	if e.kind > entryInline || len(value) < entryReplayLen {
		return entry{}, errMalformed
	}
	e.sequence = binary.BigEndian.Uint64(value[entryLen:])
	if e.kind == entryInline {
		if len(value) < entryInlineLen {
			return entry{}, errMalformed
		}
		e.lane = binary.BigEndian.Uint64(value[entryReplayLen:])
		e.payload = value[entryInlineLen:]
	}
	return e, nil
}

// deadLetterValue is a dead letter:
//
//	sequence64 lane64 time64 flags32 attempts32 first64 last64 reasonlen32 reason payload
type deadLetterValue struct {
	sequence uint64
	lane     uint64
	time     time.Time
	flags    uint32
	attempts uint32
	first    time.Time
	last     time.Time
	reason   string
	payload  []byte
}

const deadLetterHeaderLen = 8*3 + 4*2 + 8*2 + 4

func (d *deadLetterValue) encode() []byte {
	dst := binary.BigEndian.AppendUint64(nil, d.sequence)
	dst = binary.BigEndian.AppendUint64(dst, d.lane)
	dst = binary.BigEndian.AppendUint64(dst, nanos(d.time))
	dst = binary.BigEndian.AppendUint32(dst, d.flags)
	dst = binary.BigEndian.AppendUint32(dst, d.attempts)
	dst = binary.BigEndian.AppendUint64(dst, nanos(d.first))
	dst = binary.BigEndian.AppendUint64(dst, nanos(d.last))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(d.reason)))
	dst = append(dst, d.reason...)
	return append(dst, d.payload...)
}

func parseDeadLetter(value []byte) (deadLetterValue, error) {
	if len(value) < deadLetterHeaderLen {
		return deadLetterValue{}, errMalformed
	}
	d := deadLetterValue{
		sequence: binary.BigEndian.Uint64(value),
		lane:     binary.BigEndian.Uint64(value[8:]),
		time:     unixNano(value[16:]),
		flags:    binary.BigEndian.Uint32(value[24:]),
		attempts: binary.BigEndian.Uint32(value[28:]),
		first:    unixNano(value[32:]),
		last:     unixNano(value[40:]),
	}
	n := int(binary.BigEndian.Uint32(value[48:]))
	rest := value[deadLetterHeaderLen:]
	if n > len(rest) {
		return deadLetterValue{}, errMalformed
	}
	d.reason, d.payload = string(rest[:n]), rest[n:]
	return d, nil
}

// reasonClass returns the reason of a dead letter without its text.
func reasonClass(reason string) string {
	class, _, _ := strings.Cut(reason, ":")
	return class
}
