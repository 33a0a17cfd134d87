package compact

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
)

// Parameters of a trainer. Resources with few objects have no dictionary: it would take
// more memory than it saves.
const (
	firstObjects = 8        // objects in the first dictionary, ...
	firstBytes   = 32 << 10 // ... or its bytes of JSON, if fewer
	perObject    = firstBytes / 2

	laterObjects = 512     // objects that a dictionary is trained on, ...
	laterBytes   = 1 << 20 // ... or their bytes of memory, which the trainer holds until then

	watchWindow = 1024 // objects over which the compression ratio is measured
	drift       = 1.4  // factor by which the ratio may rise before the next training

	maxGenerations = 7 // dictionaries of a resource in a store: none is deleted
)

// trainer selects the dictionary that a codec encodes with. Its states:
//
//	first   the JSON of the first objects is collected and becomes the first dictionary,
//	        so that a list of thousands of objects soon has one
//	collect the next objects are collected, compressed, to train a dictionary on
//	steady  the trained dictionary is used; back to collect when the ratio has risen
//
// Before it builds a dictionary it checks for a newer one of its resource and uses that.
type trainer struct {
	dicts    *Dictionaries
	resource string
	current  dictRef // in use; none if its ID is 0

	samples []byte // first: JSON
	sampled int    // first: objects in samples

	collecting     bool
	collected      []*Object // collect
	collectedBytes int       // collect

	seen, rawLen, bodyLen int     // steady: the current window
	ratio                 float64 // steady: body bytes per byte of JSON in the best window; 0: no window
}

// dictionary returns the ID of the dictionary to encode raw with, 0 for none. It
// builds the dictionary when it is due.
func (t *trainer) dictionary(raw []byte) (uint32, error) {
	var err error
	if t.current.id != 0 && t.dicts.Retired(t.current.id) {
		t.use(dictRef{})
	}
	switch {
	case t.current.id == 0:
		err = t.first(raw)
	case len(t.collected) >= laterObjects || t.collectedBytes >= laterBytes:
		err = t.next()
	}
	return t.current.id, err
}

// first collects raw and builds the first dictionary once there is enough JSON.
func (t *trainer) first(raw []byte) error {
	if newest := t.dicts.newest(t.resource); newest.id != 0 {
		t.use(newest)
		return nil
	}
	t.samples = append(t.samples, raw[:min(len(raw), perObject, firstBytes-len(t.samples))]...)
	if t.sampled++; t.sampled < firstObjects && len(t.samples) < firstBytes {
		return nil
	}
	return t.add(t.samples)
}

// next trains a dictionary on the collected objects.
func (t *trainer) next() error {
	if newest := t.dicts.newest(t.resource); newest.generation > t.current.generation {
		t.use(newest)
		return nil
	}
	if content := train(t.collected); len(content) > 0 {
		return t.add(content)
	}
	t.use(t.current)
	t.collecting = false
	return nil
}

func (t *trainer) add(content []byte) error {
	added, err := t.dicts.addFor(t.resource, t.current.generation+1, content)
	if err == nil {
		t.use(added)
	}
	return err
}

// use switches to a dictionary. A trained one soon follows the first of a resource.
func (t *trainer) use(d dictRef) {
	*t = trainer{dicts: t.dicts, resource: t.resource, current: d, collecting: d.generation == 1}
}

func (t *trainer) observe(o *Object) {
	if t.collecting {
		t.collected = append(t.collected, o)
		t.collectedBytes += o.Size()
		return
	}
	if t.current.id == 0 || t.current.generation >= maxGenerations {
		return
	}
	t.seen++
	t.rawLen += o.RawLen()
	t.bodyLen += len(o.packed) - int(o.bodyAt)
	if t.seen < watchWindow {
		return
	}
	ratio := float64(t.bodyLen) / float64(t.rawLen)
	t.collecting = t.ratio > 0 && ratio > drift*t.ratio
	if t.ratio == 0 || ratio < t.ratio {
		t.ratio = ratio
	}
	t.seen, t.rawLen, t.bodyLen = 0, 0, 0
}

const (
	trainedBytes = 63 << 10 // largest trained dictionary; S2 uses 64 KB, including the first line
	wholeBytes   = 16 << 10 // of it, for complete objects
	shortest     = 6        // bytes of the shortest piece
)

// piece is a part of the JSON up to a comma, usually a key and its value.
type piece struct {
	text   []byte
	count  int // objects that contain it
	object int // the last of them
}

// train builds a dictionary from objects: the pieces that several of them have,
// those covering most bytes first, then some complete objects for long matches. It
// returns nil if an object cannot be inflated. Pieces of a single object (uid,
// times) take no room, so 64 KB represent hundreds of objects.
//
// klauspost's dict.BuildS2Dict leaves pods twice as large (926 instead of 478
// bytes) and takes 25 times as long.
func train(objects []*Object) []byte {
	raws := make([][]byte, len(objects))
	for i, o := range objects {
		err := o.withJSON(func(raw []byte) error {
			raws[i] = slices.Clone(raw[:min(len(raw), perObject)])
			return nil
		})
		if err != nil {
			return nil
		}
	}
	var whole []byte
	kept := 0
	for kept < len(raws) && len(whole)+len(raws[kept]) <= wholeBytes {
		whole = append(whole, raws[kept]...)
		kept++
	}
	return append(joinBest(countPieces(raws, kept), trainedBytes-len(whole)), whole...)
}

// countPieces returns the distinct pieces of the objects in order of appearance,
// except those of the first kept objects.
func countPieces(raws [][]byte, kept int) []*piece {
	known := map[uint64]*piece{}
	var pieces []*piece
	seed := maphash.MakeSeed()
	for i, raw := range raws {
		for text := range eachPiece(raw) {
			h := maphash.Bytes(seed, text) // a collision loses one piece
			p := known[h]
			if p == nil {
				p = &piece{text: text, object: -1}
				known[h] = p
				if i >= kept {
					pieces = append(pieces, p)
				}
			}
			if p.object != i {
				p.count, p.object = p.count+1, i
			}
		}
	}
	return pieces
}

// eachPiece yields the pieces of raw that are long enough.
func eachPiece(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		start := 0
		for i, c := range raw {
			if c != ',' && i < len(raw)-1 {
				continue
			}
			text := raw[start : i+1]
			start = i + 1
			if len(text) >= shortest && !yield(text) {
				return
			}
		}
	}
}

// joinBest joins the pieces of several objects that cover most bytes, up to size,
// in order of appearance: neighbours in the objects stay neighbours.
func joinBest(pieces []*piece, size int) []byte {
	byCover := slices.Clone(pieces)
	slices.SortStableFunc(byCover, func(a, b *piece) int {
		return cmp.Compare(b.count*len(b.text), a.count*len(a.text))
	})
	chosen := map[*piece]bool{}
	for _, p := range byCover {
		if p.count > 1 && len(p.text) <= size {
			chosen[p] = true
			size -= len(p.text)
		}
	}
	var joined []byte
	for _, p := range pieces {
		if chosen[p] {
			joined = append(joined, p.text...)
		}
	}
	return joined
}
