package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestReadBesideADamagedTable damages a table of rewritten values, the first block or the index. The keys before those are in a table of
// another level: an iterator fails there at once, and what is before the damaged table is read all the same.
func TestReadBesideADamagedTable(t *testing.T) {
	const n, first = 3000, 2000 // from first on they are rewritten
	name := func(i int) string { return fmt.Sprintf("object-%05d", i) }
	again := func(payload []byte) ([]byte, bool) { return append([]byte("again "), payload...), true }
	spaces := map[string]struct {
		rewrite func(t *testing.T, s *Store)
		read    func(t *testing.T, s *Store) (got int)
	}{
		"ledger": {
			func(t *testing.T, s *Store) {
				b := s.NewBatch()
				for i := range n - first {
					b.PutState("objects", name(first+i), []byte("again"))
				}
				if err := s.Commit(b); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, s *Store) (got int) {
				err := s.ScanState("objects", "", func(string, []byte) error {
					got++
					return nil
				})
				if !errors.Is(err, ErrUnreadable) {
					t.Errorf("no damage: %v", err)
				}
				return got
			},
		},
		"log": {
			func(t *testing.T, s *Store) {
				for after, end := uint64(first), false; !end; {
					var err error
					if after, _, end, err = s.RewriteLog(after, again); err != nil {
						t.Fatal(err)
					}
				}
			},
			func(t *testing.T, s *Store) (got int) {
				damaged := false
				for after := uint64(0); after < s.LogStats().Last; {
					items, err := s.ReadLog(after, 1000)
					if err != nil || len(items) == 0 {
						t.Fatalf("%d items, %v", len(items), err)
					}
					after = items[len(items)-1].Sequence
					if items[0].Unreadable {
						damaged = true
					} else {
						got += len(items)
					}
				}
				if !damaged {
					t.Error("no damage")
				}
				return got
			},
		},
		"queue": {
			func(t *testing.T, s *Store) {
				q := ensure(t, s, "a")
				for after, end := uint64(n+first), false; !end; { // the entries are behind the records
					var err error
					if after, _, end, err = q.RewriteQueue(after, again); err != nil {
						t.Fatal(err)
					}
				}
			},
			func(t *testing.T, s *Store) (got int) {
				q := ensure(t, s, "a")
				after := uint64(0)
				for items := read(t, q, after, 1000); len(items) > 0; items = read(t, q, after, 1000) {
					got, after = got+len(items), items[len(items)-1].Position
				}
				if st := q.Stats(); st.DeadLetters != 1 || st.Length != int64(got) {
					t.Errorf("%d entries are read: %+v", got, st)
				}
				return got
			},
		},
	}
	for what, space := range spaces {
		t.Run(what, func(t *testing.T) {
			pristine := vfs.NewMem()
			s := openTest(t, "store", Options{FS: pristine, firstSequence: 1})
			ensure(t, s, "a")
			b := s.NewBatch()
			for i := range n {
				b.Append(Record{Time: testEpoch, Payload: []byte(name(i))}, nil)
				b.PutState("objects", name(i), []byte("once"))
			}
			for i := range n {
				b.Enqueue(Record{Time: testEpoch, Payload: []byte(name(i))}, uint64(i+1), Route{Sink: "a"})
			}
			if err := errors.Join(s.Commit(b), flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
				t.Fatal(err)
			}
			space.rewrite(t, s)
			err := flush(s)
			levels, lerr := s.db.SSTables()
			if err = errors.Join(err, lerr, s.Close()); err != nil || len(levels[0]) != 1 {
				t.Fatalf("%d tables of rewritten values, %v", len(levels[0]), err)
			}
			table := levels[0][0].BackingSSTNum.String() + ".sst"
			for damage, spoil := range map[string]func(fs vfs.FS){
				"index": func(fs vfs.FS) { damageIndex(t, fs, table) },
				"block": func(fs vfs.FS) { damageBlockOf(t, fs, 0, table) },
			} {
				t.Run(damage, func(t *testing.T) {
					fs := copyFS(t, pristine)
					spoil(fs)
					got := space.read(t, openTest(t, "store", Options{FS: fs, firstSequence: 1}))
					if got < first || got == n || damage == "block" && got < n-300 {
						t.Errorf("%d of %d are read, of which %d are before the damaged table", got, n, first)
					}
				})
			}
		})
	}
}

// TestDamageOfEntriesAndLetters damages all entries together with the dead letters beside them: the loss is said.
func TestDamageOfEntriesAndLetters(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	appendN(t, s, 10, "a")
	read(t, q, 0, 10)
	if err := q.DeadLetter(3, Letter{Reason: "refused"}); err != nil {
		t.Fatal(err)
	}
	if err := reclaim(s, 1, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	settled(t, s)
	for _, name := range dataFiles(t, fs, ".sst") {
		damageBlockOf(t, fs, 0, name)
	}
	if items := read(t, q, 0, 10); len(items) != 0 || q.Stats().DeadLetters != 2 {
		t.Errorf("%d entries are read, and the queue counts %+v", len(items), q.Stats())
	}
}
