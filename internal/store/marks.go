package store

import (
	"encoding/binary"
	"sort"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// The log is cut into segments by marks, so that retention and replay by time
// need not read it. A mark has where a segment begins, when, and how much had
// been appended before it since the store was made; the size of a segment is
// the difference of two marks.
type mark struct {
	sequence uint64
	clock    time.Time // what the clock said
	time     time.Time // what is believed: never before the mark before it; see date
	count    int64
	bytes    int64
}

// A segment ends after this many bytes or this much time, whichever is first.
// 10 GiB of backlog are 10,000 marks.
const (
	segmentBytes = 1 << 20
	segmentAge   = time.Minute
)

const markLen = 24

func (m mark) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, layout.Nanos(m.clock))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.count))
	return binary.BigEndian.AppendUint64(dst, uint64(m.bytes))
}

func parseMark(sequence uint64, value []byte) (mark, error) {
	if len(value) != markLen {
		return mark{}, layout.ErrMalformed
	}
	return mark{
		sequence: sequence,
		clock:    layout.UnixNano(value),
		time:     layout.UnixNano(value),
		count:    int64(binary.BigEndian.Uint64(value[8:])),
		bytes:    int64(binary.BigEndian.Uint64(value[16:])),
	}, nil
}

// marks are in order of sequence.
type marks []mark

// due reports whether a batch whose first record is at t begins a segment, when
// bytes have been appended so far.
func (m marks) due(t time.Time, bytes int64) bool {
	if len(m) == 0 {
		return true
	}
	last := m[len(m)-1]
	// Also when the clock was set back, so that it is seen.
	return bytes-last.bytes >= segmentBytes || t.Sub(last.clock).Abs() >= segmentAge
}

func (m marks) add(next mark) marks {
	n := len(m)
	m = append(m, next)
	if n > 0 && next.clock.Before(m[n-1].time) {
		m.date()
	}
	return m
}

// date decides which clocks to believe where they are not in order: those of the
// longest chain of marks that is, the earlier one of two that end equally long. A
// mark outside of it (from a moment when the clock was wrong) gets the time of the
// next one in it, or of the last. So one jump of the clock is put right by the next
// mark after it, and a long wrong time by as many right marks.
func (m marks) date() {
	// chain[k] is the mark that ends, earliest, a chain of k+1 marks.
	var chain []int
	before := make([]int, len(m))
	for i := range m {
		k := sort.Search(len(chain), func(k int) bool { return m[chain[k]].clock.After(m[i].clock) })
		before[i] = -1
		if k > 0 {
			before[i] = chain[k-1]
		}
		if k == len(chain) {
			chain = append(chain, i)
		} else {
			chain[k] = i
		}
	}
	if len(chain) == 0 {
		return
	}
	believed := chain[len(chain)-1]
	t := m[believed].clock
	for i := len(m) - 1; i >= 0; i-- {
		if i == believed {
			t, believed = m[i].clock, before[i]
		}
		m[i].time = t
	}
}

// segmentOf is the index of the segment that holds the sequence; -1 if it lies
// before the first.
func (m marks) segmentOf(sequence uint64) int {
	return sort.Search(len(m), func(i int) bool { return m[i].sequence > sequence }) - 1
}

// segmentFrom is the index of the first segment with records at or after the sequence;
// -1 if there is no segment.
func (m marks) segmentFrom(sequence uint64) int {
	return max(m.segmentOf(sequence), min(len(m), 1)-1)
}

// before is the index of the last segment that began at or before t; -1 if
// none did. Records at or after t are in it or in later ones.
func (m marks) before(t time.Time) int {
	return sort.Search(len(m), func(i int) bool { return m[i].time.After(t) }) - 1
}
