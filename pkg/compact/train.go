package compact

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
)

// What a trainer goes by. Resources with few objects do without a dictionary: it would weigh more than it saves.
const (
	firstObjects = 8        // encoded without a dictionary before the first one is made, of them, ...
	firstBytes   = 32 << 10 // ... or so many bytes of JSON, which also is the size of that dictionary
	perObject    = firstBytes / 2

	laterObjects = 512     // encoded before a better dictionary is trained, of these, ...
	laterBytes   = 1 << 20 // ... or objects of so many bytes of memory, which the trainer keeps alive till then

	watchWindow = 1024 // objects over which the compression is watched; if it has become ...
	drift       = 1.4  // ... so many times worse, another dictionary is trained

	maxGenerations = 7 // of the dictionaries of a resource, in the life of a store, as each is kept for good
)

// trainer decides which dictionary a codec encodes with. It goes through these states:
//
//	first   the first objects are collected as JSON and become the first dictionary as they are: a list of thousands
//	        of objects should not wait for anything better
//	collect the next ones are remembered, compressed, until there are enough to train a dictionary from
//	steady  that dictionary is used; if the objects change so much that it serves badly, back to collect
//
// Whenever it would make a dictionary it takes up a newer one of its resource instead, if there is one.
type trainer struct {
	dicts    *Dictionaries
	resource string
	current  dictRef // in use; none yet if its id is 0

	samples []byte // first: JSON
	sampled int    // first: objects in samples

	collecting     bool
	collected      []*Object // collect
	collectedBytes int       // collect

	seen, rawLen, bodyLen int     // steady: the current window
	ratio                 float64 // steady: body bytes per byte of JSON in the best window so far; 0 = no window yet
}

// dictionary returns the dictionary that raw should be encoded with, making it if it is time to; 0 for none.
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

// first collects raw and makes the first dictionary once there is enough.
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

// next makes a dictionary of the objects collected.
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

// use takes up a dictionary. The first of a resource is soon to be followed by a trained one.
func (t *trainer) use(d dictRef) {
	*t = trainer{dicts: t.dicts, resource: t.resource, current: d, collecting: d.generation == 1}
}

// observe takes note of an object that was encoded.
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
	trainedBytes = 63 << 10 // largest trained dictionary; S2 uses 64 KB, of which its first line takes some
	wholeBytes   = 16 << 10 // of it, for whole objects
	shortest     = 6        // bytes of the shortest piece worth a place
)

// piece is a stretch of JSON up to a comma: a key and its value, more or less.
type piece struct {
	text   []byte
	count  int // objects it occurs in
	object int // the last of them
}

// train makes a dictionary of objects: the pieces that more than one of them has, those first that cover most bytes, then
// some objects as they are, for the long matches. It returns nothing if the objects cannot be inflated.
//
// What only one object has (its uid, its times) takes no room, so a dictionary of 64 KB stands for hundreds of objects.
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

// countPieces returns the different pieces of the objects, in the order they are found, but for those that the first
// kept objects have.
func countPieces(raws [][]byte, kept int) []*piece {
	known := map[uint64]*piece{}
	var pieces []*piece
	seed := maphash.MakeSeed()
	for i, raw := range raws {
		for text := range eachPiece(raw) {
			h := maphash.Bytes(seed, text) // a collision costs a piece, no more
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

// joinBest joins the pieces of several objects that cover most bytes, up to size, in the order they were found in:
// neighbours in the objects remain neighbours.
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
