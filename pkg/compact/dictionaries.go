package compact

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// MaxRawLen is the maximum size of an object in bytes of JSON, far beyond the limit
// of an API server.
const MaxRawLen = 64 << 20

// ErrDictionary reports that a new dictionary could not be built or saved.
var ErrDictionary = errors.New("compact: new dictionary")

// Errors of bodies that cannot be inflated.
var (
	// ErrNoDictionary reports a body whose dictionary was neither built nor loaded.
	ErrNoDictionary = errors.New("compact: unknown dictionary")
	// ErrCorrupt reports damaged data.
	ErrCorrupt = errors.New("compact: corrupt data")
)

// Body is a compressed object. Data is shared with the object and must not be
// modified.
type Body struct {
	Dict   uint32 // dictionary ID; IDs below 32768 are compression without a dictionary
	RawLen int    // bytes of JSON
	Data   []byte
}

// Dictionaries holds the compression dictionaries of one store by ID, and
// compresses and inflates with them. An ID is derived from the content, so it is
// the same after a restart. A dictionary contains parts of objects and needs the
// same protection as they do.
//
// Dictionaries are never removed from a running process, only retired, because any
// object or record may name one. Dictionaries is safe for concurrent use.
type Dictionaries struct {
	save    func(id uint32, content []byte) error
	types   typeTable
	encoder *zstd.Encoder // of dense bodies, as is the decoder
	decoder *zstd.Decoder
	buffers sync.Pool                              // *[]byte, for packing and for getters that inflate
	byID    atomic.Pointer[map[uint32]*dictionary] // replaced, never modified
	retired atomic.Pointer[map[uint32]struct{}]    // replaced, never modified; nil: none

	mu         sync.Mutex         // guards byResource and the replacement of byID; not held during save
	byResource map[string]dictRef // the latest of each resource
}

// dictRef is a dictionary and its generation within its resource: 1 is built from
// the first objects, later ones are trained.
type dictRef struct {
	id         uint32
	generation int
}

// NewDictionaries returns an empty set. Add calls save with every new dictionary
// before an object is encoded with it, from the goroutine that encodes. When save
// returns, the content must be durable, at the latest together with the first
// reference to it. save must not modify content. nil saves nothing.
func NewDictionaries(save func(id uint32, content []byte) error) *Dictionaries {
	d := &Dictionaries{save: save, byResource: map[string]dictRef{}}
	d.encoder, d.decoder = newZstd()
	d.byID.Store(&map[uint32]*dictionary{})
	d.types.dicts, d.types.byID = d, map[typeID]*typeMeta{}
	d.buffers.New = func() any { return new([]byte) }
	return d
}

// Add registers content and returns its ID, which is never 0. It saves content
// first unless it is known. The set owns content afterwards. It fails for content that is
// too short for a dictionary, and with the error of save.
func (d *Dictionaries) Add(content []byte) (uint32, error) {
	if newDictionary(content) == nil {
		return 0, fmt.Errorf("compact: a dictionary of %d bytes is too short", len(content))
	}
	for salt := byte(0); ; salt++ {
		id := dictionaryID(content, salt)
		if known := d.dictionary(id); known != nil && (!known.same(content) || d.Retired(id)) {
			continue // an ID collision or a retired dictionary: the next salt gives another ID
		} else if known != nil {
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

// Load registers a saved dictionary. The set owns content afterwards. An error wraps
// ErrCorrupt: the content is no dictionary, or not the one that has the ID.
func (d *Dictionaries) Load(id uint32, content []byte) error {
	if id <= dense || len(content) == 0 {
		return fmt.Errorf("%w: dictionary %d of %d bytes", ErrCorrupt, id, len(content))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := *d.byID.Load()
	if before := known[id]; before != nil {
		if !before.same(content) {
			return fmt.Errorf("%w: dictionary %d was loaded with other content", ErrCorrupt, id)
		}
		return nil
	}
	added := newDictionary(content)
	if added == nil {
		return fmt.Errorf("%w: dictionary %d of %d bytes", ErrCorrupt, id, len(content))
	}
	next := maps.Clone(known)
	next[id] = added
	d.byID.Store(&next)
	resource, generation := readOrigin(content)
	if generation == 0 {
		return nil
	}
	keepNewest(d.byResource, resource, dictRef{id, generation})
	return nil
}

func (d *Dictionaries) addFor(resource string, generation int, content []byte) (dictRef, error) {
	id, err := d.Add(append(appendOrigin(nil, resource, generation), content...))
	return dictRef{id, generation}, err
}

// newest returns the latest dictionary of a resource, the zero dictRef if there is
// none.
func (d *Dictionaries) newest(resource string) dictRef {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byResource[resource]
}

// A dictionary starts with a line that names its resource and generation, so that
// the next process needs only its content. The compression uses the line as
// content.
const originFormat = "watcherd dictionary %d of %q\n"

func appendOrigin(dst []byte, resource string, generation int) []byte {
	return fmt.Appendf(dst, originFormat, generation, resource)
}

// readOrigin reads the line of appendOrigin. Other content has no resource and
// generation 0.
func readOrigin(content []byte) (resource string, generation int) {
	line, _, _ := bytes.Cut(content[:min(len(content), 1024)], []byte("\n"))
	if n, err := fmt.Sscanf(string(line)+"\n", originFormat, &generation, &resource); n != 2 || err != nil || generation < 1 {
		return "", 0
	}
	return resource, generation
}

// dictionaryID derives an ID from content. Small IDs are reserved for compression
// without a dictionary.
func dictionaryID(content []byte, salt byte) uint32 {
	const lowest, count = 32768, 1<<31 - 32768
	sum := sha256.Sum256(append(slices.Clip(content), salt))
	return lowest + uint32(binary.BigEndian.Uint64(sum[:])%count)
}

// dictionary returns the dictionary of an ID, nil if there is none.
func (d *Dictionaries) dictionary(id uint32) *dictionary { return (*d.byID.Load())[id] }

// Retire retires the dictionaries that match reports, by the name of their resource
// (see NewCodecFor) and ID, and returns the IDs of all retired ones. A retired
// dictionary inflates, but no longer compresses.
//
// A dictionary is retired because it contains data that must be deleted. Its owner
// can delete it when nothing refers to it.
func (d *Dictionaries) Retire(match func(resource string, id uint32) bool) []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := map[uint32]struct{}{}
	if retired := d.retired.Load(); retired != nil {
		maps.Copy(next, *retired)
	}
	var ids []uint32
	newest := map[string]dictRef{}
	for id, dict := range *d.byID.Load() {
		resource, generation := readOrigin(dict.content)
		if _, known := next[id]; known || match(resource, id) {
			next[id] = struct{}{}
			ids = append(ids, id)
		} else if generation > 0 {
			keepNewest(newest, resource, dictRef{id, generation})
		}
	}
	if len(ids) > 0 {
		d.retired.Store(&next)
		d.byResource = newest
	}
	return ids
}

// Retired reports whether the dictionary of an ID is retired.
func (d *Dictionaries) Retired(id uint32) bool {
	retired := d.retired.Load()
	if retired == nil {
		return false
	}
	_, ok := (*retired)[id]
	return ok
}

// Refresh returns the object, encoded again if its dictionary is retired. Its errors are those
// of Dictionaries.Inflate and Encode. It is for one goroutine at a time, with Encode.
func (c *Codec) Refresh(o *Object) (*Object, error) {
	if !c.dicts.Retired(o.dict) {
		return o, nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	fresh, err := c.Encode(raw, nil, o.position)
	if err == nil {
		fresh.RecordedAs(o.Sequence())
	}
	return fresh, err
}

func keepNewest(byResource map[string]dictRef, resource string, d dictRef) {
	if known := byResource[resource]; d.generation > known.generation || d.generation == known.generation && d.id > known.id {
		byResource[resource] = d
	}
}

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

func (d *dictionary) same(content []byte) bool { return bytes.Equal(d.content, content) }
