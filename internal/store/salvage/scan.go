package salvage

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// A damaged block hides its own keys only. An iterator stops there and can continue at
// the first key of the next block. That key is in the indexes of the tables, which
// Pebble exposes through the size of a range: it grows where the range reaches another
// block.

// ErrUnreadable means that the bytes of a value fail their checksum.
var ErrUnreadable = errors.New("unreadable record")

// LostSpan is a span of unreadable keys: those greater than after and smaller than
// before. A nil bound is that of the scan.
type LostSpan struct {
	after, before []byte
	Err           error
}

// Within names the lost keys of a keyspace.
func (l *LostSpan) Within(prefix byte) string { return layout.DescribeSpan(prefix, l.after, l.before) }

// Scan calls f for every readable key in [lower, upper), in order, and lost for every
// unreadable span between them. key and value are valid during the call only. An error
// of f or lost ends the scan and is returned.
func Scan(db *pebble.DB, lower, upper []byte, f func(key, value []byte) error, lost func(LostSpan) error) error {
	var last []byte
	var span *LostSpan // unreadable, up to the next key that is not
	for {
		at, damage, err := Read(db, lower, upper, func(key, value []byte) error {
			if span != nil {
				span.before = bytes.Clone(key)
				if err := lost(*span); err != nil {
					return err
				}
				span = nil
			}
			if err := f(key, value); err != nil {
				return err
			}
			last = append(last[:0], key...)
			return nil
		})
		if err != nil {
			return err
		}
		if damage != nil {
			if span == nil {
				span = &LostSpan{after: bytes.Clone(last), Err: damage}
			}
			if lower, err = nextAfter(db, at, upper, damage); err != nil {
				return err
			}
		}
		if damage == nil || lower == nil {
			if span != nil {
				return lost(*span)
			}
			return nil
		}
	}
}

// Read calls f for the keys in [lower, upper), in order, up to the first that may be unreadable: at, with the damage, which is
// ErrUnreadable. An iterator fails as soon as one of its levels is to read a damaged block, also where that
// is of a table that begins behind all that follows in the other levels. That is read before.
func Read(db *pebble.DB, lower, upper []byte, f func(key, value []byte) error) (at []byte, damage, err error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, nil, ReadError(err)
	}
	defer func() { _ = it.Close() }() // its errors were seen while reading
	end := upper
	for ok := it.First(); ; {
		damage := it.Error()
		if ok {
			var value []byte
			if value, damage = it.ValueAndErr(); damage == nil {
				if err := f(it.Key(), value); err != nil {
					return nil, nil, err
				}
				at = append(append(at[:0], it.Key()...), 0)
				ok = it.Next()
				continue
			}
		}
		if bytes.Compare(at, lower) < 0 {
			at = append(at[:0], lower...)
		}
		switch damage = ReadError(damage); {
		case damage == nil && bytes.Equal(end, upper):
			return nil, nil, nil
		case damage == nil: // up to the damaged table
			at, end = append(at[:0], end...), upper
		case !errors.Is(damage, ErrUnreadable):
			return nil, nil, damage
		default:
			begin := tableBegin(damage)
			if bytes.Compare(begin, at) <= 0 || bytes.Compare(begin, end) >= 0 {
				return at, damage, nil
			}
			end = begin
		}
		it.SetBounds(lower, end)
		ok = it.SeekGE(at)
	}
}

// tableBegin returns the first key of the table that damage is about, nil if that is not known.
func tableBegin(damage error) []byte {
	if info := pebble.ExtractDataCorruptionInfo(damage); info != nil {
		return info.Bounds.Start
	}
	return nil
}

// nextAfter returns the first key after from in another block, or after the table if its index is damaged; nil if there is none
// below upper. damage is the error of reading at from.
func nextAfter(db *pebble.DB, from, upper []byte, damage error) ([]byte, error) {
	next, err := tableEnd(db, from, damage)
	if err == nil && next == nil {
		next, err = nextBlock(db.EstimateDiskUsage, from, upper)
	}
	if err != nil || next == nil || bytes.Compare(next, upper) >= 0 {
		return nil, err
	}
	return next, nil
}

// tableEnd returns the first key after the table that damage is about, if its index is
// damaged; else nil. Such a table is unreadable, and each attempt is expensive.
func tableEnd(db *pebble.DB, from []byte, damage error) ([]byte, error) {
	info := pebble.ExtractDataCorruptionInfo(damage)
	if info == nil {
		return nil, nil
	}
	first, last := info.Bounds.Start, info.Bounds.End.Key
	end := append(bytes.Clone(last), 0)
	// The size of a part of a table comes from its index, and is 0 if that cannot be
	// read; that of the whole does not.
	almost := bytes.Clone(last)
	if n := len(last) - 1; n < 0 || last[n] == 0 {
		almost = almost[:max(n, 0)]
	} else {
		almost[n]--
		almost = append(almost, 0xff, 0xff, 0xff, 0xff)
	}
	if bytes.Compare(end, from) <= 0 || bytes.Compare(almost, first) <= 0 {
		return nil, nil
	}
	levels, err := db.SSTables()
	if err != nil {
		return nil, err
	}
	for _, tables := range levels {
		for i := range tables {
			t := &tables[i]
			if !bytes.Equal(t.Smallest.UserKey, first) || !bytes.Equal(t.Largest.UserKey, last) {
				continue
			}
			whole, err := db.EstimateDiskUsage(first, last)
			if err != nil {
				return nil, err
			}
			part, err := db.EstimateDiskUsage(first, almost)
			if err == nil && whole >= part+t.Size {
				return end, nil
			}
			return nil, err
		}
	}
	return nil, nil
}

// nextBlock finds the smallest key greater than from at which another block
// begins; nil if there is none below upper. size is the size of the blocks that
// have keys between two, both included.
func nextBlock(size func(from, to []byte) (uint64, error), from, upper []byte) ([]byte, error) {
	here, err := size(from, from)
	if err != nil {
		return nil, err
	}
	beyond := func(key []byte) bool {
		if err != nil || bytes.Compare(key, from) <= 0 {
			return false
		}
		var n uint64
		n, err = size(from, key)
		return n > here
	}
	if !beyond(upper) {
		return nil, err
	}
	// Byte by byte: the smallest that reaches beyond with the largest bytes behind.
	longest := max(len(from), len(upper)) + 16
	key := make([]byte, 0, longest)
	rest := bytes.Repeat([]byte{0xff}, longest)
	for len(key) < longest && err == nil {
		low, high := 0, 0xff
		key = append(key, 0)
		for low < high {
			middle := (low + high) / 2
			key[len(key)-1] = byte(middle)
			if beyond(append(slices.Clip(key), rest[len(key):]...)) {
				high = middle
			} else {
				low = middle + 1
			}
		}
		key[len(key)-1] = byte(low)
		if beyond(key) {
			break
		}
	}
	if err != nil || bytes.Compare(key, upper) >= 0 {
		return nil, err
	}
	return key, nil
}

// FirstLine returns an error's text without the details that Pebble adds for its
// developers.
func FirstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// ReadError wraps an error that a second read would repeat in ErrUnreadable.
func ReadError(err error) error {
	if pebble.IsCorruptionError(err) || errors.Is(err, syscall.EIO) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return err
}
