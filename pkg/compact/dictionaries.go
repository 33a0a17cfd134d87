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

	"github.com/klauspost/compress/zstd"
)

// MaxRawLen is the largest object, in bytes of JSON, that this package takes: far beyond what an API server stores.
const MaxRawLen = 64 << 20

// ErrDictionary says that an object was not encoded because a new dictionary could not be made or saved.
var ErrDictionary = errors.New("compact: no new dictionary")

// Errors of bodies that cannot be inflated.
var (
	// ErrNoDictionary says that a body names a dictionary that was neither made nor loaded.
	ErrNoDictionary = errors.New("compact: unknown dictionary")
	// ErrCorrupt says that bytes are not what this package wrote.
	ErrCorrupt = errors.New("compact: corrupt data")
)

// Body is a compressed object. Data is shared with the object and must not be changed.
type Body struct {
	Dict   uint32 // id of the dictionary needed to inflate it; below 32768 it names a way that needs none
	RawLen int    // bytes of JSON
	Data   []byte
}

// Dictionaries holds the compression dictionaries of one store, by id, and compresses and inflates with them. An
// id is made from the content, so it means the same after any restart. A dictionary consists of parts of objects as they
// were encoded, so it deserves the care that the objects do. Nothing is removed in the life of a process, only taken out of
// use (see Retire): an object or a record may name any id. It is safe for concurrent use.
type Dictionaries struct {
	save    func(id uint32, content []byte) error
	types   typeTable
	encoder *zstd.Encoder // of dense bodies, as is the decoder
	decoder *zstd.Decoder
	buffers sync.Pool                              // *[]byte, for packing and for getters that inflate
	byID    atomic.Pointer[map[uint32]*dictionary] // replaced, never changed
	retired atomic.Pointer[map[uint32]struct{}]    // replaced, never changed; nil: none

	mu         sync.Mutex         // guards the rest and the replacement of byID; never held while saving
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
	d := &Dictionaries{save: save, byResource: map[string]dictRef{}}
	d.encoder, d.decoder = newZstd()
	d.byID.Store(&map[uint32]*dictionary{})
	d.types.dicts, d.types.byID = d, map[typeID]*typeMeta{}
	d.buffers.New = func() any { return new([]byte) }
	return d
}

// Add registers content under an id of its own, saving it first unless it was known, and returns the id, which is never
// 0. content belongs to the set from then on.
func (d *Dictionaries) Add(content []byte) (uint32, error) {
	if newDictionary(content) == nil {
		return 0, fmt.Errorf("compact: a dictionary of %d bytes", len(content))
	}
	for salt := byte(0); ; salt++ {
		id := dictionaryID(content, salt)
		if known := d.dictionary(id); known != nil && (!known.same(content) || d.Retired(id)) {
			continue // two contents with one id, or one that is retired: the next salt gives another
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

// Load registers a dictionary that was saved earlier. content belongs to the set from then on.
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

// addFor adds a dictionary of a resource.
func (d *Dictionaries) addFor(resource string, generation int, content []byte) (dictRef, error) {
	id, err := d.Add(append(appendOrigin(nil, resource, generation), content...))
	return dictRef{id, generation}, err
}

// newest returns the dictionary of a resource that was trained last, none if there is none.
func (d *Dictionaries) newest(resource string) dictRef {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// dictionaryID makes an id from content. Small numbers are left for ways to compress that need no dictionary.
func dictionaryID(content []byte, salt byte) uint32 {
	const lowest, count = 32768, 1<<31 - 32768
	sum := sha256.Sum256(append(slices.Clip(content), salt))
	return lowest + uint32(binary.BigEndian.Uint64(sum[:])%count)
}

// dictionary returns the one of an id, nil if there is none.
func (d *Dictionaries) dictionary(id uint32) *dictionary { return (*d.byID.Load())[id] }

// Retire takes dictionaries out of use and returns their ids: nothing is encoded with them any more, while what names
// them can still be inflated. match is asked about each by the name of its resource (see NewCodecFor) and its id.
//
// A dictionary is made of parts of objects. It is retired when it holds what must not be kept any more; once nothing
// refers to it, its owner can delete it.
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

// Retired reports whether the dictionary of an id is out of use.
func (d *Dictionaries) Retired(id uint32) bool {
	retired := d.retired.Load()
	if retired == nil {
		return false
	}
	_, ok := (*retired)[id]
	return ok
}

// Refresh returns the object, encoded again if its dictionary is retired. One goroutine at a time may use the codec.
func (c *Codec) Refresh(o *Object) (*Object, error) {
	if !c.dicts.Retired(o.dict) {
		return o, nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, err
	}
	return c.Encode(raw, nil, o.position)
}

func keepNewest(byResource map[string]dictRef, resource string, d dictRef) {
	if known := byResource[resource]; d.generation > known.generation || d.generation == known.generation && d.id > known.id {
		byResource[resource] = d
	}
}
