package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestDamageBehindTheCache damages blocks of a queue that are in memory, and others of their table that are not: with those, the
// repair takes out all of them, and counts all of them.
func TestDamageBehindTheCache(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	const n = 3000
	appendN(t, s, n, "a")
	compactAll(t, s)
	settled(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	entry := func(position uint64) error {
		_, _, err := s.get(layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, position))
		return err
	}
	if err := entry(n / 4); err != nil {
		t.Fatal(err)
	}
	for nth, in := range spaces(t, fs) {
		if in == string(layout.PrefixQueue) {
			damageBlock(t, fs, nth)
		}
	}
	if err := entry(n / 4); err != nil {
		t.Fatalf("the block is not in memory: %v", err)
	}
	stop := runStore(t, s)
	eventually(t, "the store runs", s.running.Load)
	if repaired, err := s.awaitRepair(entry(n / 2)); !repaired || err != nil {
		t.Fatalf("repaired %t, %v", repaired, err)
	}
	stop()
	s = reopened(t, s, fs)
	q = ensure(t, s, "a")
	if st, got := q.Stats(), len(read(t, q, 0, n)); st.Length != int64(got) || st.DeadLetters != 1 {
		t.Errorf("%d entries are read: %+v", got, st)
	}
}

// TestDamagedIndexBehindTheCache damages the index of a table, which is in memory, and blocks beside each other: once the table is
// repaired, it is read by its new index.
func TestDamagedIndexBehindTheCache(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	ensure(t, s, "a")
	const n = 100
	name := func(i int) string { return fmt.Sprintf("object-%05d", i) }
	for i := range n {
		commitOne(t, s, name(i), noise(900+i%7))
	}
	compactAll(t, s)
	settled(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
	if _, ok, err := s.State("objects", name(0), nil); !ok || err != nil {
		t.Fatal(err)
	}
	states := slices.IndexFunc(spaces(t, fs), func(in string) bool { return in == string(layout.PrefixState) })
	flipIn(t, fs, dataFiles(t, fs, ".sst")[0], func(l *sstable.Layout) []block.Handle {
		return []block.Handle{l.Index[0], l.Data[states].Handle, l.Data[states+1].Handle, l.Data[states+2].Handle}
	})
	t.Cleanup(runStore(t, s))
	eventually(t, "the store runs", s.running.Load)
	for i := range n {
		if _, _, err := s.State("objects", name(i), nil); err != nil && !errors.Is(err, ErrUnreadable) {
			t.Fatal(err)
		}
		commitOne(t, s, name(i), noise(9))
	}
	eventually(t, "the table is repaired", func() bool { return s.damaged.first() == "" })
	if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
		t.Error(err)
	}
}
