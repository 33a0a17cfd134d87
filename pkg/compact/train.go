package compact

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
)

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
