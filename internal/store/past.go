package store

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// Past is where a directory is in its journal, and in which terms that was written.
type Past struct {
	Position
	terms []layout.Term // oldest first; none if that is not known
}

// keptTerms is how many terms a directory remembers at least.
const keptTerms = 1000

// ErrOtherPast means that a copy is of a journal which lacks what the directory has that it is to replace.
var ErrOtherPast = errors.New("the copy lacks what this store has")

// within reports whether a journal that is at a position and of these terms has all that a directory has: its last term is among them, and
// the next one begins behind where the directory is. Where the terms do not show it, only a journal that has another before it in its
// stream speaks against it: its terms have numbers from the length of that on.
func (p Past) within(at Position, terms []layout.Term) bool {
	unknown := p.Last == 0 || p.Last >= at.Term
	if len(p.terms) == 0 || len(terms) == 0 {
		return unknown
	}
	last := p.terms[len(p.terms)-1]
	i := slices.Index(terms, last)
	if i < 0 {
		return unknown && last.After < terms[0].After // they do not reach back
	}
	return i+1 == len(terms) || p.Last <= terms[i+1].After
}

// Past is that of the directory.
func (r *Replica) Past() (Past, error) {
	p := Past{Position: r.position}
	lower, upper := layout.PrefixRange(layout.PrefixTerm)
	it, err := r.s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return p, err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var t layout.Term
		t, err = layout.ParseTerm(it.Key(), it.Value())
		p.terms = append(p.terms, t)
	}
	if err = cmp.Or(err, salvage.ReadError(it.Close())); errors.Is(err, ErrUnreadable) || errors.Is(err, layout.ErrMalformed) {
		r.s.opts.Logger.Warn("the terms of the journal cannot be read", "error", salvage.FirstLine(err))
		p.terms, err = nil, nil
	}
	return p, err
}

// Term returns the batch of the entry with which the directory begins a term of its journal.
func (r *Replica) Term() ([]byte, error) {
	past, err := r.Past()
	if err != nil {
		return nil, err
	}
	b := r.s.db.NewBatch()
	if n := len(past.terms); n >= 2*keptTerms {
		err = b.DeleteRange([]byte{layout.PrefixTerm}, layout.TermKey(past.terms[n-keptTerms].After), nil)
	}
	next := layout.Term{After: past.Last, ID: rand.Uint64()}
	err = errors.Join(err, b.Set(layout.TermKey(next.After), next.Value(), nil))
	return slices.Clone(b.Repr()), errors.Join(err, b.Close())
}
