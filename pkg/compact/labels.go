package compact

import (
	"encoding/binary"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
)

// Labels is an object's labels, read in place. It implements labels.Labels, so that a selector can be matched without
// building a map. A key that was sent twice has its last value.
type Labels struct {
	packed string
	keys   []string // by number, see keyTable
}

// Labels returns the object's labels without allocating.
func (o *Object) Labels() Labels {
	_, packed := o.headAndLabels()
	return Labels{packed, o.kind.labelKeys.all()}
}

// All yields every label in the order sent. A key that was sent twice is yielded twice: the last one counts.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		r := packedReader{s: l.packed, ok: true}
		for len(r.s) > 0 {
			var key string
			if n := r.byte(); n == literalKey {
				key = r.text()
			} else {
				key = l.keys[n]
			}
			if !yield(key, r.text()) {
				return
			}
		}
	}
}

// Lookup returns the value of a label and whether there is one.
func (l Labels) Lookup(key string) (value string, ok bool) {
	for k, v := range l.All() {
		if k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Has tells whether there is such a label.
func (l Labels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get returns the value of a label, "" if there is none.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

// Map returns the labels as a new map, nil if there are none.
func (l Labels) Map() map[string]string {
	if l.packed == "" {
		return nil
	}
	return maps.Collect(l.All())
}

// In memory a label is the number of its key, or literalKey and the key, then the value; texts are prefixed with their
// length. The keys, which are most of the bytes and the same on all objects of a resource, are kept once.
const (
	literalKey     = 255 // as the number: not in the table
	longestTabled  = 128 // longer keys are not worth a place in the table
	maxTabledLabel = literalKey
)

// keyTable numbers the label keys of a resource in the order they are first seen, until it is full. It only grows: a
// number means the same as long as the table lives.
type keyTable struct {
	keys atomic.Pointer[[]string] // by number; the slice is appended to, what it holds never changes

	mu      sync.Mutex // guards the rest, and stores to keys
	numbers map[string]byte
}

func (t *keyTable) all() []string {
	if keys := t.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// number returns the number of a key, giving it one if there is room, else literalKey.
func (t *keyTable) number(key []byte) byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.numbers[string(key)]; ok {
		return n
	}
	n := len(t.numbers)
	if n == maxTabledLabel || len(key) > longestTabled {
		return literalKey
	}
	if t.numbers == nil {
		t.numbers = map[string]byte{}
	}
	keys := append(t.all(), string(key))
	t.numbers[keys[n]] = byte(n)
	t.keys.Store(&keys)
	return byte(n)
}

// append packs one label.
func (t *keyTable) append(dst, key, value []byte) []byte {
	n := t.number(key)
	if dst = append(dst, n); n == literalKey {
		dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	}
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}
