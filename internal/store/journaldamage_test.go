package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// TestLossUnderAJournal damages blocks of the leader's tables, which it repairs. The other
// directory, which has what is lost, then leads: its counters are those of what is in it.
func TestLossUnderAJournal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		prefix byte
		places int
	}{
		{"queue", layout.PrefixQueue, 1},
		{"two blocks of a queue", layout.PrefixQueue, 4},
		{"dead letters", layout.PrefixDeadLetter, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			prefix := tc.prefix
			j, fs, other := &testJournal{}, vfs.NewMem(), vfs.NewMem()
			s, q := openJournaled(t, fs, j)
			const n = 2000
			b := s.NewBatch()
			for i := range n {
				b.Append(Record{Time: testEpoch, Payload: fmt.Append(nil, i)}, []Route{{Sink: "a"}})
			}
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
			if prefix == layout.PrefixDeadLetter {
				for _, item := range read(t, q, 0, n/2) {
					if err := q.DeadLetter(item.Position, Letter{Reason: "refused", First: testEpoch, Time: testEpoch}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := errors.Join(flush(s), s.Close()); err != nil {
				t.Fatal(err)
			}
			damageBlocks(t, fs, j, append(layout.SinkPrefix(prefix, q.id), 0), tc.places)
			s, q = lead(t, fs, j)
			before := q.Stats()
			for _, name := range dataFiles(t, fs, ".sst") {
				if err := s.repairTable("store/db/" + name); err != nil {
					t.Fatal(err)
				}
			}
			st := q.Stats()
			if st.Length+st.DeadLetters >= before.Length+before.DeadLetters {
				t.Fatalf("nothing was lost: %+v, before %+v", st, before)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}

			if _, err := j.follow(other); err != nil {
				t.Fatal(err)
			}
			s, q = lead(t, other, j)
			letters, err := q.DeadLetters(0, 2*n)
			if err != nil {
				t.Fatal(err)
			}
			entries := read(t, q, 0, 2*n)
			if st := q.Stats(); st.Length != int64(len(entries)) || st.DeadLetters != int64(len(letters)) {
				t.Errorf("%d entries and %d dead letters are there, %d and %d are counted", len(entries), len(letters), st.Length, st.DeadLetters)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRepairAndFailover: a leader removes damaged blocks of its queue and ends before it has counted what is left. The other directory, which
// has lost nothing, leads and ends the repair. The first is then no copy of the journal, says so, and is one again once it is seeded.
func TestRepairAndFailover(t *testing.T) {
	t.Parallel()
	const n = 2000
	j, fs, other := &testJournal{}, vfs.NewMem(), vfs.NewMem()
	s, q := openJournaled(t, fs, j)
	b := s.NewBatch()
	for i := range n {
		b.Append(Record{Time: testEpoch, Payload: fmt.Append(nil, i)}, []Route{{Sink: "a"}})
	}
	if err := errors.Join(s.Commit(b), flush(s), s.Close()); err != nil {
		t.Fatal(err)
	}
	key := append(layout.SinkPrefix(layout.PrefixQueue, q.id), 0)
	damageBlocks(t, fs, j, key, 4) // at least two, as a block may have several of the places
	s, _ = lead(t, fs, j)
	removed := 0
	for _, name := range dataFiles(t, fs, ".sst") {
		path := "store/db/" + name
		for _, p := range patchesOf(t, s, name) { // one after the other, as if they were found so
			s.damaged.uncounted = append(s.damaged.uncounted, p.Lost)
			if err := errors.Join(s.restate([]layout.Range{p.Lost}), s.overwrite(path, []salvage.Patch{p})); err != nil {
				t.Fatal(err)
			}
			removed++
		}
	}
	if removed < 2 {
		t.Fatalf("%d blocks are removed", removed)
	}
	if err := s.Close(); err != nil { // without the count
		t.Fatal(err)
	}

	loss := func(fs vfs.FS) error {
		t.Helper()
		r, err := OpenReplica("store", Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return errors.Join(r.Loss(), r.Close())
	}
	if _, err := j.follow(other); err != nil {
		t.Fatal(err)
	}
	if err := loss(other); err != nil {
		t.Errorf("the directory that follows: %v", err)
	}
	s, q = lead(t, other, j)
	if err := s.resumeRepair(); err != nil {
		t.Fatal(err)
	}
	if got := q.Stats(); got.Length != n+100 || got.DeadLetters != 0 {
		t.Errorf("the directory that has lost nothing: %+v", got)
	}
	if err := loss(fs); !errors.Is(err, ErrLoss) {
		t.Errorf("the directory with the loss: %v", err)
	}
	var dump bytes.Buffer
	at, err := s.Dump(t.Context(), &dump)
	if err := errors.Join(err, s.Close(), Seed(t.Context(), "store", Options{FS: fs}, &dump, at, Past{}), loss(fs)); err != nil {
		t.Fatal(err)
	}
	s, q = lead(t, fs, j)
	if got, there := q.Stats(), len(read(t, q, 0, 2*n)); got.Length != int64(there) || there != n+100 {
		t.Errorf("%d entries are there, %+v", there, got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLeaveJournalWithLoss: a directory that has lost entries, and leaves the journal in which another has led since, counts what it has.
func TestLeaveJournalWithLoss(t *testing.T) {
	t.Parallel()
	j, fs := &testJournal{}, vfs.NewMem()
	s, q := openJournaled(t, fs, j)
	b := s.db.NewBatch()
	lost := layout.Range{Lower: layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, 20), Upper: layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, 40)}
	if err := errors.Join(b.DeleteRange(lost.Lower, lost.Upper, nil), b.Commit(pebble.Sync), s.files.NoteLoss(), s.Close(), LeaveJournal("store", Options{FS: fs})); err != nil {
		t.Fatal(err)
	}
	s, q = lead(t, fs, &testJournal{})
	if err := s.resumeRepair(); err != nil {
		t.Fatal(err)
	}
	if got := q.Stats(); got.Length != 80 || got.DeadLetters != 1 {
		t.Errorf("%+v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBackupWithLoss: the backup of a directory that has lost entries is no copy of the journal either.
func TestBackupWithLoss(t *testing.T) {
	t.Parallel()
	j, fs := &testJournal{}, vfs.NewMem()
	s, _ := openJournaled(t, fs, j)
	if err := errors.Join(s.files.NoteLoss(), s.Backup(t.Context(), "/backup"), s.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReplica("/backup", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Loss(); !errors.Is(err, ErrLoss) {
		t.Errorf("the backup: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// damageBlocks damages places of the keys that begin so, without which the store can be opened.
func damageBlocks(t *testing.T, fs vfs.FS, j *testJournal, key []byte, places int) {
	t.Helper()
	for nth, damaged := 0, 0; damaged < places; nth += 3 {
		if !damageKeys(t, fs, key, nth) {
			t.Fatalf("%d places are damaged", damaged)
		}
		if s, err := Open("store", Options{FS: fs, Journal: j.writer()}); err != nil {
			damageKeys(t, fs, key, nth) // as it was
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		} else {
			damaged++
		}
	}
}

// lead opens a store with a sink as the next writer of a journal.
func lead(t *testing.T, fs vfs.FS, j *testJournal) (*Store, *Queue) {
	t.Helper()
	s, err := Open("store", Options{FS: fs, Journal: j.writer()})
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	return s, q
}
