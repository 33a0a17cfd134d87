package compact

import (
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// window is how far back an encoder looks; it must exceed the largest dictionary. Larger objects are compressed in
	// blocks of this size.
	window = 128 << 10

	// maxIdleEncoders bounds the memory of encoders nobody uses, at about 0.8 MB each. More resources than this that
	// change by turns cost some 0.2 ms more each turn.
	maxIdleEncoders = 16

	// maxIdleBuffer bounds the buffers that are kept for reuse: one huge object must not hold its size for good.
	maxIdleBuffer = 256 << 10
)

// encoder is a zstd encoder set up for one dictionary, and the buffer its objects are packed in.
type encoder struct {
	dict uint32
	zstd *zstd.Encoder
	buf  []byte
}

// encoderPool keeps encoders between uses. Most of what one holds are tables made from its dictionary, which take longer
// to make than dozens of objects to encode, so the pool keeps those of the dictionaries used last.
type encoderPool struct {
	mu   sync.Mutex
	idle []*encoder // guarded by mu; last used last
}

// get returns an encoder for a dictionary (0: none). The caller gives it back with put.
func (p *encoderPool) get(dict uint32, content []byte) (*encoder, error) {
	if e := p.take(dict); e != nil {
		return e, nil
	}
	options := []zstd.EOption{
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false),
	}
	if dict != 0 {
		options = append(options, zstd.WithEncoderDictRaw(dict, content))
	}
	z, err := zstd.NewWriter(nil, options...)
	if err != nil {
		return nil, fmt.Errorf("compact: zstd encoder: %w", err)
	}
	return &encoder{dict: dict, zstd: z}, nil
}

func (p *encoderPool) take(dict uint32) *encoder {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range slices.Backward(p.idle) {
		if e.dict == dict {
			p.idle = slices.Delete(p.idle, i, i+1)
			return e
		}
	}
	return nil
}

func (p *encoderPool) put(e *encoder) {
	if cap(e.buf) > maxIdleBuffer {
		e.buf = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdleEncoders {
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.idle = append(p.idle, e)
}
