package compact

import (
	"cmp"
	"hash/maphash"
	"slices"
)

const (
	trainedBytes = 64 << 10 // largest trained dictionary; half the encoders' window
	wholeObjects = 2        // objects that a trained dictionary holds whole, at its end
	shortest     = 6        // bytes of the shortest piece worth a place
)

// piece is a stretch of JSON up to a comma: a key and its value, more or less.
type piece struct {
	text   []byte
	count  int // objects it occurs in
	object int // the last of them
}

// train makes a dictionary of objects: the pieces that more than one of them has, the ones that cover most bytes as far
// as they fit, then whole objects, so that long matches start with those. It returns nothing if the objects cannot be
// inflated or have nothing in common.
//
// What only one object has (its uid, its times) takes no room, so a dictionary of 64 KB stands for hundreds of objects.
func train(objects []*Object) []byte {
	var whole []byte
	known := map[uint64]*piece{}
	var pieces []*piece
	seed := maphash.MakeSeed()
	for i, o := range objects {
		raw, err := o.AppendJSON(nil)
		if err != nil {
			return nil
		}
		keep := i < wholeObjects
		if keep {
			whole = append(whole, raw[:min(len(raw), trainedBytes/4)]...)
		}
		for text := range eachPiece(raw) {
			h := maphash.Bytes(seed, text)
			p := known[h]
			if p == nil {
				p = &piece{text: text, object: -1}
				known[h] = p
				if !keep {
					pieces = append(pieces, p)
				}
			}
			if p.object != i {
				p.count, p.object = p.count+1, i
			}
		}
	}
	return append(joinBest(pieces, trainedBytes-len(whole)), whole...)
}

// eachPiece yields the pieces of raw that are long enough.
func eachPiece(raw []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		start := 0
		for i, c := range raw {
			if c != ',' && i < len(raw)-1 {
				continue
			}
			text := raw[start : i+1]
			start = i + 1
			if len(text) >= shortest && len(text) <= perObject && !yield(text) {
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
