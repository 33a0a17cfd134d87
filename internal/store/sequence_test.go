package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

// TestSequencesRise opens stores that share nothing but the clock: one after
// another in the same directory, a copy restored from a backup, an empty volume.
func TestSequencesRise(t *testing.T) {
	now := testEpoch
	open := func(fs *vfs.MemFS) *Store {
		t.Helper()
		return openTest(t, "store", Options{FS: fs, Now: func() time.Time { return now }})
	}
	fs := vfs.NewMem()
	s := open(fs)
	if st := s.LogStats(); st.First <= st.Last {
		t.Errorf("an empty log has bounds %+v", st)
	}
	ensure(t, s, "a")
	last := appendN(t, s, 3, "a")[2]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	backup := copyFS(t, fs)
	reopened := func(what string, fs *vfs.MemFS) *Store {
		t.Helper()
		s := open(fs)
		ensure(t, s, "a")
		sequences := appendN(t, s, 5, "a")
		if sequences[0] <= last || sequences[4] > maxSequence {
			t.Errorf("%s: sequences %v after %d", what, sequences, last)
		}
		last = sequences[4]
		return s
	}
	now = now.Add(-time.Hour)
	s = reopened("a clock set back", fs)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	reopened("the clock", fs)
	now = now.Add(time.Second)
	reopened("a restored copy", backup)
	now = now.Add(time.Second)
	reopened("an empty volume", vfs.NewMem())
}

// TestRaisedSequences has a store continue from the clock, between batches and where nothing was appended yet, and from none that is
// implausible or set back.
func TestRaisedSequences(t *testing.T) {
	now := testEpoch
	s := openTest(t, "store", Options{FS: vfs.NewMem(), Now: func() time.Time { return now }})
	q := ensure(t, s, "a")
	last := uint64(now.UnixMicro()) - 1
	for _, tc := range []struct {
		clock time.Time
		jumps bool
	}{
		{testEpoch.Add(time.Hour), true},
		{testEpoch.Add(2 * time.Hour), true},
		{testEpoch, false},
		{latestClock, false},
		{time.Unix(0, 0), false},
		{testEpoch.Add(3 * time.Hour), true},
	} {
		now = tc.clock
		if err := s.RaiseSequences(); err != nil {
			t.Fatal(err)
		}
		want := last + 1
		if tc.jumps {
			want = uint64(now.UnixMicro())
		}
		next, sequences := s.LogStats().Next, appendN(t, s, 3, "a")
		if sequences[0] != want || next != want {
			t.Errorf("at %v: sequence %d follows %d, want %d, and next is %d", now, sequences[0], last, want, next)
		}
		last = sequences[2]
	}
	if items := read(t, q, 0, 100); len(items) != 18 || items[17].Sequence != last {
		t.Errorf("the queue has %d entries", len(items))
	}
	if items, err := s.ReadLog(0, 100); err != nil || len(items) != 18 || s.LogStats().Oldest != items[0].Sequence {
		t.Errorf("the log has %d records and %+v: %v", len(items), s.LogStats(), err)
	}
	s.fail(errors.New("the disk is broken"))
	s.appending <- struct{}{} // a batch that has no end
	if err := s.RaiseSequences(); !errors.Is(err, ErrFailed) {
		t.Errorf("a store that has failed: %v", err)
	}
}

// TestOldestAfterReopening has the same oldest record before and after a restart.
func TestOldestAfterReopening(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, Now: at(testEpoch)})
	if st := s.LogStats(); st.Oldest <= st.Last {
		t.Errorf("an empty log: %+v", st)
	}
	first := appendN(t, s, 3)[0]
	if st := s.LogStats(); st.Oldest != first {
		t.Errorf("the oldest record is %d, and %+v", first, st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", Options{FS: fs, Now: at(testEpoch)})
	if st := s.LogStats(); st.Oldest != first {
		t.Errorf("after a restart the oldest record is %d, and %+v", first, st)
	}
}

// TestGapsInSequences reads a log and a queue over the gaps that openings leave.
func TestGapsInSequences(t *testing.T) {
	fs := vfs.NewMem()
	var sequences []uint64
	var s *Store
	for i := range 3 {
		s = openTest(t, "store", Options{FS: fs, Now: at(testEpoch.AddDate(i, 0, 0))})
		ensure(t, s, "a")
		sequences = append(sequences, appendN(t, s, 2, "a")...)
		if i < 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	items, err := s.ReadLog(0, 100)
	if err != nil || len(items) != 6 {
		t.Fatalf("read %d records, %v", len(items), err)
	}
	if st := s.LogStats(); st.Records != 6 || st.First > sequences[0] || st.Last != sequences[5] {
		t.Errorf("log %+v, sequences %v", st, sequences)
	}
	if items, err = s.ReadLog(sequences[1], 1); err != nil || len(items) != 1 || items[0].Sequence != sequences[2] {
		t.Errorf("after %d comes %+v, %v", sequences[1], items, err)
	}
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Replay(t.Context(), "a", ReplayRange{FromSequence: sequences[1] + 1, ToSequence: sequences[4] - 1}, always(1)); n != 2 || err != nil {
		t.Errorf("replayed %d, %v", n, err)
	}
	if items := read(t, q, 0, 100); len(items) != 8 {
		t.Errorf("the queue has %d entries", len(items))
	}
}

func TestClockRefused(t *testing.T) {
	for _, now := range []time.Time{
		time.Unix(0, 0), time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		fs := vfs.NewMem()
		_, err := Open("store", Options{FS: fs, Now: at(now)})
		if !errors.Is(err, ErrClock) || !strings.Contains(err.Error(), now.UTC().Format(time.RFC3339)) {
			t.Errorf("at %v: %v", now, err)
		}
		if _, err := fs.Stat("store"); err == nil {
			t.Errorf("at %v: a directory was made", now)
		}
	}
	if _, err := firstSequence(testEpoch, testEpoch.Add(time.Second)); !errors.Is(err, ErrClock) {
		t.Errorf("before the build: %v", err)
	}
	if n, err := firstSequence(testEpoch, latestClock.AddDate(1, 0, 0)); err != nil || n != uint64(testEpoch.UnixMicro()) {
		t.Errorf("a build with a wrong clock: %d, %v", n, err)
	}
}

// TestNoSequencesLeft ends at the largest number that a receiver reads exactly.
func TestNoSequencesLeft(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: maxSequence - 1})
	appendN(t, s, 2)
	b := s.NewBatch()
	b.Append(Record{Time: testEpoch}, nil)
	if err := s.Commit(b); !errors.Is(err, errNoSequences) {
		t.Errorf("got %v", err)
	}
	if st := s.LogStats(); st.Last != maxSequence {
		t.Errorf("log %+v", st)
	}
}
