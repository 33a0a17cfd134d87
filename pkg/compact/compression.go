package compact

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Objects are compressed with S2 and their resource's dictionary. zstd copies its tables
// and builds codes for each object: encoding takes five times as long, decoding ten times,
// for bodies a quarter smaller. zstd is used for large bodies of which the dictionary has
// little, such as long text or base64.
const (
	// denseFrom is the size of an S2 body from which zstd is tried.
	denseFrom = 4 << 10

	// window is zstd's window and bounds the memory of an encoder.
	window = 512 << 10

	// maxIdleBuffer bounds the buffers kept for reuse, so that one huge object does
	// not hold its memory.
	maxIdleBuffer = 256 << 10
)

// Dictionary IDs of bodies without a dictionary.
const (
	noDictionary = 0 // S2 alone
	dense        = 1 // zstd
)

// dictionary is an S2 dictionary. It is immutable and safe for concurrent use.
type dictionary struct {
	content []byte
	s2      *s2.Dict
}

// newDictionary returns nil if the content is too short.
func newDictionary(content []byte) *dictionary {
	d := &dictionary{content: content, s2: s2.MakeDict(content, nil)}
	if d.s2 == nil {
		return nil
	}
	return d
}

// newZstd returns the encoder and decoder of dense bodies.
func newZstd() (*zstd.Encoder, *zstd.Decoder) {
	// The options are constants, so an error cannot depend on input.
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithAllLitEntropyCompression(true), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(fmt.Sprintf("compact: zstd encoder: %v", err))
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxRawLen), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(fmt.Sprintf("compact: zstd decoder: %v", err))
	}
	return e, d
}

// compress appends the body of raw to dst, with the dictionary of id unless it is
// noDictionary. It returns the ID that Inflate needs: id, or dense.
func (d *Dictionaries) compress(dst, raw []byte, id uint32) ([]byte, uint32, error) {
	start := len(dst)
	room := slices.Grow(dst, s2.MaxEncodedLen(len(raw)))
	var body []byte
	if id == noDictionary {
		body = s2.Encode(room[start:cap(room)], raw)
	} else {
		dict := d.dictionary(id)
		if dict == nil {
			return dst, 0, fmt.Errorf("%w: %d", ErrNoDictionary, id)
		}
		body = dict.s2.Encode(room[start:cap(room)], raw)
	}
	dst = room[:start+len(body)]
	if len(body) < denseFrom {
		return dst, id, nil
	}
	smaller := d.encoder.EncodeAll(raw, nil)
	if len(smaller) >= len(body) {
		return dst, id, nil
	}
	return append(dst[:start], smaller...), dense, nil
}

// Inflate appends the JSON of a body to dst. It allocates only if dst lacks
// capacity. An error wraps ErrNoDictionary or ErrCorrupt and returns dst unchanged.
func (d *Dictionaries) Inflate(dst []byte, b Body) ([]byte, error) {
	if b.RawLen <= 0 || b.RawLen > MaxRawLen {
		return dst, fmt.Errorf("%w: a body of %d bytes of JSON", ErrCorrupt, b.RawLen)
	}
	if b.Dict == dense {
		const beyond = 32 // bytes that the decoder may write past the end
		all, err := d.decoder.DecodeAll(b.Data, grow(dst, b.RawLen+beyond))
		if err != nil {
			return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if len(all)-len(dst) != b.RawLen {
			return dst, fmt.Errorf("%w: %d bytes of JSON instead of %d", ErrCorrupt, len(all)-len(dst), b.RawLen)
		}
		return all, nil
	}
	if n, err := s2.DecodedLen(b.Data); err != nil || n != b.RawLen {
		return dst, fmt.Errorf("%w: %d bytes of JSON instead of %d", ErrCorrupt, n, b.RawLen)
	}
	out, end := grow(dst, b.RawLen), len(dst)+b.RawLen
	room := out[len(dst):end:end]
	var err error
	if b.Dict == noDictionary {
		_, err = s2.Decode(room, b.Data)
	} else if dict := d.dictionary(b.Dict); dict != nil {
		_, err = dict.s2.Decode(room, b.Data)
	} else {
		return dst, fmt.Errorf("%w: %d", ErrNoDictionary, b.Dict)
	}
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return out[:end], nil
}

// grow adds capacity for exactly n bytes: the result is not appended to.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return append(make([]byte, 0, len(dst)+n), dst...)
}

// same reports whether the dictionary has this content.
func (d *dictionary) same(content []byte) bool { return bytes.Equal(d.content, content) }
