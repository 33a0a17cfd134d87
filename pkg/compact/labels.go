package compact

import (
	"encoding/binary"
	"iter"
)

// Labels is an object's labels, read in place. It implements labels.Labels, so that a selector can be matched without
// building a map. A key that was sent twice has its last value.
type Labels struct {
	packed string
}

// Labels returns the object's labels without allocating.
func (o *Object) Labels() Labels { return Labels{o.head().labels} }

// appendLabels packs labels as pairs of length-prefixed strings.
func appendLabels(dst []byte, p Pairs) []byte {
	for k, v := range p.All() {
		dst = append(binary.AppendUvarint(dst, uint64(len(k))), k...)
		dst = append(binary.AppendUvarint(dst, uint64(len(v))), v...)
	}
	return dst
}

// All yields every label in the order sent. A key that was sent twice is yielded twice: the last one counts.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		r := packedReader{s: l.packed, ok: true}
		for len(r.s) > 0 {
			key, value := r.text(), r.text()
			if !r.ok || !yield(key, value) {
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
	m := make(map[string]string, 8)
	for k, v := range l.All() {
		m[k] = v
	}
	return m
}

// packedReader reads packed fields off the front of s. Once something is missing ok is false, s is empty and all that
// it returns is zero.
type packedReader struct {
	s  string
	ok bool
}

func (r *packedReader) fail() {
	r.s, r.ok = "", false
}

func (r *packedReader) byte() byte {
	if r.s == "" {
		r.fail()
		return 0
	}
	c := r.s[0]
	r.s = r.s[1:]
	return c
}

func (r *packedReader) uvarint() uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		c := r.byte()
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return n
		}
	}
	r.fail()
	return 0
}

func (r *packedReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *packedReader) take(n uint64) string {
	if n > uint64(len(r.s)) {
		r.fail()
		return ""
	}
	s := r.s[:n]
	r.s = r.s[n:]
	return s
}

func (r *packedReader) text() string {
	return r.take(r.uvarint())
}
