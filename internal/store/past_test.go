package store

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestPast: which journals have all that a directory has, by their terms.
func TestPast(t *testing.T) {
	t.Parallel()
	a, b, c := layout.Term{After: 0, ID: 1}, layout.Term{After: 10, ID: 2}, layout.Term{After: 20, ID: 3}
	other := layout.Term{After: 10, ID: 4}
	for name, tc := range map[string]struct {
		last       uint64
		was, terms []layout.Term
		term       uint64
		want       bool
	}{
		"the same":                      {25, []layout.Term{a, b, c}, []layout.Term{a, b, c}, 3, true},
		"a later one":                   {20, []layout.Term{a, b}, []layout.Term{a, b, c}, 3, true},
		"a later one that lacks an end": {21, []layout.Term{a, b}, []layout.Term{a, b, c}, 3, false},
		"one of many terms":             {5, []layout.Term{a}, []layout.Term{a, b, c}, 6, true},
		"another term":                  {15, []layout.Term{a, other}, []layout.Term{a, b, c}, 3, false},
		"another beginning":             {5, []layout.Term{{ID: 9}}, []layout.Term{a, b, c}, 3, false},
		"one that begins later":         {15, []layout.Term{a, b}, []layout.Term{{ID: 9}}, 16, false},
		"one that was trimmed":          {5, []layout.Term{a}, []layout.Term{b, c}, 3, true},
		"one that began later":          {5, []layout.Term{a}, []layout.Term{b, c}, 6, false},
		"nothing is known":              {5, nil, []layout.Term{a, b}, 2, true},
		"nothing is known of the other": {5, []layout.Term{a}, nil, 2, true},
		"it began later":                {5, nil, nil, 6, false},
		"an empty directory":            {0, nil, nil, 6, true},
	} {
		if got := (Past{Position{Last: tc.last}, tc.was}).within(Position{Term: tc.term}, tc.terms); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestTerms: a directory remembers the last terms of its journal, and knows of none once it has left that. A copy of another past does
// not replace it.
func TestTerms(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	r, err := OpenReplica("store", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 2*keptTerms+10; i++ {
		batch, err := r.Term()
		if err == nil {
			err = r.Apply(t.Context(), Position{First: i, Last: i, Term: i}, batch)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	past, err := r.Past()
	if n := len(past.terms); err != nil || n != keptTerms+10 || past.terms[n-1].After != 2*keptTerms+9 || past.Last != 2*keptTerms+10 {
		t.Fatalf("%d terms up to %d, %v", n, past.Last, err)
	}
	if !slices.IsSortedFunc(past.terms, func(a, b layout.Term) int { return int(a.After) - int(b.After) }) {
		t.Error("they are not in order")
	}
	var dump bytes.Buffer
	at, err := r.s.Dump(t.Context(), &dump)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	other := past
	other.terms = []layout.Term{{After: past.Last - 1, ID: 1}}
	if err := Seed(t.Context(), "store", Options{FS: fs}, bytes.NewReader(dump.Bytes()), at, other); !errors.Is(err, ErrOtherPast) {
		t.Errorf("a copy of another past: %v", err)
	}
	if err := Seed(t.Context(), "store", Options{FS: fs}, bytes.NewReader(dump.Bytes()), at, past); err != nil {
		t.Error(err)
	}
	if err := LeaveJournal("store", Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	if r, err = OpenReplica("store", Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	if past, err = r.Past(); err != nil || len(past.terms) > 0 {
		t.Errorf("%d terms, %v", len(past.terms), err)
	}
	if err := r.s.db.Set(layout.TermKey(1), []byte("no id"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if past, err = r.Past(); err != nil || len(past.terms) > 0 {
		t.Errorf("of what cannot be read: %d terms, %v", len(past.terms), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
