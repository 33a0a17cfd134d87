package store

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/testkit"
)

// faulty counts the operations that change the filesystem and lets some fail.
type faulty struct {
	changes atomic.Int64
	fail    atomic.Pointer[func(errorfs.Op) error]
}

func (f *faulty) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose {
		f.changes.Add(1)
	}
	if fail := f.fail.Load(); fail != nil {
		return (*fail)(op)
	}
	return nil
}

func (f *faulty) String() string { return "faulty" }

func (f *faulty) set(fail func(errorfs.Op) error) { f.fail.Store(&fail) }

func syncOf(op errorfs.Op, suffix string) bool {
	return (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.HasSuffix(op.Path, suffix)
}

// TestFailedStoreTouchesNothing fails one fsync of the write-ahead log: that
// commit fails, so does everything after it, and nothing is written any more.
func TestFailedStoreTouchesNothing(t *testing.T) {
	mem := vfs.NewCrashableMem()
	f := &faulty{}
	s, err := Open("store", Options{firstSequence: 1, FS: errorfs.Wrap(mem, f)})
	if err != nil {
		t.Fatal(err)
	}
	q := ensure(t, s, "a")
	appendN(t, s, 3, "a")
	items := read(t, q, 0, 10)

	var syncs atomic.Int64
	f.set(func(op errorfs.Op) error {
		if syncOf(op, ".log") {
			syncs.Add(1)
			return syscall.EIO
		}
		return nil
	})
	b := s.NewBatch()
	b.PutMeta("k", noise(100<<10))
	if err := s.Commit(b); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("commit: %v", err)
	}
	select {
	case <-s.Failed():
	default:
		t.Fatal("Failed is not closed")
	}
	before := f.changes.Load()
	ctx := t.Context()
	for what, call := range map[string]func() error{
		"commit": func() error {
			b := s.NewBatch()
			b.PutMeta("k", nil)
			return s.Commit(b)
		},
		"ack":         func() error { return q.Ack(items[0].Position) },
		"dead letter": func() error { return q.DeadLetter(items[0].Position, Letter{}) },
		"read":        func() error { _, err := q.Read(0, 1, 1); return err },
		"state":       func() error { _, _, err := s.State("p", "k", nil); return err },
		"wait":        func() error { return q.Wait(ctx, 100) },
		"wait log":    func() error { return s.WaitLog(ctx, 100) },
		"wait ingest": func() error { return s.WaitIngest(ctx) },
		"run":         func() error { return s.Run(ctx) },
		"replay":      func() error { _, err := s.Replay(ctx, "a", ReplayRange{}, always(0)); return err },
		"ensure":      func() error { _, err := s.EnsureSink("b", FromNow); return err },
		"purge":       func() error { return s.PurgeSink("a") },
		"flush":       func() error { return flush(s) },
	} {
		if err := call(); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if h := s.Health(); !errors.Is(h.Failed, ErrFailed) {
		t.Errorf("health %+v", h)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := syncs.Load(); n != 1 {
		t.Errorf("%d fsyncs after one failed", n-1)
	}
	if after := f.changes.Load(); after != before {
		t.Errorf("%d changes to the filesystem after the failure", after-before)
	}
	// The commit may or may not be there; what was there before is.
	s = openTest(t, "store", Options{firstSequence: 1, FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if st := s.LogStats(); st.Records != 3 {
		t.Errorf("log %+v", st)
	}
}

// during is an error that does something while its text is made.
type during struct {
	once sync.Once
	do   func()
}

func (d *during) Error() string {
	d.once.Do(d.do)
	return "failure"
}

// TestCommitWhileTheStoreFails: a commit that meets a failure halfway is on disk or
// returns ErrFailed. The store forms the text of the failure before it is over.
func TestCommitWhileTheStoreFails(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s, err := Open("store", Options{firstSequence: 1, FS: mem})
	if err != nil {
		t.Fatal(err)
	}
	var committed error
	s.fail(&during{do: func() {
		b := s.NewBatch()
		b.PutMeta("k", []byte("v"))
		committed = s.Commit(b)
	}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if committed != nil && !errors.Is(committed, ErrFailed) {
		t.Fatalf("commit: %v", committed)
	}
	s, err = Open("store", Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, ok, err := s.Meta("k"); err != nil || !ok && committed == nil {
		t.Errorf("an acknowledged commit is lost: %v", err)
	}
}

// TestWriteThatFailsTheStore: Pebble returns no error for a write whose sync fails, but
// calls its logger, which fails the store.
func TestWriteThatFailsTheStore(t *testing.T) {
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f)})
	f.set(func(op errorfs.Op) error {
		if syncOf(op, ".log") {
			return syscall.EIO
		}
		return nil
	})
	b := s.db.NewBatch()
	if err := b.Set(layout.MetaKey("k"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.applyNow(b, pebble.Sync); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Errorf("a write that is not on disk: %v", err)
	}
}

// TestStuckCommit holds an fsync: readers and the liveness figures go on.
func TestStuckCommit(t *testing.T) {
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f)})
	q := ensure(t, s, "a")
	appendN(t, s, 3, "a")
	if h := s.Health(); h.LastCommit.IsZero() || h.CommitStuck != 0 {
		t.Errorf("health %+v", h)
	}
	release, done := heldCommit(s, f, putMeta)
	if h := s.Health(); h.CommitStuck <= 0 {
		t.Errorf("health %+v", h)
	}
	for _, item := range read(t, q, 0, 10) {
		if err := q.Ack(item.Position); err != nil {
			t.Error(err)
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if h := s.Health(); h.CommitStuck != 0 {
		t.Errorf("health %+v", h)
	}
}

// TestFullDiskInFlush lets tables fail for want of space: the store tries again with
// pauses, says so once, and recovers by itself.
func TestFullDiskInFlush(t *testing.T) {
	f := &faulty{}
	var logged testkit.Log
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f), Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	ensure(t, s, "a")
	var tried atomic.Int64
	f.set(func(op errorfs.Op) error {
		switch {
		case !strings.HasSuffix(op.Path, ".sst"):
		case op.Kind == errorfs.OpCreate:
			tried.Add(1)
		case op.Kind == errorfs.OpFileWrite:
			return syscall.ENOSPC
		}
		return nil
	})
	appendN(t, s, 3, "a")
	began := time.Now()
	flushed := make(chan error, 1)
	go func() { flushed <- flush(s) }()
	eventually(t, "the flush is tried four times", func() bool { return tried.Load() >= 4 })
	if took := time.Since(began); took < 2*engine.FullDiskPause {
		t.Errorf("four times within %v", took)
	}
	appendN(t, s, 3, "a")
	f.set(func(errorfs.Op) error { return nil })
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	appendN(t, s, 3, "a")
	if lines := logged.Like("the disk is full"); len(lines) != 1 {
		t.Errorf("%d lines of log: %q", len(lines), lines)
	}
}

// TestStopOnAFullDisk ends a reclaim and an erasure while no table can be written: they end at once, and
// the store closes and has everything.
func TestStopOnAFullDisk(t *testing.T) {
	for name, begin := range map[string]func(ctx context.Context, s *Store) error{
		"reclaim": func(ctx context.Context, s *Store) error { return s.reclaim(ctx, 0, reclaimable{}) },
		"erase":   func(ctx context.Context, s *Store) error { return s.EraseObsolete(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, f := vfs.NewMem(), &faulty{}
				now := func() time.Time { return testEpoch }
				s := openTest(t, "store", Options{FS: errorfs.Wrap(mem, f), firstSequence: 1, Now: now})
				appendN(t, s, 10)
				f.set(func(op errorfs.Op) error {
					if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
						return syscall.ENOSPC
					}
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- begin(ctx, s) }()
				time.Sleep(time.Minute)
				cancel()
				time.Sleep(time.Second)
				if len(ended) == 0 {
					t.Error("it waits for room")
					f.fail.Store(nil)
				}
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				s = openTest(t, "store", Options{FS: mem, firstSequence: 1, Now: now})
				if got := s.LogStats().Records; got != 10 {
					t.Errorf("%d records", got)
				}
			})
		})
	}
}

func putMeta(b *Batch) { b.PutMeta("k", nil) }

// heldCommit begins a commit of what fill adds and returns when its sync hangs: until
// release is closed. done gets the commit's error.
func heldCommit(s *Store, f *faulty, fill func(*Batch)) (release chan struct{}, done chan error) {
	release, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.set(func(op errorfs.Op) error {
		if syncOf(op, ".log") {
			once.Do(func() { close(held) })
			<-release
		}
		return nil
	})
	done = make(chan error, 1)
	go func() {
		b := s.NewBatch()
		fill(b)
		done <- s.Commit(b)
	}()
	<-held
	return release, done
}

// TestAckDuringACommit acknowledges an entry while a commit is being synced: that sync
// does not cover it, the next one does.
func TestAckDuringACommit(t *testing.T) {
	mem := vfs.NewCrashableMem()
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(mem, f)})
	q := ensure(t, s, "a")
	appendN(t, s, 3, "a")
	items := read(t, q, 0, 10)
	release, done := heldCommit(s, f, putMeta)
	acked := q.Ack(items[0].Position)
	close(release)
	if err := errors.Join(acked, <-done, s.syncLazy()); err != nil {
		t.Fatal(err)
	}
	clone := openTest(t, "store", Options{firstSequence: 1, FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if st := ensure(t, clone, "a").Stats(); st.Length != 2 {
		t.Errorf("after a power cut: %+v", st)
	}
}

// TestQueuesAreAheadOfTheLog: a record that retention sees in the log is in the queues
// already, or its segment could be deleted as delivered.
func TestQueuesAreAheadOfTheLog(t *testing.T) {
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f)})
	q := ensure(t, s, "a")
	release, done := heldCommit(s, f, func(b *Batch) {
		b.Append(Record{Time: testEpoch}, []Route{{Sink: "a"}})
	})
	s.log.mu.Lock()
	close(release)
	eventually(t, "the queue has the entry while the log has not", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.total.Count == 1
	})
	s.log.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPebbleFatalf(t *testing.T) {
	s, err := Open("store", Options{firstSequence: 1, FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	engine.Logger{Log: s.opts.Logger, Limit: &engine.LogLimit{}, Fatal: s.fail}.Fatalf("broken: %d", 7)
	if err := s.Err(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "broken: 7") {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	s, err := Open("store", Options{firstSequence: 1, FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	q := ensure(t, s, "a")
	waiting := make(chan error, 1)
	go func() { waiting <- q.Wait(t.Context(), 0) }()
	b := s.NewBatch()
	b.PutMeta("k", nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	for what, err := range map[string]error{
		"wait":   <-waiting,
		"commit": s.Commit(b),
		"ack":    q.Ack(1),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Run(t.Context()); err != nil {
		t.Errorf("run: %v", err)
	}
}

// TestDirectoryThatWasNotSynced opens a store whose directory could not be made durable at first: the second attempt does
// that, and a commit survives the machine.
func TestDirectoryThatWasNotSynced(t *testing.T) {
	mem, f := vfs.NewCrashableMem(), &faulty{}
	o := Options{firstSequence: 1, FS: errorfs.Wrap(mem, f)}
	var syncs atomic.Int64
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync && syncs.Add(1) == 1 {
			return syscall.ENOSPC
		}
		return nil
	})
	if _, err := Open("data/store", o); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("open: %v", err)
	}
	s := openTest(t, "data/store", o)
	appendN(t, s, 1)
	s = openTest(t, "data/store", Options{firstSequence: 1, FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if n := s.LogStats().Records; n != 1 {
		t.Errorf("%d records", n)
	}
}

// TestOutOfDescriptors takes the file descriptors away where the store opens a file: it
// goes on or fails with that reason, and once there are some it has every commit.
func TestOutOfDescriptors(t *testing.T) {
	const owner = "the owner's token" // which may wait
	for name, opens := range map[string]func(errorfs.Op) bool{
		"a table to write": func(op errorfs.Op) bool { return op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") },
		"a table to read":  func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, ".sst") },
		"a write-ahead log": func(op errorfs.Op) bool {
			return (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite) && strings.HasSuffix(op.Path, ".log")
		},
		"the owner's token": func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, "OWNER") },
		"any file and folder": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite || op.Kind == errorfs.OpOpen || op.Kind == errorfs.OpOpenDir
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			f := &faulty{}
			options := Options{firstSequence: 1, FS: errorfs.Wrap(mem, f), MaxBytes: smallTables}
			s := openTest(t, "store", options)
			ensure(t, s, "a")
			payload, committed := noise(8<<10), 0
			commit := func(n int) (err error) {
				for range n {
					b := s.NewBatch()
					b.Append(Record{Time: testEpoch, Payload: payload}, []Route{{Sink: "a"}})
					if err = s.Commit(b); err != nil {
						return err
					}
					committed++
				}
				return nil
			}
			if err := errors.Join(commit(100), flush(s)); err != nil { // there are tables
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openTest(t, "store", options)
			q := ensure(t, s, "a")
			var refused atomic.Int64
			f.set(func(op errorfs.Op) error {
				if opens(op) {
					refused.Add(1)
					return syscall.EMFILE
				}
				return nil
			})
			err := commit(100)
			if err == nil {
				_, err = q.Read(0, 1000, 1<<30)
			}
			eventually(t, "a file is refused", func() bool { return refused.Load() > 0 })
			f.set(func(errorfs.Op) error { return nil })
			if err != nil && !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrUnreadable) {
				t.Errorf("the error is %v", err)
			}
			if failed := s.Err(); failed != nil && (!errors.Is(failed, syscall.EMFILE) || name == owner) {
				t.Errorf("the store failed: %v", failed)
			}
			if s.Err() == nil {
				if err := commit(10); err != nil && !errors.Is(err, syscall.EMFILE) {
					t.Error(err)
				}
			}
			// The next process, after a power cut.
			options.FS = mem.CrashClone(vfs.CrashCloneCfg{})
			report, err := inspect.CheckFS(options.FS, "store")
			if err != nil || !report.OK() {
				t.Errorf("check: %v, %q", err, report.Problems)
			}
			s = openTest(t, "store", options)
			items := read(t, ensure(t, s, "a"), 0, 1000)
			if len(items) < committed || len(items) > committed+1 {
				t.Errorf("%d entries after %d commits", len(items), committed)
			}
			if err := commit(1); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestListsOfAnOpening lets each listing of the directory fail in turn when a store is opened: a
// new one, and one with a write-ahead log to replay. Once there is a new log, Pebble's Open does
// not fail: it would leave the goroutines of a flush behind.
func TestListsOfAnOpening(t *testing.T) {
	killed := vfs.NewCrashableMem()
	s := openTest(t, "store", Options{firstSequence: 1, FS: killed})
	ensure(t, s, "a")
	appendN(t, s, 3, "a")
	for name, mem := range map[string]*vfs.MemFS{"new": vfs.NewCrashableMem(), "killed": killed} {
		t.Run(name, func(t *testing.T) {
			reached, failed := true, 0
			for n := 1; reached; n++ {
				fs := mem.CrashClone(vfs.CrashCloneCfg{})
				f := &faulty{}
				var lists, logs atomic.Int64
				f.set(func(op errorfs.Op) error {
					switch {
					case op.Kind == errorfs.OpCreate && strings.HasPrefix(op.Path, "store/db/") && strings.HasSuffix(op.Path, ".log"):
						logs.Add(1)
					case op.Kind == errorfs.OpList && op.Path == "store/db" && lists.Add(1) == int64(n):
						return syscall.EMFILE
					}
					return nil
				})
				s, err := Open("store", Options{FS: errorfs.Wrap(fs, f)})
				if err == nil {
					err = s.Close()
				}
				if reached = lists.Load() >= int64(n); !reached {
					if err != nil {
						t.Error(err)
					}
					break
				}
				late := logs.Load() > 0
				if late {
					failed++
				}
				if !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrFailed) != late || errors.Is(err, ErrDamaged) {
					t.Errorf("listing %d: %v", n, err)
				}
				if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
					t.Errorf("listing %d: check: %v %v", n, err, report.Problems)
				}
			}
			if failed == 0 {
				t.Error("no listing was late")
			}
		})
	}
}

// TestStopBehindAStall: no table can be written, and Pebble has acknowledgements wait as its memtables are full. They end when
// the process is to end, and the store closes.
func TestStopBehindAStall(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f), MaxBytes: smallTables})
	q := ensure(t, s, "a")
	f.set(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	s.StopAppends()
	if err := s.Err(); err != nil {
		t.Fatalf("no write waits: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if err := q.PutNote(noise(64 << 10)); err != nil {
				ended <- err
				return
			}
		}
	}()
	eventually(t, "the store ends", func() bool {
		s.StopAppends() // some writes still have room
		return s.Err() != nil
	})
	if err := <-ended; !errors.Is(err, ErrFailed) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestStopOfALeaderBehindAStall: so does a store with a journal that answers.
func TestStopOfALeaderBehindAStall(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	s := openTest(t, "store", Options{
		firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f), MaxBytes: smallTables, Journal: (&testJournal{}).writer(),
	})
	f.set(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() {
		for {
			b := s.NewBatch()
			b.PutMeta("note", noise(64<<10))
			if err := s.Commit(b); err != nil {
				ended <- err
				return
			}
		}
	}()
	eventually(t, "a commit waits", func() bool { return s.Health().CommitStuck > time.Second })
	s.StopAppends()
	if err := <-ended; !errors.Is(err, ErrFailed) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCloseOfALeaderBehindAStall: so does the close of one where only acknowledgements wait, for which nothing else does.
func TestCloseOfALeaderBehindAStall(t *testing.T) {
	t.Parallel()
	f, j := &faulty{}, &testJournal{}
	s, err := Open("store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewMem(), f), MaxBytes: smallTables, Journal: j.writer()})
	if err != nil {
		t.Fatal(err)
	}
	q := ensure(t, s, "a")
	f.set(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	var at Position
	var since time.Time
	eventually(t, "an entry waits for room", func() bool {
		if now := s.JournalPosition(); now != at || since.IsZero() {
			at, since = now, time.Now()
		}
		if err := q.PutNote(noise(64 << 10)); err != nil {
			t.Fatal(err)
		}
		return time.Since(since) > 2*idleAfter
	})
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	eventually(t, "the store closes", func() bool { return len(closed) > 0 })
	if err := errors.Join(<-closed, s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.Err(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestSyncOfAFailedLog: a directory whose write-ahead log cannot be written is not durable: the journal is trimmed by that.
func TestSyncOfAFailedLog(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	s, _ := openJournaled(t, errorfs.Wrap(vfs.NewMem(), f), &testJournal{})
	f.set(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && op.Kind == errorfs.OpFileWrite {
			return syscall.EIO
		}
		return nil
	})
	if at, err := s.SyncJournal(); !errors.Is(err, ErrFailed) {
		t.Errorf("the leader is durable up to %+v, %v", at, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadingBesideACommit: while a commit waits for its sync, its entries can be read, and so can their partition and the record that they name.
func TestReadingBesideACommit(t *testing.T) {
	f := &faulty{}
	s := openTest(t, "store", Options{firstSequence: 1, FS: errorfs.Wrap(vfs.NewCrashableMem(), f)})
	appendN(t, s, 3)
	syncing, until := make(chan struct{}), make(chan struct{})
	var syncs atomic.Int64
	f.set(func(op errorfs.Op) error {
		if syncOf(op, ".log") && syncs.Add(1) == 1 {
			close(syncing)
			<-until
		}
		return nil
	})
	b := s.NewBatch()
	sequence := b.Append(Record{Time: testEpoch, Payload: []byte("a record")}, nil)
	b.PutState("new", "key", []byte("a state"))
	committed := make(chan error)
	go func() { committed <- s.Commit(b) }()
	<-syncing
	if parts := s.Partitions(); !slices.Equal(parts, []string{"new"}) {
		t.Errorf("partitions %q", parts)
	}
	if value, ok, err := s.State("new", "key", nil); string(value) != "a state" || !ok || err != nil {
		t.Errorf("state %q, %v", value, err)
	}
	if item, ok, err := s.ReadRecord(sequence); string(item.Payload) != "a record" || !ok || err != nil {
		t.Errorf("record %q, %v", item.Payload, err)
	}
	if last := s.LogStats().Last; last >= sequence {
		t.Errorf("the log ends at %d: its end is not durable", last)
	}
	close(until)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
}
