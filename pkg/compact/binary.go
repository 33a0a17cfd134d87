package compact

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The binary form of an object, all numbers little endian:
//
//	byte     version, 1
//	uvarint  length of apiVersion, then apiVersion; the same for kind
//	4 × uvarint  lengths of namespace, name, uid, resourceVersion
//	uvarint  length of head and labels together
//	uint32   id of the dictionary
//	...      namespace, name, uid, resourceVersion, head, labels, body
//	uint32   CRC-32C of all before it
//
// Every record names its version, so that a later one can be told from damage.
const binaryVersion = 1

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// AppendBinary appends the form of the object that is kept on disk. Codec.Decode reads it back, given the dictionary that
// Body names. The position is not part of it.
func (o *Object) AppendBinary(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, binaryVersion)
	for _, text := range [...]string{o.kind.apiVersion, o.kind.kind} {
		dst = append(binary.AppendUvarint(dst, uint64(len(text))), text...)
	}
	var from uint16
	for _, end := range o.ends {
		dst = binary.AppendUvarint(dst, uint64(end-from))
		from = end
	}
	dst = binary.AppendUvarint(dst, uint64(o.bodyAt)-uint64(from))
	dst = binary.LittleEndian.AppendUint32(dst, o.dict)
	dst = append(dst, o.packed...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli()))
}

// Decode reads what AppendBinary wrote. The object shares no memory with it. An error wraps ErrCorrupt, or
// ErrNoDictionary if the body's dictionary is not there. It is safe for concurrent use, also with Encode.
func (c *Codec) Decode(data []byte) (*Object, error) {
	const sum = 4
	if len(data) < sum || crc32.Checksum(data[:len(data)-sum], castagnoli()) != binary.LittleEndian.Uint32(data[len(data)-sum:]) {
		return nil, fmt.Errorf("%w: an object's checksum does not match", ErrCorrupt)
	}
	r := packedReader{s: string(data[:len(data)-sum]), ok: true}
	if v := r.byte(); v != binaryVersion {
		return nil, fmt.Errorf("%w: an object in format %d", ErrCorrupt, v)
	}
	o := &Object{}
	apiVersion, kind := r.text(), r.text()
	var at uint64
	for i := range o.ends {
		if at += r.uvarint(); at > 1<<16-1 {
			r.fail()
		}
		o.ends[i] = uint16(at)
	}
	at += min(r.uvarint(), uint64(len(r.s)))
	dict := r.take(4)
	if !r.ok || at > uint64(len(r.s)) {
		return nil, fmt.Errorf("%w: an object breaks off", ErrCorrupt)
	}
	o.packed, o.bodyAt = r.s, uint32(at)
	o.dict = binary.LittleEndian.Uint32([]byte(dict))
	if h, ok := readHead(o.packed[o.ends[3]:o.bodyAt]); !ok || h.rawLen == 0 || h.rawLen > MaxRawLen || !validLabels(h.labels) {
		return nil, fmt.Errorf("%w: an object's metadata breaks off", ErrCorrupt)
	}
	if _, ok := c.dicts.content(o.dict); !ok && o.dict != 0 {
		return nil, fmt.Errorf("%w: %d", ErrNoDictionary, o.dict)
	}
	o.packed = string([]byte(o.packed))
	o.kind = c.typeOf(apiVersion, kind)
	c.adopt(o.dict)
	return o, nil
}

func validLabels(packed string) bool {
	r := packedReader{s: packed, ok: true}
	for len(r.s) > 0 {
		r.text()
		r.text()
	}
	return r.ok
}
