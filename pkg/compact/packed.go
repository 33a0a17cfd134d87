package compact

import (
	"encoding/binary"
	"math"
)

// Flags of a head: what the object has.
const (
	hasCreation = 1 << iota
	hasDeletion
	hasAnnotations
	hasOwners
	hasFinalizers
	hasGenerateName
	hasManagedFields
)

// head is an object's metadata that is not text.
type head struct {
	rawLen           int
	flags            byte
	generation       int64
	created, deleted int64 // seconds since 1970
}

// appendTo packs the head: numbers as varints, times only if there are any.
func (h head) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(h.rawLen))
	dst = append(dst, h.flags)
	dst = binary.AppendVarint(dst, h.generation)
	if h.flags&hasCreation != 0 {
		dst = binary.AppendVarint(dst, h.created)
	}
	if h.flags&hasDeletion != 0 {
		dst = binary.AppendVarint(dst, h.deleted)
	}
	return dst
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

// text reads a text prefixed with its length.
func (r *packedReader) text() string {
	return r.take(r.uvarint())
}

func (r *packedReader) head() head {
	h := head{rawLen: int(min(r.uvarint(), math.MaxInt32)), flags: r.byte(), generation: r.varint()}
	if h.flags&hasCreation != 0 {
		h.created = r.varint()
	}
	if h.flags&hasDeletion != 0 {
		h.deleted = r.varint()
	}
	return h
}
