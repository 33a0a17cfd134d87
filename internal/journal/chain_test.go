package journal

import (
	"errors"
	"slices"
	"testing"

	"github.com/watcherd/watcherd/internal/store"
)

// TestChain: an entry is taken only if it is whole, as its writer made it, of the term of the entry before or begins a later
// one, and behind the entry that its writer has seen.
func TestChain(t *testing.T) {
	keys, err := NewKeys([]byte("a key of 16 bytes or more"))
	if err != nil {
		t.Fatal(err)
	}
	type message struct {
		seq  uint64
		f    frame
		part []byte
	}
	prev, batch := store.Position{First: 4, Last: 5, Term: 3, Sum: 7}, []byte("a batch of three parts")
	for name, tc := range map[string]struct {
		write  func(*frame) // what the writer knows
		damage func(*frame) // after it has made the checksum
		send   func([]message) []message
		lost   bool // it is refused
	}{
		"the next":                  {},
		"the next term":             {write: func(f *frame) { f.Kind, f.Term = Term, 4 }},
		"behind another":            {write: func(f *frame) { f.Prev++ }, lost: true},
		"behind nothing":            {write: func(f *frame) { f.Prev = 0 }, lost: true},
		"a term that did not begin": {write: func(f *frame) { f.Term = 4 }, lost: true},
		"a term before":             {write: func(f *frame) { f.Term = 2 }, lost: true},
		"a term that begins again":  {write: func(f *frame) { f.Kind = Term }, lost: true},
		"another kind":              {damage: func(f *frame) { f.Kind = Erase }, lost: true},
		"another writer's":          {damage: func(f *frame) { f.Writer = "another" }, lost: true},
		"another sum":               {damage: func(f *frame) { f.Sum++ }, lost: true},
		"cut, and then whole": {send: func(all []message) []message {
			again := slices.Clone(all)
			for i := range again {
				again[i].seq += 2
			}
			return append(all[:2], again...)
		}},
		"without its first part": {send: func(all []message) []message { return all[1:] }, lost: true},
		"without a part":         {send: func(all []message) []message { return []message{all[0], all[2]} }, lost: true},
		"with another between":   {send: func(all []message) []message { all[2].seq++; return all }, lost: true},
	} {
		f := frame{Kind: Batch, Term: prev.Term, Writer: "w", Prev: sum(prev.Sum)}
		if tc.write != nil {
			tc.write(&f)
		}
		f.Sum = sum(after(uint64(f.Prev), f.Term, f.Kind, f.Writer, batch))
		if tc.damage != nil {
			tc.damage(&f)
		}
		headers, bodies, err := keys.parts(f, batch, maxHeader+10)
		if err != nil || len(headers) != 3 {
			t.Fatalf("%d parts, %v", len(headers), err)
		}
		var all []message
		for i := range headers {
			m := message{seq: prev.Last + 1 + uint64(i)}
			if m.f, m.part, err = keys.parse(string(headers[i]), bodies[i]); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		if tc.send != nil {
			all = tc.send(all)
		}
		var a assembly
		var e *Entry
		for _, m := range all {
			if e, err = a.add(m.seq, m.f, m.part, prev); err != nil {
				break
			}
		}
		switch {
		case tc.lost:
			if !errors.Is(err, ErrDiverged) {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
		case err != nil || e == nil || string(e.Batch) != string(batch) || e.Last != all[len(all)-1].seq || e.First != e.Last-2:
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}
