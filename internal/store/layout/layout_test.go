package layout

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMessages: a message about a damaged store names the keyspace, and what a key is of.
func TestMessages(t *testing.T) {
	for want, key := range map[string][]byte{
		"log record 7":                           AppendLogKey(nil, 7),
		"queue entry 7 of sink number 2":         AppendSinkKey(nil, PrefixQueue, 2, 7),
		"dead letter 7 of sink number 2":         AppendSinkKey(nil, PrefixDeadLetter, 2, 7),
		`ledger entry "a" of partition number 3`: AppendStateKey(nil, 3, "a"),
		`name of sink "a"`:                       NameKey(KindSink, "a"),
		`metadata "a"`:                           MetaKey("a"),
		"note of sink number 2":                  NoteKey(2),
		"counter of the log":                     CounterKey(KindLog, 0),
		"counter of the queue of sink number 2":  CounterKey(KindQueue, 2),
		"version of the layout":                  FormatKey(),
		"position in the journal":                JournalKey(),
		"note of a repair":                       RepairKey(),
		`queue entry "\x00"`:                     {PrefixQueue, 0},
		`key "?" of no keyspace`:                 []byte("?"),
	} {
		if got := DescribeKey(key); got != want {
			t.Errorf("%q is %s, want %s", key, got, want)
		}
	}
	for want, parse := range map[string]func([]byte) error{
		"a counter of 1 bytes":                 func(b []byte) error { _, err := ParseCounter(b); return err },
		"a note of a repair of 1 bytes":        func(b []byte) error { _, err := ParseRanges(b); return err },
		"a log record of 1 bytes":              func(b []byte) error { _, err := ParseLogRecord(b); return err },
		"a queue entry of 1 bytes":             func(b []byte) error { _, err := ParseEntry(1, b); return err },
		"a dead letter of 1 bytes":             func(b []byte) error { _, err := ParseDeadLetter(b); return err },
		"a position in the journal of 1 bytes": func(b []byte) error { _, err := ParsePosition(b); return err },
	} {
		if err := parse([]byte{9}); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	everything := Range{Lower: []byte{0}, Upper: []byte{0xff}}.String()
	for _, space := range keyspaces {
		if !strings.Contains(everything, space.all+" after the beginning and before the end") {
			t.Errorf("%s are not in %s", space.all, everything)
		}
	}
	if got, want := DescribeSpan(PrefixCounter, CounterKey(KindLog, 0), nil), "counters after that of the log and before the end"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

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
		_ = DescribeKey(value)
		if !bytes.Equal(before, value) {
			t.Error("the value was changed")
		}
	})
}
