package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestLossUnderAJournal damages a block of the leader's tables, which it repairs. The other
// directory, which has what is lost, then leads: its counters are those of what is in it.
func TestLossUnderAJournal(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		prefix byte
		nth    int // of the keys that are written in full
	}{
		{"queue", layout.PrefixQueue, 8},
		{"dead letters", layout.PrefixDeadLetter, 20},
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
			if !damageKeys(t, fs, append(layout.SinkPrefix(prefix, q.id), 0), tc.nth) {
				t.Fatal("no block is damaged")
			}
			lead := func(fs vfs.FS) (*Store, *Queue) {
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
			s, q = lead(fs)
			before := q.Stats()
			for _, name := range dataFiles(t, fs, ".sst") {
				if _, err := s.repairTable("store/db/" + name); err != nil {
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
			s, q = lead(other)
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
