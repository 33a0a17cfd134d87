package compact

import (
	"encoding/binary"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
)

// Labels reads an object's labels in place. It implements labels.Labels, so a
// selector matches without building a map. If a key occurs twice, the last value
// counts.
type Labels struct {
	packed string
	keys   []string // by number, see keyTable
}

// Labels returns the object's labels without allocating.
func (o *Object) Labels() Labels {
	_, packed := o.headAndLabels()
	return Labels{packed, o.kind.labelKeys.all()}
}

// All yields every label in the order sent. A key that occurs twice is yielded
// twice; the last value is the valid one.
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

// Lookup returns the value of a label and whether it is set.
func (l Labels) Lookup(key string) (value string, ok bool) {
	for k, v := range l.All() {
		if k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Has reports whether a label is set.
func (l Labels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get returns the value of a label, "" if it is not set.
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

// A packed label is the number of its key, or literalKey and the key, then the value.
// Texts are length-prefixed. The keys of a resource's objects are alike and most of the
// bytes, so they are stored once.
const (
	literalKey     = 255 // number of keys that are not in the table
	longestTabled  = 128 // longer keys are not in the table
	maxTabledLabel = literalKey
)

// keyTable numbers the label keys of a resource in order of appearance until it is
// full. It only grows, so a number never changes its meaning.
type keyTable struct {
	keys atomic.Pointer[[]string] // by number; append only

	mu      sync.Mutex // guards numbers, and stores to keys
	numbers map[string]byte
}

func (t *keyTable) all() []string {
	if keys := t.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// number returns the number of a key and assigns one if there is room, else
// literalKey.
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

// appendNumber packs a key.
func (t *keyTable) appendNumber(dst, key []byte) []byte {
	n := t.number(key)
	if dst = append(dst, n); n == literalKey {
		dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	}
	return dst
}

// append packs one label.
func (t *keyTable) append(dst, key, value []byte) []byte {
	dst = t.appendNumber(dst, key)
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}
