package layout

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// FuzzParse reads values as a damaged disk may return them: each is refused, or read
// without more than it holds.
func FuzzParse(f *testing.F) {
	header := make([]byte, LogHeaderLen)
	PutLogHeader(header, time.Unix(1, 0), 7, 3)
	f.Add(slices.Concat(header, []byte("abc")))
	f.Add(AppendRanges(nil, []Range{{Lower: []byte("a"), Upper: []byte("b")}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, value []byte) {
		before := bytes.Clone(value)
		_, _ = ParseCounter(value)
		if r, err := ParseRanges(value); err == nil {
			if again, err := ParseRanges(AppendRanges(nil, r)); err != nil || len(again) != len(r) {
				t.Errorf("%d ranges are %d, %v, after they were written", len(r), len(again), err)
			}
			for _, one := range r {
				_ = one.String()
				one.Positions(PrefixQueue, 1)
			}
		}
		if r, err := ParseLogRecord(value); err == nil && len(r.Payload) > len(value) {
			t.Errorf("a payload of %d bytes out of %d", len(r.Payload), len(value))
		}
		_, _ = ParseEntry(1, value)
		if l, err := ParseDeadLetter(value); err == nil {
			ReasonClass(l.Reason)
		}
		_, _ = PositionOfKey(value)
		if !bytes.Equal(before, value) {
			t.Error("the value was changed")
		}
	})
}
