package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/waittest"
)

// smallTables makes memtables and tables of 256 KiB, and ingest waits at 12 tables
// that wait for a compaction.
const smallTables = 16 << 20

// commitOne commits a record for sink a with a ledger entry.
func commitOne(t *testing.T, s *Store, name string, payload []byte) {
	t.Helper()
	b := s.NewBatch()
	b.Append(Record{Time: testEpoch, Payload: append([]byte("record-"+name), payload...)}, []Route{{Sink: "a"}})
	b.PutState("objects", name, append([]byte("state-"+name), payload...))
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// runStore runs a store until the end of the test.
func runStore(t *testing.T, s *Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// badDisk cannot read some sectors of its tables.
type badDisk struct {
	vfs.FS

	mu  sync.Mutex
	bad map[string][]int64 // guarded by mu; by path: where the sectors begin
}

const sector = 4 << 10

// spoil makes a sector with a key in it unreadable; it reports whether there is one.
func (d *badDisk) spoil(t *testing.T, key []byte) bool {
	t.Helper()
	for _, name := range dataFiles(t, d.FS, ".sst") {
		if at := bytes.Index(content(t, d.FS, name), key); at >= 0 {
			d.mu.Lock()
			defer d.mu.Unlock()
			path := "store/db/" + name
			d.bad[path] = append(d.bad[path], int64(at/sector*sector))
			return true
		}
	}
	return false
}

// readable is how much of n bytes at an offset can be read.
func (d *badDisk) readable(path string, offset int64, n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range d.bad[path] {
		if offset < at+sector && at < offset+int64(n) {
			n = int(max(at-offset, 0))
		}
	}
	return n
}

func (d *badDisk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &badFile{File: f, disk: d, path: name}, nil
}

// Rename gives a name other sectors.
func (d *badDisk) Rename(from, to string) error {
	d.mu.Lock()
	delete(d.bad, to)
	d.mu.Unlock()
	return d.FS.Rename(from, to)
}

type badFile struct {
	vfs.File

	disk *badDisk
	path string
	at   int64 // of Read
}

func (f *badFile) ReadAt(p []byte, offset int64) (int, error) {
	n := f.disk.readable(f.path, offset, len(p))
	if m, err := f.File.ReadAt(p[:n], offset); err != nil || n == len(p) {
		return m, err
	}
	return n, syscall.EIO
}

func (f *badFile) Read(p []byte) (int, error) {
	n := f.disk.readable(f.path, f.at, len(p))
	if n == 0 && len(p) > 0 {
		return 0, syscall.EIO
	}
	n, err := f.File.Read(p[:n])
	f.at += int64(n)
	return n, err
}

// TestWritesGoOnOverDamage damages blocks of records and of the ledger, and writes so
// much that compactions have to take in the damaged tables.
func TestWritesGoOnOverDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, d *badDisk, key []byte) bool{
		"flipped bytes": func(t *testing.T, d *badDisk, key []byte) bool { return damageKeys(t, d.FS, key, 0) },
		"bad sectors":   func(t *testing.T, d *badDisk, key []byte) bool { return d.spoil(t, key) },
	} {
		t.Run(name, func(t *testing.T) { writeOverDamage(t, damage) })
	}
}

func writeOverDamage(t *testing.T, damage func(*testing.T, *badDisk, []byte) bool) {
	t.Helper()
	fs := &badDisk{FS: vfs.NewMem(), bad: map[string][]int64{}}
	const n, more = 400, 4000
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
	payload := noise(2000)
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
	ensure(t, s, "a")
	for i := range n {
		commitOne(t, s, name(i), payload)
	}
	if err := flush(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{40, 41, 150, 300} {
		for _, what := range []string{"record-", "state-"} {
			if !damage(t, fs, []byte(what+name(i))) {
				t.Fatalf("%s%s is nowhere", what, name(i))
			}
		}
	}
	var logged testkit.Log
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	stop := runStore(t, s)
	q := ensure(t, s, "a")
	delivered, after := 0, uint64(0)
	for i := range more {
		commitOne(t, s, name(i%n), payload)
		if i%50 > 0 {
			continue
		}
		for items := read(t, q, after, 64); len(items) > 0; items = read(t, q, after, 64) {
			for _, item := range items {
				after = item.Position
				delivered++
				if err := q.Ack(after); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	compactAll(t, s)
	stop()
	if failed := s.db.Metrics().Compact.FailedCount; failed == 0 || failed > 20 {
		t.Errorf("%d failed compactions", failed)
	}
	more1, lost := drainDamagedOf(t, s, n+more)
	if delivered += more1; lost == 0 || lost > 40 || delivered+lost != n+more {
		t.Errorf("%d delivered, %d lost of %d", delivered, lost, n+more)
	}
	if lines := logged.Like("removed a damaged block"); len(lines) == 0 || len(lines) > 24 { // three blocks a sector
		t.Errorf("%d lines of log: %q", len(lines), lines)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := inspect.CheckFS(fs, "store")
	if err != nil || len(report.Damaged) > 0 {
		t.Errorf("check: %v, %v", err, report.Damaged)
	}
	for _, p := range report.Problems { // the log is counted with its lost records
		if !strings.Contains(p, "counter of the log ") {
			t.Error(p)
		}
	}
}

// compactAll compacts a running store until no damage is left in it.
func compactAll(t *testing.T, s *Store) {
	t.Helper()
	for tries := 0; ; tries++ {
		err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		if err == nil {
			return
		}
		if !pebble.IsCorruptionError(err) || tries > 20 {
			t.Fatal(err)
		}
		for _, table := s.damaged.next(); table != nil && t.Context().Err() == nil; _, table = s.damaged.next() {
			select {
			case <-table.repaired:
			case <-time.After(compactionPause):
			}
		}
	}
}

// settled waits until no table is written or removed.
func settled(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "nothing is compacted", func() bool {
		m := s.db.Metrics()
		return m.Compact.NumInProgress == 0 && m.Flush.NumInProgress == 0 && m.Table.ObsoleteCount+m.Table.ZombieCount == 0
	})
}

// reopened closes a store and opens it again; a check finds nothing but the counter
// of the log wrong.
func reopened(t *testing.T, s *Store, fs vfs.FS) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := inspect.CheckFS(fs, "store")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Problems {
		if !strings.Contains(p, "counter of the log ") && !strings.Contains(p, "without a readable record") {
			t.Error(p)
		}
	}
	return openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
}

// TestRepairOfVitalBlocks damages every block of a small store in turn, the one of the
// counters and names included, which memory knows, while the store runs. It opens
// again, and all entries are delivered or accounted for.
func TestRepairOfVitalBlocks(t *testing.T) {
	const n = 40
	for nth := 0; ; nth++ {
		fs := vfs.NewMem()
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		q := ensure(t, s, "a")
		ensure(t, s, "b")
		for i := range n {
			commitOne(t, s, fmt.Sprintf("object-%05d|", i), noise(300))
		}
		for _, item := range read(t, q, 0, 10) {
			if item.Position%2 == 0 {
				if err := q.Ack(item.Position); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := flush(s); err != nil {
			t.Fatal(err)
		}
		settled(t, s)
		stop := runStore(t, s)
		ok := damageBlock(t, fs, nth)
		commitOne(t, s, "object-00000|", noise(300)) // so that a compaction has something to do
		length := q.Stats().Length
		compactAll(t, s)
		stop()
		if !ok {
			if nth < 4 {
				t.Errorf("only %d blocks", nth)
			}
			return
		}
		s = reopened(t, s, fs)
		if names := s.Sinks(); len(names) != 2 {
			t.Fatalf("block %d: sinks %q", nth, names)
		}
		if q, _ = s.Queue("a"); q.Stats().Length > length {
			t.Errorf("block %d: %d entries, there were %d", nth, q.Stats().Length, length)
		}
		delivered, lost := drainDamagedOf(t, s, n+1)
		// One letter may stand for all entries that were not in flight.
		if delivered+lost > int(length) || delivered < 5 || (delivered < int(length)-20 && lost == 0) {
			t.Errorf("block %d: %d delivered, %d letters of %d", nth, delivered, lost, length)
		}
		b := s.NewBatch()
		if got := b.Append(Record{Time: testEpoch, Payload: []byte("next")}, []Route{{Sink: "a"}}); got <= n {
			t.Errorf("block %d: sequence %d again", nth, got)
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostAcknowledgements damages each block of a table with the tombstones of
// acknowledged entries in turn, over a table that has the entries. None comes back.
func TestLostAcknowledgements(t *testing.T) {
	const n = 40
	for nth := 0; ; nth++ {
		fs := vfs.NewMem()
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
		q := ensure(t, s, "a")
		appendN(t, s, n, "a")
		if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
			t.Fatal(err)
		}
		below := dataFiles(t, fs, ".sst")
		acked := map[uint64]bool{}
		for _, item := range read(t, q, 0, n/2) {
			if item.Position%2 == 0 {
				acked[item.Position] = true
				if err := q.Ack(item.Position); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := flush(s); err != nil {
			t.Fatal(err)
		}
		tables := slices.DeleteFunc(dataFiles(t, fs, ".sst"), func(name string) bool { return slices.Contains(below, name) })
		ok := damageBlockOf(t, fs, nth, tables...)
		stop := runStore(t, s)
		compactAll(t, s)
		stop()
		s = reopened(t, s, fs)
		if q, err := s.Queue("a"); err != nil || q.Stats().Length != int64(n-len(acked)) {
			t.Errorf("block %d: %+v, %v", nth, q.Stats(), err)
		} else {
			for _, item := range read(t, q, 0, 2*n) {
				if acked[item.Position] {
					t.Errorf("block %d: %d was acknowledged and comes again", nth, item.Position)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if !ok {
			if nth == 0 {
				t.Error("nothing is damaged")
			}
			return
		}
	}
}

// TestCarriedEntriesInFlight damages each block of a queue whose entries carry their payloads, of which a half is in flight, in
// turn. The repair accounts for all of them: each is read again, or has a dead letter.
func TestCarriedEntriesInFlight(t *testing.T) {
	const n = 9
	losses := 0
	for nth := 0; ; nth++ {
		fs := vfs.NewMem()
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
		q := ensure(t, s, "a")
		b := s.NewBatch()
		b.PutState("objects", "a", noise(100))
		for i := range n {
			b.Enqueue(Record{Time: testEpoch, Payload: fmt.Appendf(nil, "carried-%02d|%s", i, noise(1500))}, uint64(1000+i), Route{Sink: "a"})
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		if got := read(t, q, 0, n/2); len(got) != n/2 {
			t.Fatal(len(got))
		}
		if err := flush(s); err != nil {
			t.Fatal(err)
		}
		settled(t, s)
		if !damageBlock(t, fs, nth) {
			break
		}
		stop := runStore(t, s)
		commitOne(t, s, "object", noise(300))
		compactAll(t, s)
		stop()
		for _, when := range []string{"running", "reopened"} {
			if when == "reopened" {
				s = reopened(t, s, fs)
				q = ensure(t, s, "a")
			}
			entries := len(read(t, q, 0, 2*n))
			letters, err := q.DeadLetters(0, n)
			if err != nil {
				t.Fatal(err)
			}
			lost := 0
			for _, l := range letters {
				missing := 1
				_, _ = fmt.Sscanf(l.Reason, ReasonUnreadable+": %d of the queue", &missing)
				lost += missing
			}
			if entries+lost != n+1 || q.Stats().Length != int64(entries) {
				t.Errorf("block %d, %s: %d entries are read and %d lost of %d; %+v", nth, when, entries, lost, n+1, q.Stats())
			}
			losses += lost
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if losses == 0 {
		t.Error("nothing is damaged")
	}
}

// TestRepairCutShort cuts the power at each write of a repair, also of one before which writes are blocked: the next start
// finds the damage, or what is missing, and counts it.
func TestRepairCutShort(t *testing.T) {
	for _, blocked := range []bool{false, true} {
		t.Run(fmt.Sprint("blocked ", blocked), func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			n := damagedQueue(t, mem)
			const states = 300
			stateName := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
			damageStates(t, mem, states, stateName)
			if !damageKeys(t, mem, []byte("0123456789"), n/2) {
				t.Fatal("no record is damaged")
			}
			f := &faulty{}
			s := openTest(t, "store", Options{FS: errorfs.Wrap(mem, f), firstSequence: 1})
			names := dataFiles(t, mem, ".sst")
			var mu sync.Mutex
			var crashed []*vfs.MemFS // of which mu guards the slice
			f.set(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasPrefix(op.Path, "store/db") {
					mu.Lock()
					defer mu.Unlock()
					crashed = append(crashed, mem.CrashClone(vfs.CrashCloneCfg{}),
						mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}))
				}
				return nil
			})
			for _, name := range names {
				patches := patchesOf(t, s, name)
				if len(patches) == 0 {
					continue
				}
				for _, p := range patches {
					s.damaged.uncounted = append(s.damaged.uncounted, p.Lost)
				}
				if err := errors.Join(s.removeBlocks("store/db/"+name, patches, blocked), s.recountLost(), s.syncLazy()); err != nil {
					t.Fatal(err)
				}
			}
			f.fail.Store(nil)
			want := ensure(t, s, "a").Stats()
			if want.Length == int64(n) || want.DeadLetters != 1 || len(crashed) < 10 {
				t.Fatalf("%+v, %d writes", want, len(crashed)/2)
			}
			wantStates, wantRecords := unreadableStates(t, s, states, stateName), readableRecords(t, s)
			for i, fs := range crashed {
				if raceEnabled && i/2%8 != 0 {
					continue // all of them without -race
				}
				s, err := Open("store", Options{FS: fs, firstSequence: 1})
				if err != nil {
					t.Fatalf("write %d: %v", i/2, err)
				}
				if err := s.resumeRepair(); err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					if err := s.repairTable("store/db/" + name); err != nil {
						t.Fatal(err)
					}
				}
				if got := ensure(t, s, "a").Stats(); got.Length != want.Length || got.DeadLetters != 1 {
					t.Errorf("write %d: %+v", i/2, got)
				}
				if _, noted, err := s.get(layout.RepairKey()); noted || err != nil {
					t.Errorf("write %d: the repair is not finished, %v", i/2, err)
				}
				if lost := unreadableStates(t, s, states, stateName); !slices.Equal(lost, wantStates) {
					t.Errorf("write %d: %d states are lost, not %d", i/2, len(lost), len(wantStates))
				}
				if records := readableRecords(t, s); records != wantRecords {
					t.Errorf("write %d: %d records can be read, not %d", i/2, records, wantRecords)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// readableRecords returns how many records of a log the readers of it get, which get one that is unreadable, too.
func readableRecords(t *testing.T, s *Store) (readable int) {
	t.Helper()
	lost := 0
	items, err := s.ReadLog(0, 1000)
	for ; len(items) > 0 && err == nil; items, err = s.ReadLog(items[len(items)-1].Position, 1000) {
		for _, item := range items {
			if item.Unreadable {
				lost++
			} else {
				readable++
			}
		}
	}
	if err != nil || lost != 1 {
		t.Errorf("%d unreadable records, %v", lost, err)
	}
	return readable
}

// patchesOf returns the patches of a table.
func patchesOf(t *testing.T, s *Store, name string) []salvage.Patch {
	t.Helper()
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range slices.Concat(levels...) {
		if name == table.BackingSSTNum.String()+".sst" {
			patches, err := salvage.FindPatches(content(t, s.opts.FS, name), table.Smallest, table.Largest)
			if err != nil {
				t.Fatal(err)
			}
			return patches
		}
	}
	return nil
}

// TestRepairOnAFullDisk has the disk full while a table is repaired: it is repaired once there is room.
func TestRepairOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		n := damagedQueue(t, mem)
		f := &faulty{}
		var refused atomic.Int64
		now := func() time.Time { return testEpoch }
		s := openTest(t, "store", Options{FS: errorfs.Wrap(mem, f), firstSequence: 1, Now: now})
		f.set(func(op errorfs.Op) error {
			if op.Kind != errorfs.OpFileWrite || !strings.HasSuffix(op.Path, ".dbtmp") {
				return nil
			}
			refused.Add(1)
			return syscall.ENOSPC
		})
		for _, name := range dataFiles(t, mem, ".sst") {
			s.damaged.add(&pebble.DataCorruptionInfo{Path: "store/db/" + name})
		}
		stop := runStore(t, s)
		defer stop()
		time.Sleep(time.Minute)
		if n := refused.Load(); n == 0 || n > 10 {
			t.Errorf("%d attempts in a minute", n)
		}
		f.fail.Store(nil)
		time.Sleep(time.Minute)
		if err := s.damaged.cause(); err != nil {
			t.Errorf("with room: %v", err)
		}
		if delivered, letters := drainDamagedOf(t, s, n); delivered < n-1000 || letters != 1 {
			t.Errorf("%d delivered, %d letters", delivered, letters)
		}
	})
}

// TestRepairIsRepeated has a repair of two blocks fail once, while it writes the table that takes the place of the damaged one: what was in
// the blocks is counted and logged once.
func TestRepairIsRepeated(t *testing.T) {
	for name, fails := range map[string]errorfs.OpKind{"at the write": errorfs.OpFileWrite, "at the sync": errorfs.OpFileSync} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := vfs.NewMem()
				n := damagedQueue(t, mem)
				if !damageKeys(t, mem, append(layout.SinkPrefix(layout.PrefixQueue, 1), 0), 60) {
					t.Fatal("no second block of the queue")
				}
				tables := make(map[string]bool)
				for _, name := range dataFiles(t, mem, ".sst") {
					tables["store/db/"+name] = true
				}
				f := &faulty{}
				var failed atomic.Bool
				now := func() time.Time { return testEpoch }
				var logged testkit.Log
				s := openTest(t, "store", Options{FS: errorfs.Wrap(mem, f), firstSequence: 1, Now: now, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
				f.set(func(op errorfs.Op) error {
					if op.Kind == fails && strings.HasSuffix(op.Path, ".dbtmp") && !failed.Swap(true) {
						return syscall.EIO
					}
					return nil
				})
				for path := range tables {
					s.damaged.add(&pebble.DataCorruptionInfo{Path: path})
				}
				stop := runStore(t, s)
				defer stop()
				time.Sleep(time.Minute)
				if !failed.Load() {
					t.Fatal("nothing has failed")
				}
				if _, noted, err := s.get(layout.RepairKey()); err != nil || noted || s.damaged.cause() != nil {
					t.Errorf("the repair is not finished: note %t, %v, %v", noted, err, s.damaged.cause())
				}
				if lines := logged.Like("removed a damaged block"); len(lines) != 2 {
					t.Errorf("%d blocks are logged: %q", len(lines), lines)
				}
				q := ensure(t, s, "a")
				if got, there := q.Stats(), len(read(t, q, 0, n)); got.Length != int64(there) || got.DeadLetters != 1 {
					t.Errorf("%d entries are there, %+v", there, got)
				}
			})
		})
	}
}

// TestDamagedTableIsNotReadInALoop asks for compactions of a table that cannot be
// repaired: each try but the first waits.
func TestDamagedTableIsNotReadInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		now := func() time.Time { return testEpoch }
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1, Now: now})
		ensure(t, s, "a")
		compact := func() error { return s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false) }
		began := time.Now()
		for damaged := false; !damaged; { // Pebble may have the index in its cache
			for range 2 { // tables that overlap
				appendN(t, s, 40, "a")
				if err := flush(s); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			tables := dataFiles(t, fs, ".sst")
			damageIndex(t, fs, tables[len(tables)-1])
			began = time.Now()
			damaged = compact() != nil
		}
		const tries = 4
		for range tries - 1 {
			if err := compact(); !pebble.IsCorruptionError(err) {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < (tries-1)*compactionPause {
			t.Errorf("%d tries within %v", tries, took)
		}
	})
}

// TestRepairOfAnIndex damages the index of a table in which one queue ends and the next begins: nothing is lost, nor what
// is written after that.
func TestRepairOfAnIndex(t *testing.T) {
	fs := vfs.NewMem()
	open := func() *Store { return openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables}) }
	s := open()
	ensure(t, s, "a")
	ensure(t, s, "b")
	const events = 20_000
	for range events / 1000 {
		appendN(t, s, 1000, "a", "b")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	compactAll(t, s)
	settled(t, s)
	levels, err := s.db.SSTables()
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	a, b := layout.SinkPrefix(layout.PrefixQueue, 1), layout.SinkPrefix(layout.PrefixQueue, 2)
	damaged := 0
	for _, table := range slices.Concat(levels...) {
		if low, high := table.Smallest.UserKey, table.Largest.UserKey; bytes.Compare(a, low) < 0 && bytes.Compare(low, b) < 0 && bytes.Compare(b, high) < 0 {
			damaged += flipIn(t, fs, table.BackingSSTNum.String()+".sst", func(l *sstable.Layout) []block.Handle { return l.Index })
		}
	}
	if damaged == 0 {
		t.Fatal("no table")
	}
	s = open()
	t.Cleanup(runStore(t, s))
	eventually(t, "the store runs", s.running.Load)
	appendN(t, s, 100, "a")
	for sink, want := range map[string]int{"a": events + 100, "b": events} {
		q, got := ensure(t, s, sink), 0
		for items := read(t, q, 0, 1000); len(items) > 0; items = read(t, q, items[len(items)-1].Position, 1000) {
			got += len(items)
		}
		if st := q.Stats(); got != want || st.Length != int64(want) || st.DeadLetters != 0 {
			t.Errorf("%d of %d entries of %s: %+v", got, want, sink, st)
		}
	}
}

// TestRepairOfAFilter damages the filters of all tables, which are asked for single keys.
func TestRepairOfAFilter(t *testing.T) {
	fs := vfs.NewMem()
	open := func() *Store { return openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables}) }
	s := open()
	ensure(t, s, "a")
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
	const states = 3000
	for range 3 { // the last level has no filters: more than it takes at once
		for i := range states {
			commitOne(t, s, name(i), noise(1000))
		}
		settled(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for _, table := range dataFiles(t, fs, ".sst") {
		damaged += flipIn(t, fs, table, func(l *sstable.Layout) (handles []block.Handle) {
			for _, f := range l.Filter {
				handles = append(handles, f.Handle)
			}
			return handles
		})
	}
	if damaged == 0 {
		t.Fatal("no filter")
	}
	s = open()
	t.Cleanup(runStore(t, s))
	eventually(t, "the states can be read", func() bool {
		for i := range states {
			if _, ok, err := s.State("objects", name(i), nil); !ok || err != nil {
				return false
			}
		}
		return true
	})
	if partitions, _ := s.LostStates(); len(partitions) > 0 {
		t.Errorf("states of %q count as lost", partitions)
	}
}

// flipIn flips a byte of blocks of a table, and returns their number.
func flipIn(t *testing.T, fs vfs.FS, name string, of func(l *sstable.Layout) []block.Handle) (n int) {
	t.Helper()
	b := content(t, fs, name)
	if err := salvage.WithTableContent(b, func(r *sstable.Reader) error {
		l, err := r.Layout()
		if err == nil {
			for _, h := range of(l) {
				b[h.Offset+10] ^= 0x55
				n++
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	patchFile(t, fs, name, b)
	return n
}

// damageBlock flips a byte in the nth data block of all tables.
func damageBlock(t *testing.T, fs vfs.FS, nth int) bool {
	t.Helper()
	return damageBlockOf(t, fs, nth, dataFiles(t, fs, ".sst")...)
}

func damageBlockOf(t *testing.T, fs vfs.FS, nth int, tables ...string) bool {
	t.Helper()
	for _, name := range tables {
		b := content(t, fs, name)
		var blocks []block.Handle
		if err := salvage.WithTableContent(b, func(r *sstable.Reader) error {
			l, err := r.Layout()
			if err == nil {
				for i := range l.Data {
					blocks = append(blocks, l.Data[i].Handle)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if nth < len(blocks) {
			b[blocks[nth].Offset+blocks[nth].Length/2] ^= 0x55
			patchFile(t, fs, name, b)
			return true
		}
		nth -= len(blocks)
	}
	return false
}

// patchFile overwrites a file that a store may have open.
func patchFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.OpenReadWrite("store/db/"+name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestInterruptedRepair ends the process after each step of a repair. The next one
// finishes it, also if it delivers what is readable before.
func TestInterruptedRepair(t *testing.T) {
	for _, test := range []struct{ overwritten, deliveredFirst bool }{{false, false}, {true, false}, {true, true}} {
		fs := vfs.NewMem()
		n := damagedQueue(t, fs)
		s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
		err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		if err != nil && !pebble.IsCorruptionError(err) {
			t.Fatal(err)
		}
		s.damaged.report(err)
		path, table := s.damaged.next()
		if table == nil { // the tables lie where nothing has to be compacted
			path = "store/db/" + dataFiles(t, fs, ".sst")[0]
		}
		b, err := engine.ReadFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		patches, err := salvage.FindPatches(b, pebble.InternalKey{UserKey: []byte{0}}, pebble.InternalKey{UserKey: []byte{0xff}})
		if err != nil || len(patches) == 0 {
			t.Fatalf("%d patches, %v", len(patches), err)
		}
		s.damaged.uncounted = []layout.Range{patches[0].Lost}
		if err := s.restate(s.damaged.uncounted); err != nil {
			t.Fatal(err)
		}
		if test.overwritten {
			if err := s.overwrite(path, patches); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, "store", Options{FS: fs, firstSequence: 1})
		q := ensure(t, s, "a")
		early := 0
		for test.deliveredFirst {
			items := read(t, q, 0, 64)
			if len(items) == 0 {
				break
			}
			early += len(items)
			var positions []uint64
			for _, item := range items {
				positions = append(positions, item.Position)
			}
			if err := q.Ack(positions...); err != nil {
				t.Fatal(err)
			}
		}
		stop := runStore(t, s)
		compactAll(t, s)
		eventually(t, "the repair is finished", func() bool {
			_, noted, err := s.get(layout.RepairKey())
			return err == nil && !noted
		})
		stop()
		if test.overwritten && q.Stats().DeadLetters != 1 {
			t.Errorf("stats %+v", q.Stats())
		}
		letters, err := q.DeadLetters(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range letters {
			var missing, from, to uint64
			if n, _ := fmt.Sscanf(l.Reason, ReasonUnreadable+": %d of the queue entries %d to %d are lost", &missing, &from, &to); n == 3 && (missing == 0 || missing > to-from+1 || from > to) {
				t.Errorf("%+v: reason %q", test, l.Reason)
			}
		}
		delivered, lostLetters := drainDamagedOf(t, s, n)
		if delivered += early; delivered < n-1000 || delivered == n || lostLetters != 1 {
			t.Errorf("%d delivered, %d letters", delivered, lostLetters)
		}
		reopened(t, s, fs)
	}
}

// TestScanOverADamagedIndex scans the ledger where the index of a table is damaged that
// newer tables overlap: each try to read it is expensive, so it is passed over as a whole.
func TestScanOverADamagedIndex(t *testing.T) {
	pristine := vfs.NewMem()
	payload := noise(2000)
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
	s := openTest(t, "store", Options{FS: pristine, firstSequence: 1, MaxBytes: smallTables})
	ensure(t, s, "a")
	for i := range 400 {
		commitOne(t, s, name(i), payload)
	}
	if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
		t.Fatal(err)
	}
	levels, err := s.db.SSTables()
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	// A table with states alone: without others the store cannot be opened.
	tables := slices.DeleteFunc(slices.Concat(levels...), func(i pebble.SSTableInfo) bool { return i.Smallest.UserKey[0] != layout.PrefixState })
	if len(tables) < 2 {
		t.Fatalf("%d tables of states", len(tables))
	}
	table := tables[0].BackingSSTNum.String() + ".sst"
	fs := copyFS(t, pristine)
	damageIndex(t, fs, table)
	var reads atomic.Int64
	counted := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, table) {
			reads.Add(1)
		}
		return nil
	}))
	s = openTest(t, "store", Options{FS: counted, firstSequence: 1, MaxBytes: smallTables})
	for i := 0; i < 400; i += 10 {
		commitOne(t, s, name(i), payload)
	}
	if err := flush(s); err != nil {
		t.Fatal(err)
	}
	reads.Store(0)
	seen := 0
	err = s.ScanState("objects", "", func(string, []byte) error {
		seen++
		return nil
	})
	if !errors.Is(err, ErrUnreadable) || seen < 200 {
		t.Errorf("%d states of 400, %v", seen, err)
	}
	if n := reads.Load(); n > 30 {
		t.Errorf("the table was read %d times", n)
	}
}

// TestWritesResumeAfterRepair lets level 0 grow over a damaged table until writes stop,
// and repairs the table then. Writes resume long before Pebble compacts by itself.
func TestWritesResumeAfterRepair(t *testing.T) {
	fs := vfs.NewMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
	ensure(t, s, "a")
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i%400) }
	payload := noise(2000)
	for i := range 400 {
		commitOne(t, s, name(i), payload)
	}
	if err := errors.Join(flush(s), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false), s.Close()); err != nil {
		t.Fatal(err)
	}
	if !damageKeys(t, fs, []byte("state-"+name(40)), 0) {
		t.Fatal("nothing is damaged")
	}
	s = openTest(t, "store", Options{FS: fs, firstSequence: 1, MaxBytes: smallTables})
	var written atomic.Int64
	var stop atomic.Bool
	var writer sync.WaitGroup
	large := noise(20_000)
	writer.Go(func() {
		for i := 0; !stop.Load(); i++ {
			commitOne(t, s, name(i), large)
			written.Add(1)
		}
	})
	still, last := 0, int64(0)
	stopped := func() bool {
		n := written.Load()
		if still++; n != last || int(s.db.Metrics().Levels[0].Sublevels) < engine.Level0StopWrites(smallTables) {
			still, last = 0, n
		}
		return still > 20
	}
	// It takes some thousand flushes and compactions, on a loaded machine more than one wait.
	for waits := 0; !waittest.Holds(stopped); waits++ {
		if waits == 4 {
			t.Fatalf("writes go on after %d: %v", written.Load(), s.db.Metrics())
		}
	}
	end := runStore(t, s)
	eventually(t, "writes resume", func() bool { return written.Load() > last+100 })
	stop.Store(true)
	writer.Wait()
	end()
}

// damageStates adds recorded states to a closed store, of which a block is damaged.
func damageStates(t *testing.T, fs vfs.FS, n int, name func(int) string) {
	t.Helper()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	b := s.NewBatch()
	for i := range n {
		b.PutState("objects", name(i), append([]byte("state-"+name(i)), noise(200)...))
	}
	if err := errors.Join(s.Commit(b), flush(s), s.Close()); err != nil {
		t.Fatal(err)
	}
	if !damageKeys(t, fs, []byte("state-"+name(n/2)), 0) {
		t.Fatal("no state is damaged")
	}
}

// unreadableStates returns the names of the states that are, of n that were recorded.
func unreadableStates(t *testing.T, s *Store, n int, name func(int) string) (lost []string) {
	t.Helper()
	for i := range n {
		_, ok, err := s.State("objects", name(i), nil)
		switch {
		case errors.Is(err, ErrUnreadable):
			lost = append(lost, name(i))
		case !ok || err != nil:
			t.Fatalf("state %s: %t, %v", name(i), ok, err)
		}
	}
	return lost
}

// TestLostStatesOfADeletedPartition asks for lost states while parts of the ledger expire.
func TestLostStatesOfADeletedPartition(t *testing.T) {
	t.Parallel()
	const n = 500
	s := openTest(t, "store", Options{FS: vfs.NewMem()})
	b := s.NewBatch()
	for i := range n {
		b.PutState(fmt.Sprintf("part-%03d", i), "a", []byte("state"))
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	s.loseStates(everything)
	var asking sync.WaitGroup
	deleted := make(chan struct{})
	asking.Go(func() {
		for {
			s.LostStates()
			select {
			case <-deleted:
				return
			default:
			}
		}
	})
	for i := range n {
		if err := s.DeletePartition(fmt.Sprintf("part-%03d", n-1-i)); err != nil {
			t.Error(err)
		}
	}
	close(deleted)
	asking.Wait()
	if partitions, _ := s.LostStates(); len(partitions) > 0 {
		t.Errorf("lost of %q", partitions)
	}
}

// TestLostStates repairs a table with states. Those that are gone stay unreadable, in the next process as well, until they are
// recorded again: a state that is not found is one that never was.
func TestLostStates(t *testing.T) {
	const n = 400
	options := Options{FS: vfs.NewMem(), firstSequence: 1, MaxBytes: smallTables}
	s := openTest(t, "store", options)
	ensure(t, s, "a")
	name := func(i int) string { return fmt.Sprintf("object-%05d|", i) }
	payload := noise(2000)
	for i := range n {
		commitOne(t, s, name(i), payload)
	}
	other := s.NewBatch()
	other.PutState("others", "a", payload)
	compact := func() error { return s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false) }
	if err := errors.Join(s.Commit(other), flush(s), compact(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if !damageKeys(t, options.FS, []byte("state-"+name(40)), 0) {
		t.Fatal("nothing is damaged")
	}
	s = openTest(t, "store", options)
	lost := unreadableStates(t, s, n, name)
	if partitions, _ := s.LostStates(); len(lost) == 0 || len(partitions) > 0 {
		t.Fatalf("%d states are unreadable, lost: %q", len(lost), partitions)
	}
	lostOf := func(want ...string) {
		t.Helper()
		if partitions, _ := s.LostStates(); !slices.Equal(partitions, want) {
			t.Fatalf("states are lost of %q, want %q", partitions, want)
		}
	}
	for _, name := range dataFiles(t, options.FS, ".sst") {
		s.damaged.add(&pebble.DataCorruptionInfo{Path: "store/db/" + name})
	}
	end := runStore(t, s)
	eventually(t, "a repair", func() bool {
		partitions, _ := s.LostStates()
		return len(partitions) > 0 && s.damaged.first() == ""
	})
	for _, life := range []string{"this life", "the next life"} {
		lostOf("objects")
		if again := unreadableStates(t, s, n, name); !slices.Equal(again, lost) {
			t.Errorf("%s: %q are unreadable, want %q", life, again, lost)
		}
		if err := s.ScanState("objects", "", func(string, []byte) error { return nil }); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: a scan: %v", life, err)
		}
		if err := errors.Join(s.ScanState("objects", name(n-1), func(string, []byte) error { return nil }), s.ScanState("others", "", func(string, []byte) error { return nil })); err != nil {
			t.Errorf("%s: a scan of others: %v", life, err)
		}
		end()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, "store", options)
		end = runStore(t, s)
	}
	_, as := s.LostStates()
	commitOne(t, s, lost[0], payload)
	s.loseStates(partitionRange(1)) // another repair
	s.StatesRestored("objects", as)
	lostOf("objects")
	_, as = s.LostStates()
	s.StatesRestored("objects", as)
	lostOf()
	if _, ok, err := s.State("objects", lost[0], nil); !ok || err != nil {
		t.Errorf("what is recorded again: %t, %v", ok, err)
	}
	if _, ok, err := s.State("objects", lost[1], nil); ok || err != nil {
		t.Errorf("what does not exist: %t, %v", ok, err)
	}
	eventually(t, "it is written", func() bool {
		_, ok, err := s.get(layout.LostStatesKey())
		return !ok && err == nil
	})
	end()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, "store", options)
	lostOf()
}

// TestLetterOfALossLeavesOthers counts a queue after the loss of two blocks: the entries of one
// are all dead letters, those of the other are gone. The dead letter that stands for them takes
// the place of no other.
func TestLetterOfALossLeavesOthers(t *testing.T) {
	s := openTest(t, "store", Options{firstSequence: 1, FS: vfs.NewMem()})
	q := ensure(t, s, "a")
	appendN(t, s, 6, "a")
	items := read(t, q, 0, 3)
	for _, item := range items {
		if err := q.DeadLetter(item.Position, Letter{Reason: "refused"}); err != nil {
			t.Fatal(err)
		}
	}
	block := func(from, to uint64) layout.Range {
		return layout.Range{Lower: layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, from), Upper: layout.AppendSinkKey(nil, layout.PrefixQueue, q.id, to)}
	}
	gone := block(4, 5)
	b := s.db.NewBatch()
	if err := s.applyLazily(b, b.DeleteRange(gone.Lower, append(slices.Clone(gone.Upper), 0), nil)); err != nil {
		t.Fatal(err)
	}
	s.damaged.uncounted = []layout.Range{block(1, 3), gone}
	if err := s.recountLost(); err != nil {
		t.Fatal(err)
	}
	letters, err := q.DeadLetters(0, 10)
	if err != nil || len(letters) != 4 {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	for i, l := range letters {
		if i < 3 && (l.Reason != "refused" || string(l.Payload) != string(items[i].Payload)) || i == 3 && !strings.Contains(l.Reason, "2 of the queue entries 4 to 5 are lost") {
			t.Errorf("dead letter %d: %+v", i, l)
		}
	}
	if st := q.Stats(); st.Length != 1 || st.DeadLetters != 4 {
		t.Errorf("stats %+v", st)
	}
}
