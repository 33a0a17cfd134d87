package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/inspect"
)

// TestBackup copies a store while it is written to. Each commit has a record and a state that
// names it, so that a copy shows of which commit its parts are.
func TestBackup(t *testing.T) {
	disk := vfs.NewMem()
	s := openTest(t, "store", Options{FS: disk, firstSequence: 1})
	q := ensure(t, s, "a")
	commit := func(i int) uint64 {
		b := s.NewBatch()
		defer b.Discard()
		text := fmt.Appendf(nil, "%d", i)
		sequence := b.Append(Record{Time: testEpoch, Payload: text}, []Route{{Sink: "a"}})
		b.PutState("p", "last", text)
		if err := s.Commit(b); err != nil {
			t.Error(err)
		}
		return sequence
	}
	for i := range 20 {
		commit(i)
	}
	for _, it := range read(t, q, 0, 20) {
		if err := q.Ack(it.Position); err != nil {
			t.Fatal(err)
		}
	}
	var writer sync.WaitGroup
	writing, stop := make(chan struct{}, 1), make(chan struct{})
	writer.Go(func() {
		for i := 20; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			commit(i)
			select {
			case writing <- struct{}{}:
			default:
			}
		}
	})
	for _, dir := range []string{"/backup/1", "/backup/2", "/backup/3"} {
		<-writing
		if err := s.Backup(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	writer.Wait()
	if err := s.Backup(t.Context(), "/backup/1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second backup to one directory: %v", err)
	}
	last := commit(-1)

	for _, dir := range []string{"/backup/1", "/backup/2", "/backup/3"} {
		if report, err := inspect.CheckFS(disk, dir); err != nil || !report.OK() {
			t.Fatalf("%s: %v %v", dir, report.Problems, err)
		}
		restored := openTest(t, dir, Options{FS: disk, firstSequence: last + 1000})
		state, _, err := restored.State("p", "last", nil)
		if err != nil {
			t.Fatal(err)
		}
		items := read(t, ensure(t, restored, "a"), 0, 1<<20)
		newest, ok, err := restored.ReadRecord(restored.LogStats().Last)
		if err != nil || !ok || string(newest.Payload) != string(state) {
			t.Errorf("%s: the last record is %q, the state is of %q, error %v", dir, newest.Payload, state, err)
		}
		if len(items) == 0 || string(items[0].Payload) != "20" || string(items[len(items)-1].Payload) != string(state) {
			t.Errorf("%s: %d pending events up to %q", dir, len(items), state)
		}
		for i, it := range items {
			if string(it.Payload) != fmt.Sprint(20+i) {
				t.Fatalf("%s: pending event %d is %q", dir, i, it.Payload)
			}
		}
		if next := appendN(t, restored, 1)[0]; next <= last {
			t.Errorf("%s: sequence %d after %d", dir, next, last)
		}
	}
}

// slowBackup is a filesystem on which a backup waits for its first table.
type slowBackup struct {
	vfs.FS
	begun, resume chan struct{}
}

func (f *slowBackup) Link(from, to string) error {
	if strings.HasPrefix(to, "/backup") {
		select {
		case f.begun <- struct{}{}:
		default:
		}
		<-f.resume
	}
	return f.FS.Link(from, to)
}

// TestBackupAfterAnOpeningCutShort copies a store whose last opening met a full disk after it had the new MANIFEST, and
// before it had a write-ahead log.
func TestBackupAfterAnOpeningCutShort(t *testing.T) {
	disk, f := vfs.NewMem(), &faulty{}
	o := Options{FS: errorfs.Wrap(disk, f), firstSequence: 1}
	s := openTest(t, "store", o)
	appendN(t, s, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".log") {
			return syscall.ENOSPC
		}
		return nil
	})
	if s, err := Open("store", o); err == nil {
		t.Fatal("opened without a write-ahead log", s.Close())
	}
	f.fail.Store(nil)
	s = openTest(t, "store", o)
	appendN(t, s, 10)
	if err := s.Backup(t.Context(), "/backup"); err != nil {
		t.Fatal(err)
	}
	report, err := inspect.CheckFS(disk, "/backup")
	if err != nil || !report.OK() {
		t.Errorf("check: %v, %q", err, report.Problems)
	}
	copied := openTest(t, "/backup", Options{FS: disk, firstSequence: 1})
	if n := copied.LogStats().Records; n != 20 {
		t.Errorf("%d records", n)
	}
}

// TestBackupCostsNoHistory compacts a store again and again while a backup is made, which keeps all
// tables. Delivered records stay: to delete them would not make room.
func TestBackupCostsNoHistory(t *testing.T) {
	const budget = 16 << 20
	fs := &slowBackup{FS: vfs.NewMem(), begun: make(chan struct{}, 1), resume: make(chan struct{})}
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: budget})
	minutes(t, s, 0, 3, 1<<20)
	rewrite := func() {
		t.Helper()
		b := s.NewBatch()
		b.PutState("things", "a", noise(128<<10))
		if err := errors.Join(s.Commit(b), flush(s), engine.CompactAll(t.Context(), s.db)); err != nil {
			t.Fatal(err)
		}
	}
	rewrite()
	done := make(chan error, 1)
	go func() { done <- s.Backup(t.Context(), "/backup") }()
	<-fs.begun
	for s.Health().Bytes < s.limits().pressureBytes() {
		rewrite()
		if err := s.measure(); err != nil {
			t.Fatal(err)
		}
	}
	retain := func() uint64 {
		t.Helper()
		if _, err := s.retain(testEpoch, Limits{}, s.gate.pressed()); err != nil {
			t.Fatal(err)
		}
		return s.LogStats().First
	}
	if first := retain(); first != 1 {
		t.Errorf("the log begins at %d", first)
	}
	close(fs.resume)
	if err := errors.Join(<-done, s.awaitRemoval(t.Context()), s.measure()); err != nil {
		t.Fatal(err)
	}
	minutes(t, s, 3, 4, 1<<20)
	if err := errors.Join(flush(s), s.measure()); err != nil {
		t.Fatal(err)
	}
	if first := retain(); first == 1 {
		t.Errorf("no record was deleted for the budget: %+v", s.Health())
	}
}

// TestCompactionsWaitForABackup compacts a store in which ingest is paused while a backup is made. The
// compaction begins after it: the tables that it replaces stay until then.
func TestCompactionsWaitForABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 16 << 20
		removal := &slowRemoval{FS: vfs.NewMem(), resume: make(chan struct{})}
		close(removal.resume)
		fs := &slowBackup{FS: removal, begun: make(chan struct{}, 1), resume: make(chan struct{})}
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: budget})
		minutes(t, s, 0, 9, 1<<20)
		if err := errors.Join(flush(s), s.measure()); err != nil {
			t.Fatal(err)
		}
		if h := s.Health(); !h.Paused {
			t.Fatalf("ingest is not paused: %+v", h)
		}
		backup, compaction := make(chan error, 1), make(chan error, 1)
		go func() { backup <- s.Backup(t.Context(), "/backup") }()
		<-fs.begun
		synctest.Wait()
		before := removal.compacted.Load()
		go func() { compaction <- engine.CompactAll(t.Context(), s.db) }()
		time.Sleep(time.Minute)
		if n := removal.compacted.Load() - before; n > 0 {
			t.Errorf("compactions began %d tables during the backup", n)
		}
		close(fs.resume)
		if err := errors.Join(<-backup, <-compaction); err != nil {
			t.Fatal(err)
		}
		if removal.compacted.Load() == before {
			t.Error("nothing was compacted")
		}
	})
}

// TestCompactionsKnowTheBudgetOfNow compacts a store while a backup is made, after a reload has changed its budget.
func TestCompactionsKnowTheBudgetOfNow(t *testing.T) {
	const small, large = 16 << 20, 1 << 30
	for _, tc := range []struct {
		name          string
		before, after int64
		waits         bool
	}{
		{"larger", small, large, false},
		{"none any more", small, 0, false},
		{"smaller", large, small, true},
		{"none before", 0, small, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				removal := &slowRemoval{FS: vfs.NewMem(), resume: make(chan struct{})}
				close(removal.resume)
				fs := &slowBackup{FS: removal, begun: make(chan struct{}, 1), resume: make(chan struct{})}
				s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: tc.before})
				minutes(t, s, 0, 10, 1<<20)
				if err := flush(s); err != nil {
					t.Fatal(err)
				}
				s.SetLimits(Limits{MaxBytes: tc.after})
				backup, compaction := make(chan error, 1), make(chan error, 1)
				go func() { backup <- s.Backup(t.Context(), "/backup") }()
				<-fs.begun
				synctest.Wait()
				go func() { compaction <- engine.CompactAll(t.Context(), s.db) }()
				time.Sleep(time.Minute)
				if waits := len(compaction) == 0; waits != tc.waits {
					t.Errorf("the compaction waits for the backup: %t", waits)
				}
				close(fs.resume)
				if err := errors.Join(<-backup, <-compaction); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestBackupFails has every operation on the files of a backup fail, one after another. The
// store is not harmed, and nothing of the backup is left.
func TestBackupFails(t *testing.T) {
	mem, f := vfs.NewMem(), &faulty{}
	s := openTest(t, "store", Options{FS: errorfs.Wrap(mem, f), firstSequence: 1})
	ensure(t, s, "a")
	appendN(t, s, 10, "a")
	if err := flush(s); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		left := n
		var mu sync.Mutex
		f.set(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(op.Path, "backup") || op.Kind == errorfs.OpRemoveAll || op.Kind == errorfs.OpStat {
				return nil
			}
			if left--; left == -1 {
				return syscall.ENOSPC
			}
			return nil
		})
		err := s.Backup(t.Context(), "/backup")
		f.fail.Store(nil)
		mu.Lock()
		reached := left < 0
		mu.Unlock()
		appendN(t, s, 1, "a")
		if s.Err() != nil {
			t.Fatalf("the store failed with operation %d: %v", n, s.Err())
		}
		if err == nil { // a table was copied instead of linked, or nothing failed
			if report, err := inspect.CheckFS(mem, "/backup"); err != nil || !report.OK() {
				t.Fatalf("operation %d: %v %v", n, report.Problems, err)
			}
			if err := mem.RemoveAll("/backup"); err != nil {
				t.Fatal(err)
			}
		} else if _, err := mem.Stat("/backup"); err == nil {
			t.Fatalf("a part of a backup is left after operation %d", n)
		}
		if !reached {
			if n < 10 {
				t.Errorf("only %d operations", n)
			}
			return
		}
	}
}

// TestBackupEnds ends a slow backup: the store is closed, or its client goes, after the first of many
// tables. Nothing of it is left.
func TestBackupEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(s *Store, cancel context.CancelFunc) error
		want error
	}{
		{"the store is closed", func(s *Store, _ context.CancelFunc) error { return s.Close() }, ErrClosed},
		{"the client goes", func(_ *Store, cancel context.CancelFunc) error { cancel(); return nil }, context.Canceled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := &slowBackup{FS: vfs.NewMem(), begun: make(chan struct{}, 1), resume: make(chan struct{}, 1)}
				s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
				for range 3 {
					appendN(t, s, 1)
					if err := flush(s); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				backup, ended := make(chan error, 1), make(chan error, 1)
				go func() { backup <- s.Backup(ctx, "/backup") }()
				<-fs.begun
				go func() { ended <- tc.end(s, cancel) }()
				synctest.Wait()
				fs.resume <- struct{}{}
				if err := <-backup; !errors.Is(err, tc.want) {
					t.Errorf("the backup ended with %v, want %v", err, tc.want)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if _, err := fs.Stat("/backup"); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("something is left of the backup: %v", err)
				}
			})
		})
	}
}

// TestBackupKeepsDamage repairs a table after its backup, which has links to the tables: the backup meets the damage itself,
// and has a dead letter for what it lost. So has a backup of the backup.
func TestBackupKeepsDamage(t *testing.T) {
	for _, tc := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"memory", vfs.NewMem(), "/"}, {"disk", vfs.Default, t.TempDir()}} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.fs == vfs.Default {
				t.Chdir(t.TempDir()) // for the store
			}
			n := damagedQueue(t, tc.fs)
			var entries int64
			dirs := []string{"store", filepath.Join(tc.dir, "1"), filepath.Join(tc.dir, "2")}
			for i, dir := range dirs {
				s := openTest(t, dir, Options{FS: tc.fs, firstSequence: 1})
				read(t, ensure(t, s, "a"), 0, 1) // Pebble keeps the table open
				if i+1 < len(dirs) {
					if err := s.Backup(t.Context(), dirs[i+1]); err != nil {
						t.Fatal(err)
					}
				}
				names, err := tc.fs.List(filepath.Join(dir, "db"))
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					if !strings.HasSuffix(name, ".sst") {
						continue
					}
					if err := s.repairTable(filepath.Join(dir, "db", name)); err != nil {
						t.Fatal(err)
					}
				}
				repaired := testutil.ToFloat64(s.metrics.repaired)
				q := ensure(t, s, "a")
				if entries == 0 {
					entries = q.Stats().Length
				}
				if got := q.Stats(); repaired == 0 || got.Length != entries || got.Length == int64(n) || got.DeadLetters != 1 {
					t.Errorf("%s: %v blocks repaired, %+v", dir, repaired, got)
				}
				if err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
					t.Errorf("%s: after the repair: %v", dir, err)
				}
				if delivered, letters := drainDamagedOf(t, s, n); int64(delivered) != entries || letters != 1 {
					t.Errorf("%s: %d delivered, %d dead letters", dir, delivered, letters)
				}
			}
		})
	}
}

// TestBackupDuringRepair repairs a table while a backup links tables. The backup ends, as its tables are of another moment
// than the note of the repair, and nothing is left; the next one is complete.
func TestBackupDuringRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &slowBackup{FS: vfs.NewMem(), begun: make(chan struct{}, 1), resume: make(chan struct{}, 1)}
		n := damagedQueue(t, fs)
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, Now: func() time.Time { return testEpoch }})
		backup := make(chan error, 1)
		go func() { backup <- s.Backup(t.Context(), "/backup") }()
		<-fs.begun
		for _, name := range dataFiles(t, fs, ".sst") {
			if err := s.repairTable("store/db/" + name); err != nil {
				t.Fatal(err)
			}
		}
		close(fs.resume)
		if err := <-backup; !errors.Is(err, ErrRepairing) {
			t.Errorf("the backup ended with %v", err)
		}
		if _, err := fs.Stat("/backup"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something is left of the backup: %v", err)
		}
		if err := s.files.NoteRepair(nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Backup(t.Context(), "/backup"); !errors.Is(err, ErrRepairing) {
			t.Errorf("with a note in a file, which no backup has: %v", err)
		}
		if err := s.files.EndRepair(); err != nil {
			t.Fatal(err)
		}
		if err := s.Backup(t.Context(), "/backup"); err != nil {
			t.Fatal(err)
		}
		if report, err := inspect.CheckFS(fs, "/backup"); err != nil || !report.OK() {
			t.Fatalf("%v %v", report.Problems, err)
		}
		restored := openTest(t, "/backup", Options{FS: fs, firstSequence: 1, Now: func() time.Time { return testEpoch }})
		if delivered, letters := drainDamagedOf(t, restored, n); delivered == n || letters != 1 {
			t.Errorf("%d delivered, %d dead letters", delivered, letters)
		}
	})
}
