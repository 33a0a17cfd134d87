package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// testJournal is a journal in memory. Each term has a writer of its own.
type testJournal struct {
	mu      sync.Mutex
	entries []testEntry
	gate    chan struct{} // if not nil, Append waits until it is closed
}

type testEntry struct {
	Position
	batch []byte
}

// writer begins the next term.
func (j *testJournal) writer() *testWriter {
	w := &testWriter{j: j, term: 1}
	if n := len(j.entries); n > 0 {
		w.at = j.entries[n-1].Position
		w.term = w.at.Term + 1
	}
	return w
}

type testWriter struct {
	j    *testJournal
	term uint64
	at   Position

	resign func(context.Context) error // Resign; nil: it does nothing
}

func (w *testWriter) Append(ctx context.Context, batch []byte) (Position, error) {
	if w.j.gate != nil {
		select {
		case <-w.j.gate:
		case <-ctx.Done():
			return Position{}, ctx.Err()
		}
	}
	w.j.mu.Lock()
	defer w.j.mu.Unlock()
	if n := uint64(len(w.j.entries)); n != w.at.Last {
		return Position{}, ErrStolen
	}
	w.at = Position{First: w.at.Last + 1, Last: w.at.Last + 1, Term: w.term, Sum: xxhash.Sum64(fmt.Append(nil, w.at.Sum, batch))}
	w.j.entries = append(w.j.entries, testEntry{w.at, bytes.Clone(batch)})
	return w.at, nil
}

func (w *testWriter) Erase(ctx context.Context) (Position, error) { return w.Append(ctx, nil) }

func (w *testWriter) Resign(ctx context.Context) error {
	if w.resign == nil {
		return nil
	}
	return w.resign(ctx)
}

// apply brings a directory up to the journal's end.
func (j *testJournal) apply(r *Replica) error {
	at := r.Position()
	if at.Last > 0 {
		if diff := cmp.Diff(j.entries[at.Last-1].Position, at); diff != "" {
			return fmt.Errorf("the directory is not of this journal:\n%s", diff)
		}
	}
	for _, e := range j.entries[at.Last:] {
		if err := r.Apply(context.Background(), e.Position, e.batch); err != nil {
			return err
		}
	}
	return nil
}

// follow brings a directory up to the journal's end, and returns what is in it.
func (j *testJournal) follow(fs vfs.FS) (contents []string, err error) {
	r, err := OpenReplica("store", Options{FS: fs})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := j.apply(r); err != nil {
		return nil, err
	}
	it, err := r.s.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	for it.First(); it.Valid(); it.Next() {
		contents = append(contents, fmt.Sprintf("%q=%q", it.Key(), it.Value()))
	}
	return contents, errors.Join(it.Error(), it.Close(), r.Sync())
}

// takeOver opens the store with a journal, as its next writer, in the directory that led before or in the other: one that
// follows, or one that is closed.
func (x *machine) takeOver(t *rapid.T) {
	if rapid.Bool().Draw(t, "the other") {
		x.fs, x.standby = x.standby, x.fs
	}
	_, err := x.journal.follow(x.standby)
	x.must(t, err)
	if rapid.Bool().Draw(t, "in place") {
		r, err := OpenReplica("store", Options{firstSequence: 1, FS: errorfs.Wrap(x.fs, &x.disk)})
		x.must(t, err)
		x.must(t, x.journal.apply(r))
		x.s, err = r.Lead(x.journal.writer())
		x.must(t, err)
		return
	}
	_, err = x.journal.follow(x.fs)
	x.must(t, err)
	x.open(t, x.journal)
}

// checkStandby compares the two directories of a store with a journal.
func (x *machine) checkStandby(t *rapid.T) {
	var contents [2][]string
	for i, fs := range []vfs.FS{x.fs, x.standby} {
		var err error
		contents[i], err = x.journal.follow(fs)
		x.must(t, err)
	}
	if diff := cmp.Diff(contents[0], contents[1]); diff != "" {
		t.Fatalf("the standby differs:\n%s", diff)
	}
}

// openJournaled opens a store with a sink and 100 of its entries.
func openJournaled(t *testing.T, fs vfs.FS, j *testJournal) (*Store, *Queue) {
	t.Helper()
	s, err := Open("store", Options{firstSequence: 1, FS: fs, Journal: j.writer()})
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.EnsureSink("a", FromNow)
	if err != nil {
		t.Fatal(err)
	}
	b := s.NewBatch()
	for i := range 100 {
		b.Append(Record{Time: testEpoch, Payload: fmt.Append(nil, i)}, []Route{{Sink: "a"}})
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	return s, q
}

// TestAcksOfAJournal: acks do not wait for the journal, become one entry, and are in the directory when something else
// settles entries.
func TestAcksOfAJournal(t *testing.T) {
	t.Parallel()
	fs, j := vfs.NewMem(), &testJournal{}
	s, q := openJournaled(t, fs, j)
	items, err := q.Read(0, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	before := len(j.entries)
	for _, item := range items[:99] {
		if err := q.Ack(item.Position); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.DeadLetter(items[99].Position, Letter{Reason: "r", Time: testEpoch}); err != nil {
		t.Fatal(err)
	}
	if n := len(j.entries) - before; n > 4 { // one; more if the goroutine is slow
		t.Errorf("99 acks and a dead letter are %d entries", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.follow(fs); err != nil {
		t.Fatal(err)
	}
	s, err = Open("store", Options{FS: fs, Journal: j.writer()})
	if err != nil {
		t.Fatal(err)
	}
	q, err = s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); st.Length != 0 || st.DeadLetters != 1 {
		t.Errorf("%+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDeposed: a store whose journal has another writer fails at its next write, which is not in its directory.
func TestDeposed(t *testing.T) {
	t.Parallel()
	fs, j := vfs.NewMem(), &testJournal{}
	s, _ := openJournaled(t, fs, j)
	if _, err := j.writer().Append(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	at := s.JournalPosition()
	if err := commitMeta(s); !errors.Is(err, ErrStolen) || !errors.Is(err, ErrFailed) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	checkBehind(t, fs, j, at)
}

// TestLeadLives: a replica that leads shows that it lives before it is run, or another would take its silence for its end.
func TestLeadLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := &testJournal{}
		r, err := OpenReplica("store", Options{firstSequence: 1, FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Lead(j.writer())
		if err != nil {
			t.Fatal(err)
		}
		const seconds = 3
		time.Sleep(seconds*idleAfter + idleAfter/2)
		synctest.Wait()
		if n := len(j.entries); n != seconds {
			t.Errorf("%d entries in %d seconds", n, seconds)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestResign: a store that is closed in order resigns once, with its last ack in the journal and its directory not closed yet, and
// does not wait for a journal that hangs. One that has failed does not.
func TestResign(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do    func(*testing.T, *Store)
		hangs bool
		want  int // how often
	}{
		"unused": {do: func(*testing.T, *Store) {}, want: 1},
		"an ack": {do: func(t *testing.T, s *Store) {
			q, err := s.Queue("a")
			if err == nil {
				err = q.Ack(read(t, q, 0, 1)[0].Position)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, want: 1},
		"it hangs": {do: func(*testing.T, *Store) {}, hangs: true, want: 1},
		"failed":   {do: func(_ *testing.T, s *Store) { s.fail(errors.New("the disk is broken")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fs, j := vfs.NewMem(), &testJournal{}
				s, _ := openJournaled(t, fs, j)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				w, resigned := j.writer(), 0
				w.resign = func(ctx context.Context) error {
					resigned++
					if at, err := s.position(); err != nil || at != w.at {
						t.Errorf("the directory is at %+v, the journal at %+v: %v", at, w.at, err)
					}
					if tc.hangs {
						<-ctx.Done()
					}
					return ctx.Err()
				}
				var err error
				if s, err = Open("store", Options{firstSequence: 1, FS: fs, Journal: w}); err != nil {
					t.Fatal(err)
				}
				before := len(j.entries)
				tc.do(t, s)
				if err := s.Close(); err != nil || s.Err() != nil && tc.want > 0 {
					t.Error(err, s.Err())
				}
				if resigned != tc.want {
					t.Errorf("it resigned %d times, want %d", resigned, tc.want)
				}
				if got := len(j.entries) - before; (got > 0) != (name == "an ack") {
					t.Errorf("%d entries", got)
				}
			})
		})
	}
}

// checkBehind: the directory has nothing behind a position, and follows.
func checkBehind(t *testing.T, fs vfs.FS, j *testJournal, at Position) {
	t.Helper()
	r, err := OpenReplica("store", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if r.Position().Last > at.Last {
		t.Errorf("at %+v, want %+v", r.Position(), at)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := j.follow(fs); err != nil {
		t.Error(err)
	}
}

// commitMeta is a write that waits for the journal.
func commitMeta(s *Store) error {
	b := s.NewBatch()
	b.PutMeta("note", []byte("note"))
	return s.Commit(b)
}

// TestCloseWithoutTheJournal: Close ends although the journal does not answer, and what it has not is not in the directory.
func TestCloseWithoutTheJournal(t *testing.T) {
	t.Parallel()
	fs, j := vfs.NewMem(), &testJournal{}
	s, q := openJournaled(t, fs, j)
	items, err := q.Read(0, 1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	j.gate = make(chan struct{})
	at := s.JournalPosition()
	if err := q.Ack(items[0].Position); err != nil {
		t.Fatal(err)
	}
	note := make(chan error)
	go func() { note <- commitMeta(s) }()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-note; err == nil {
		t.Error("a commit was made without the journal")
	}
	if err := s.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	checkBehind(t, fs, j, at)
}

// TestCloseOfAFailedStore: a store that failed while the journal did not answer is closed at once, and nothing of it is left.
func TestCloseOfAFailedStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := &testJournal{}
		s, _ := openJournaled(t, vfs.NewMem(), j)
		j.gate = make(chan struct{})
		note := make(chan error, 1)
		go func() { note <- commitMeta(s) }()
		synctest.Wait() // it is being appended
		s.fail(errors.New("the disk is broken"))
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-note; !errors.Is(err, ErrFailed) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("close took %v", took)
		}
	})
}

// TestCloseWaitsForCalls: a call that began before Close is completed, or refused, although the journal is slow.
func TestCloseWaitsForCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := &testJournal{}
		s, _ := openJournaled(t, vfs.NewMem(), j)
		j.gate = make(chan struct{})
		var calls sync.WaitGroup
		for range 5 {
			calls.Go(func() {
				if err := commitMeta(s); err != nil {
					t.Errorf("a commit: %v", err)
				}
			})
			synctest.Wait() // the first is being appended, the others wait
		}
		calls.Go(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		synctest.Wait()
		close(j.gate)
		calls.Wait()
		if err := s.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestLeaveJournal: a directory that has left its journal has its records.
func TestLeaveJournal(t *testing.T) {
	t.Parallel()
	fs, j := vfs.NewMem(), &testJournal{}
	s, _ := openJournaled(t, fs, j)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := LeaveJournal("store", Options{FS: fs}); err != nil {
		t.Fatal(err)
	}
	s, err := Open("store", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if n := s.LogStats().Records; n != 100 || s.JournalPosition() != (Position{}) {
		t.Errorf("%d records, at %+v", n, s.JournalPosition())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWriteWithoutJournal: a directory that is written without its journal is not at the position of before: another
// directory has that, too, and lacks what was written. One that is only read stays there.
func TestWriteWithoutJournal(t *testing.T) {
	t.Parallel()
	fs, j := vfs.NewMem(), &testJournal{}
	s, _ := openJournaled(t, fs, j)
	before := s.JournalPosition()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		write func(*Store) error
		want  Position
	}{
		{"read", func(*Store) error { return nil }, before},
		{"written", func(s *Store) error { _, err := s.EnsureSink("b", FromNow); return err }, Position{}},
	} {
		s, err := Open("store", Options{FS: fs})
		if err == nil {
			err = errors.Join(tc.write(s), s.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := OpenReplica("store", Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, r.Position()); diff != "" || r.Fresh() {
			t.Errorf("%s: the position is\n%s", tc.name, diff)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEraseReplicasPosition: EraseReplicas returns the position of its own entry, not of one that follows.
func TestEraseReplicasPosition(t *testing.T) {
	j := &testJournal{}
	s, err := Open("store", Options{FS: vfs.NewMem(), Journal: j.writer()})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var committing sync.WaitGroup
	committing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			b := s.NewBatch()
			b.PutMeta("key", []byte("value"))
			if err := s.Commit(b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 500 {
		p, err := s.EraseReplicas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		j.mu.Lock()
		erases := j.entries[p.Last-1].batch == nil
		j.mu.Unlock()
		if !erases {
			t.Errorf("position %d is not of an erase entry", p.Last)
			break
		}
	}
	close(stop)
	committing.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
