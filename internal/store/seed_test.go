package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// dumpOf is a store with a journal, its dump, and what a replica of it has.
func dumpOf(t *testing.T) (j *testJournal, text []byte, at Position, want []string) {
	t.Helper()
	j = &testJournal{}
	s, q := openJournaled(t, vfs.NewMem(), j)
	items, err := q.Read(0, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if err := q.Ack(it.Position); err != nil {
			t.Fatal(err)
		}
	}
	b := s.NewBatch()
	b.PutState("p", "k", bytes.Repeat([]byte("large "), 300_000))
	b.Append(Record{Time: testEpoch, Payload: []byte("last")}, []Route{{Sink: "a"}})
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if at, err = s.Dump(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if at != s.JournalPosition() {
		t.Errorf("the dump is of %+v, the store is at %+v", at, s.JournalPosition())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if want, err = (&testJournal{entries: j.entries[:at.Last]}).follow(vfs.NewMem()); err != nil {
		t.Fatal(err)
	}
	return j, out.Bytes(), at, want
}

// older makes a directory that has the first entry of a journal alone, and returns its contents.
func older(t *testing.T, j *testJournal, fs vfs.FS) []string {
	t.Helper()
	contents, err := (&testJournal{entries: j.entries[:1]}).follow(fs)
	if err != nil {
		t.Fatal(err)
	}
	return contents
}

// TestSeed: a directory that is seeded is that of a replica which has applied all entries, and continues with the journal.
func TestSeed(t *testing.T) {
	t.Parallel()
	j, text, at, want := dumpOf(t)
	for _, name := range []string{"an empty directory", "one that is behind"} {
		fs := vfs.NewMem()
		if name != "an empty directory" {
			older(t, j, fs)
		}
		if err := Seed(t.Context(), "store", Options{FS: fs}, bytes.NewReader(text), at, Past{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		names, err := fs.List("store")
		if err != nil || strings.Contains(fmt.Sprint(names), "db.") {
			t.Errorf("%s: left are %v, %v", name, names, err)
		}
		if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
			t.Errorf("%s: %v %v", name, report.Problems, err)
		}
		got, err := (&testJournal{entries: j.entries[:at.Last]}).follow(fs)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		if _, err := j.follow(fs); err != nil { // acks of its end
			t.Error(err)
		}
	}
}

// TestSeedIsRefused: a dump that is damaged, cut, or of another position, changes nothing.
func TestSeedIsRefused(t *testing.T) {
	t.Parallel()
	j, text, at, _ := dumpOf(t)
	fs := vfs.NewMem()
	before := older(t, j, fs)
	refused := func(name string, text []byte, at Position) {
		t.Helper()
		err := Seed(t.Context(), "store", Options{FS: fs}, bytes.NewReader(text), at, Past{})
		if !errors.Is(err, ErrSeed) {
			t.Errorf("%s: %v", name, err)
		}
		if after := older(t, j, fs); cmp.Diff(before, after) != "" {
			t.Errorf("%s: the directory has changed", name)
		}
	}
	for _, n := range []int{0, 1, 40, len(text) / 2, len(text) - 17, len(text) - 1} {
		refused(fmt.Sprintf("cut at %d of %d", n, len(text)), text[:n], at)
	}
	for _, n := range []int{3, len(text) / 2, len(text) - 20, len(text) - 1} {
		damaged := bytes.Clone(text)
		damaged[n] ^= 1
		refused(fmt.Sprintf("damaged at %d", n), damaged, at)
	}
	another := at
	another.Sum++
	refused("another position", text, another)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Seed(ctx, "store", Options{FS: fs}, bytes.NewReader(text), at, Past{}); !errors.Is(err, context.Canceled) {
		t.Errorf("without a context: %v", err)
	}
}

// TestSeedCrashes ends the machine, and a process whose disk fails, at each operation of a seed: the directory has what it had
// or all of the new, and the next open removes what is left.
func TestSeedCrashes(t *testing.T) {
	t.Parallel()
	j, text, at, want := dumpOf(t)
	seeded := 0
	for n := 0; ; n++ {
		mem, f := vfs.NewCrashableMem(), &faulty{}
		before := older(t, j, mem)
		left, reached := n, false
		var crashed *vfs.MemFS
		f.set(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return nil
			}
			if left--; left == -1 {
				crashed = mem.CrashClone(vfs.CrashCloneCfg{})
				reached = true
			}
			if left < 0 {
				return syscall.EIO
			}
			return nil
		})
		err := Seed(t.Context(), "store", Options{FS: errorfs.Wrap(mem, f)}, bytes.NewReader(text), at, Past{})
		f.fail.Store(nil)
		if !reached {
			if err != nil {
				t.Fatal(err)
			}
			if n < 20 || seeded == 0 || seeded == n {
				t.Errorf("%d operations, %d crashes with a directory that was seeded", n, seeded)
			}
			t.Logf("%d operations, %d of them with the new contents after it", n, seeded)
			return
		}
		for name, fs := range map[string]vfs.FS{"the machine": crashed, "the disk": mem} {
			r, err := OpenReplica("store", Options{FS: fs})
			if err != nil {
				t.Fatalf("%s fails at operation %d: %v", name, n, err)
			}
			is := r.Position()
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			expect := before
			if is == at {
				expect = want
				seeded++
			}
			got, err := (&testJournal{entries: j.entries[:is.Last]}).follow(fs)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(expect, got); diff != "" {
				t.Fatalf("%s fails at operation %d:\n%s", name, n, diff)
			}
			names, err := fs.List("store")
			if err != nil || strings.Contains(fmt.Sprint(names), "db.") {
				t.Errorf("%s fails at operation %d: left are %v, %v", name, n, names, err)
			}
		}
	}
}

// TestSeedOnFullDisk fails with the error of the disk, and leaves the directory.
func TestSeedOnFullDisk(t *testing.T) {
	t.Parallel()
	j, text, at, _ := dumpOf(t)
	mem, f := vfs.NewMem(), &faulty{}
	before := older(t, j, mem)
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
			return syscall.ENOSPC
		}
		return nil
	})
	err := Seed(t.Context(), "store", Options{FS: errorfs.Wrap(mem, f)}, bytes.NewReader(text), at, Past{})
	f.fail.Store(nil)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(before, older(t, j, mem)); diff != "" {
		t.Error(diff)
	}
}

// TestDumpOfDamage fails: a copy must not be of a part.
func TestDumpOfDamage(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s, _ := openJournaled(t, fs, &testJournal{})
	b := s.NewBatch()
	for i := range 200 {
		b.PutState("p", fmt.Sprint(i), noise(2000))
	}
	if err := errors.Join(s.Commit(b), s.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open("store", Options{FS: fs}) // its log becomes a table
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	damaged := false
	names, err := fs.List(engine.DataPath(fs, "store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		path := fs.PathJoin(engine.DataPath(fs, "store"), name)
		content, err := engine.ReadFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)/2] ^= 0x55
		file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = file.Write(content)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		damaged = true
	}
	if !damaged {
		t.Fatal("there is no table")
	}
	s, err = Open("store", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Dump(t.Context(), io.Discard); !errors.Is(err, ErrUnreadable) {
		t.Errorf("%v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDumpDuringRepair dumps a store of which a damaged block is removed, and what was in it not counted yet: the
// directory that is made of it would lack entries, and count them, for good.
func TestDumpDuringRepair(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	damagedQueue(t, fs)
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	dump := func(w io.Writer) error {
		_, err := s.Dump(t.Context(), w)
		return err
	}
	if err := dump(io.Discard); !errors.Is(err, ErrUnreadable) {
		t.Fatalf("with the damage: %v", err)
	}
	if err := s.files.NoteRepair(nil); err != nil {
		t.Fatal(err)
	}
	removeDamage(t, s, fs)
	if err := dump(io.Discard); !errors.Is(err, ErrRepairing) {
		t.Errorf("before the loss is counted: %v", err)
	}
	if err := s.recountLost(); err != nil {
		t.Fatal(err)
	}
	if err := dump(io.Discard); !errors.Is(err, ErrRepairing) {
		t.Errorf("with a note in a file: %v", err)
	}
	if err := s.files.EndRepair(); err != nil {
		t.Fatal(err)
	}
	if err := dump(writerFunc(func(p []byte) (int, error) { return len(p), s.files.Repair(func() error { return nil }) })); !errors.Is(err, ErrRepairing) {
		t.Errorf("beside a repair: %v", err)
	}
	if err := dump(io.Discard); err != nil {
		t.Errorf("after it: %v", err)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// removeDamage does the first steps of a repair.
func removeDamage(t *testing.T, s *Store, fs vfs.FS) {
	t.Helper()
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range slices.Concat(levels...) {
		name := table.BackingSSTNum.String() + ".sst"
		patches, err := salvage.FindPatches(content(t, fs, name), table.Smallest, table.Largest)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range patches {
			s.damaged.uncounted = append(s.damaged.uncounted, p.Lost)
		}
		if len(patches) > 0 {
			if err := s.removeBlocks("store/db/"+name, patches, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(s.damaged.uncounted) == 0 {
		t.Fatal("nothing is damaged")
	}
}
