package compact

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// The binary form of an object:
//
//	byte         version
//	uvarint      sequence
//	2 texts      apiVersion, kind
//	4 texts      namespace, name, uid, resourceVersion
//	head         see head.appendTo
//	uvarint      number of labels
//	2 texts each key, value
//	uint32       dictionary ID or compression without one, little endian
//	...          body, up to the checksum
//	uint32       CRC-32C of all before it, little endian
//
// A text is its length as an uvarint and its bytes. The version distinguishes a newer form
// from damage.
const (
	binaryVersion = 2
	checksumLen   = 4
)

func checksum(b []byte) uint32 {
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) // the table is cached
}

// AppendBinary appends the object's form on disk. Codec.Decode reads it, given the
// dictionary that Body names. Position and LastChange are not included.
func (o *Object) AppendBinary(dst []byte) []byte {
	start := len(dst)
	dst = binary.AppendUvarint(append(dst, binaryVersion), o.Sequence())
	for _, text := range [...]string{
		o.kind.apiVersion, o.kind.kind, o.GetNamespace(), o.GetName(), string(o.GetUID()), o.GetResourceVersion(),
	} {
		dst = appendText(dst, text)
	}
	h := o.head()
	h.flags &^= hasChange
	dst = h.appendTo(dst)
	labels, n := o.Labels(), 0
	for range labels.All() {
		n++
	}
	dst = binary.AppendUvarint(dst, uint64(n))
	for key, value := range labels.All() {
		dst = appendText(appendText(dst, key), value)
	}
	dst = binary.LittleEndian.AppendUint32(dst, o.dict)
	dst = append(dst, o.packed[o.bodyAt:]...)
	return binary.LittleEndian.AppendUint32(dst, checksum(dst[start:]))
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// Decode reads the result of AppendBinary. The object shares no memory with data.
// An error wraps ErrCorrupt, or ErrNoDictionary if the body's dictionary is
// missing.
func (c *Codec) Decode(data []byte) (*Object, error) {
	n := len(data) - checksumLen
	if n < 0 || checksum(data[:n]) != binary.LittleEndian.Uint32(data[n:]) {
		return nil, fmt.Errorf("%w: checksum mismatch of an object", ErrCorrupt)
	}
	r := packedReader{s: string(data[:n]), ok: true}
	if v := r.byte(); v != binaryVersion {
		return nil, fmt.Errorf("%w: object format %d is unknown", ErrCorrupt, v)
	}
	sequence := r.uvarint()
	o := &Object{kind: c.dicts.types.of([]byte(r.text()), []byte(r.text()))}
	o.RecordedAs(sequence)
	packed := make([]byte, 0, len(r.s))
	for i := range o.ends {
		if packed = append(packed, r.text()...); len(packed) > math.MaxUint16 {
			r.fail()
		}
		o.ends[i] = uint16(len(packed))
	}
	h := r.head()
	h.flags &^= hasChange
	packed = h.appendTo(packed)
	for range r.uvarint() {
		if key, value := r.text(), r.text(); r.ok {
			packed = o.kind.labelKeys.append(packed, []byte(key), []byte(value))
			continue
		}
		break
	}
	dict := r.take(4)
	if !r.ok || h.rawLen == 0 || h.rawLen > MaxRawLen {
		return nil, fmt.Errorf("%w: invalid metadata of an object", ErrCorrupt)
	}
	o.dict, o.bodyAt = binary.LittleEndian.Uint32([]byte(dict)), uint32(len(packed))
	if o.dict != noDictionary && o.dict != dense && c.dicts.dictionary(o.dict) == nil {
		return nil, fmt.Errorf("%w: %d", ErrNoDictionary, o.dict)
	}
	o.packed = string(append(packed, r.s...))
	return o, nil
}

// Flags of a head.
const (
	hasCreation = 1 << iota
	hasDeletion
	hasAnnotations
	hasOwners
	hasFinalizers
	hasGenerateName
	hasManagedFields
	hasChange // in memory only
)

// head is the metadata that is not text.
type head struct {
	rawLen           int
	flags            byte
	generation       int64
	created, deleted int64 // seconds since 1970
}

// appendTo packs the head: numbers as varints, times only if set.
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

// packedReader reads packed fields from the front of s. After a missing field ok is
// false, s is empty and all results are zero.
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
