package compact

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// MaxRawLen is the largest object, in bytes of JSON, that this package takes: far beyond what an API server stores.
const MaxRawLen = 64 << 20

// Errors of bodies that cannot be inflated.
var (
	// ErrNoDictionary says that a body names a dictionary that was neither made nor loaded.
	ErrNoDictionary = errors.New("compact: unknown dictionary")
	// ErrCorrupt says that bytes are not what this package wrote.
	ErrCorrupt = errors.New("compact: corrupt data")
)

// Body is a compressed object: a zstd frame of its JSON. Data is shared with the object and must not be changed.
type Body struct {
	Dict   uint32 // id of the dictionary needed to inflate it, 0 for none
	RawLen int    // bytes of JSON
	Data   []byte
}

// Dictionaries holds the compression dictionaries of one store, by id, with the encoders and decoders that use them. An
// id is made from the content, so it means the same after any restart. A dictionary consists of parts of objects as they
// were encoded, so it deserves the care that the objects do. Nothing is ever removed: an object or a record that names an
// id may live as long as the store. It is safe for concurrent use.
type Dictionaries struct {
	save     func(id uint32, content []byte) error
	types    typeTable
	encoders encoderPool
	decoder  *zstd.Decoder // knows every dictionary in byID
	inflated sync.Pool     // *[]byte, for getters that inflate

	mu         sync.RWMutex // guards the rest and the decoder's options; never held while saving
	byID       map[uint32][]byte
	byResource map[string]dictRef // the newest of each resource
}

// dictRef is a dictionary and its place among those of its resource: 1 is made of the first objects, the later ones are
// trained.
type dictRef struct {
	id         uint32
	generation int
}

// NewDictionaries makes an empty set. save is called by Add with every new dictionary before anything is encoded with
// it, from the goroutine that encodes, and must have stored it durably, or at least no later than whatever will refer to
// it, when it returns; content must not be changed. nil saves nothing.
func NewDictionaries(save func(id uint32, content []byte) error) *Dictionaries {
	// The options are constants, valid by construction; no error of theirs depends on input.
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxRawLen), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(fmt.Sprintf("compact: zstd decoder: %v", err))
	}
	d := &Dictionaries{save: save, decoder: decoder, byID: map[uint32][]byte{}, byResource: map[string]dictRef{}}
	d.types.dicts, d.types.byID = d, map[typeID]*typeMeta{}
	d.inflated.New = func() any { return new([]byte) }
	return d
}

// Add registers content under an id of its own, saving it first unless it was known, and returns the id, which is never
// 0. content belongs to the set from then on.
func (d *Dictionaries) Add(content []byte) (uint32, error) {
	if len(content) == 0 {
		return 0, errors.New("compact: an empty dictionary")
	}
	for salt := byte(0); ; salt++ {
		id := dictionaryID(content, salt)
		known, ok := d.content(id)
		if ok && !bytes.Equal(known, content) {
			continue // two contents, one id: the next salt gives another
		}
		if ok {
			return id, nil
		}
		if d.save != nil {
			if err := d.save(id, content); err != nil {
				return 0, fmt.Errorf("compact: save dictionary %d: %w", id, err)
			}
		}
		if err := d.Load(id, content); err != nil {
			return 0, err
		}
		return id, nil
	}
}

// Load registers a dictionary that was saved earlier. content belongs to the set from then on.
func (d *Dictionaries) Load(id uint32, content []byte) error {
	if id == 0 || len(content) == 0 {
		return fmt.Errorf("%w: dictionary %d of %d bytes", ErrCorrupt, id, len(content))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byID[id]; ok {
		if !bytes.Equal(known, content) {
			return fmt.Errorf("%w: dictionary %d was loaded with other content", ErrCorrupt, id)
		}
		return nil
	}
	if err := d.decoder.ResetWithOptions(nil, zstd.WithDecoderDictRaw(id, content)); err != nil {
		return fmt.Errorf("compact: dictionary %d: %w", id, err)
	}
	d.byID[id] = content
	resource, generation := readOrigin(content)
	if generation == 0 {
		return nil
	}
	if newest := d.byResource[resource]; generation > newest.generation || generation == newest.generation && id > newest.id {
		d.byResource[resource] = dictRef{id, generation}
	}
	return nil
}

// addFor adds a dictionary of a resource.
func (d *Dictionaries) addFor(resource string, generation int, content []byte) (dictRef, error) {
	id, err := d.Add(append(appendOrigin(nil, resource, generation), content...))
	return dictRef{id, generation}, err
}

// newest returns the dictionary of a resource that was trained last, none if there is none.
func (d *Dictionaries) newest(resource string) dictRef {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byResource[resource]
}

// A dictionary starts with a line that says what it is for, so that the next process needs nothing but its content. To
// the compression it is content like any other.
const originFormat = "watcherd dictionary %d of %q\n"

func appendOrigin(dst []byte, resource string, generation int) []byte {
	return fmt.Appendf(dst, originFormat, generation, resource)
}

// readOrigin reads what appendOrigin wrote. Other content is of no resource, generation 0.
func readOrigin(content []byte) (resource string, generation int) {
	line, _, _ := bytes.Cut(content[:min(len(content), 1024)], []byte("\n"))
	if n, err := fmt.Sscanf(string(line)+"\n", originFormat, &generation, &resource); n != 2 || err != nil || generation < 1 {
		return "", 0
	}
	return resource, generation
}

// dictionaryID makes an id from content, in the range that the zstd format leaves to private use.
func dictionaryID(content []byte, salt byte) uint32 {
	const lowest, count = 32768, 1<<31 - 32768
	sum := sha256.Sum256(append(slices.Clip(content), salt))
	return lowest + uint32(binary.BigEndian.Uint64(sum[:])%count)
}

func (d *Dictionaries) content(id uint32) ([]byte, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	content, ok := d.byID[id]
	return content, ok
}

// Inflate appends the JSON of a body to dst. It allocates only if dst lacks room. An error wraps ErrNoDictionary or
// ErrCorrupt and returns dst as it was.
func (d *Dictionaries) Inflate(dst []byte, b Body) ([]byte, error) {
	if b.RawLen <= 0 || b.RawLen > MaxRawLen {
		return dst, fmt.Errorf("%w: a body of %d bytes of JSON", ErrCorrupt, b.RawLen)
	}
	if b.Dict != 0 {
		if _, ok := d.content(b.Dict); !ok {
			return dst, fmt.Errorf("%w: %d", ErrNoDictionary, b.Dict)
		}
	}
	out := grow(dst, b.RawLen)
	out, err := d.decoder.DecodeAll(b.Data, out)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if len(out)-len(dst) != b.RawLen {
		return dst, fmt.Errorf("%w: %d bytes of JSON instead of %d", ErrCorrupt, len(out)-len(dst), b.RawLen)
	}
	return out, nil
}

// grow makes room for n bytes and the few that the decoder may write beyond them.
func grow(dst []byte, n int) []byte {
	const beyond = 32
	if cap(dst)-len(dst) >= n+beyond {
		return dst
	}
	return append(make([]byte, 0, len(dst)+n+beyond), dst...)
}

// encoder returns an encoder for a dictionary, to be given back to d.encoders.
func (d *Dictionaries) encoder(dict uint32) (*encoder, error) {
	content, ok := d.content(dict)
	if dict != 0 && !ok {
		return nil, fmt.Errorf("%w: %d", ErrNoDictionary, dict)
	}
	return d.encoders.get(dict, content)
}
