package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/store/layout"
)

const damageRecords = 150

// storeFiles makes a closed store: records in the log and queue, a ledger,
// metadata; everything in tables, or the second half in the write-ahead log.
func storeFiles(t *testing.T, inTables bool) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	s, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, s, "a")
	payload := noise(600)
	for i := range damageRecords {
		b := s.NewBatch()
		b.Append(Record{Time: testEpoch, Payload: fmt.Appendf(nil, "%d:%s", i+1, payload)}, []Route{{Sink: "a", Flags: 1}})
		b.PutState("objects", fmt.Sprintf("key-%03d", i), payload)
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
		if i == damageRecords/2 {
			if err := flush(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if inTables {
		if err := reclaim(s, 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

func dataFiles(t *testing.T, fs vfs.FS, like string) []string {
	t.Helper()
	names, err := fs.List("store/db")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, like) && !strings.HasSuffix(n, like) })
	slices.Sort(names)
	if len(names) == 0 {
		t.Fatalf("no file like %s", like)
	}
	return names
}

func content(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	b, err := engine.ReadFile(fs, "store/db/"+name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func overwrite(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create("store/db/"+name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func copyFS(t *testing.T, fs *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	if _, err := vfs.Clone(fs, to, "store", "store"); err != nil {
		t.Fatal(err)
	}
	return to
}

// exportLines returns the lines of an export by type.
func exportLines(t *testing.T, fs vfs.FS) map[string][]inspect.Line {
	t.Helper()
	var out bytes.Buffer
	if err := inspect.ExportFS(fs, "store", &out, nil); err != nil {
		t.Fatalf("export: %v", err)
	}
	lines := make(map[string][]inspect.Line)
	for d := json.NewDecoder(&out); d.More(); {
		var l inspect.Line
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines[l.Type] = append(lines[l.Type], l)
	}
	return lines
}

func distinct(lines []inspect.Line, key func(inspect.Line) string) int {
	seen := make(map[string]bool)
	for _, l := range lines {
		seen[key(l)] = true
	}
	return len(seen)
}

// TestDamageAnywhere flips a byte at many places of the tables. The store either
// does not open, untouched, or delivers every record that is not damaged and
// accounts for those that are.
func TestDamageAnywhere(t *testing.T) {
	pristine := storeFiles(t, true)
	refused, partly, unharmed, tables := 0, 0, 0, 0
	for _, name := range dataFiles(t, pristine, ".sst") {
		size := len(content(t, pristine, name))
		step := size/17 + 1
		if raceEnabled {
			step *= 4
		}
		for offset := 17; offset < size; offset += step {
			fs := copyFS(t, pristine)
			b := content(t, fs, name)
			b[offset] ^= 0x55
			overwrite(t, fs, name, b)

			report, err := inspect.CheckFS(fs, "store")
			if err != nil || (report.OK() && len(report.Damaged) > 0) {
				t.Fatalf("%s at %d: check: %v, %d problems", name, offset, err, len(report.Problems))
			}
			lines := exportLines(t, fs)
			s, err := Open("store", Options{firstSequence: 1, FS: fs})
			if err != nil {
				if !errors.Is(err, ErrDamaged) || report.OK() {
					t.Fatalf("%s at %d: open: %v; check: %q", name, offset, err, report.Problems)
				}
				refused++
				continue
			}
			delivered, lost := drainDamaged(t, s)
			if delivered+lost != damageRecords {
				t.Fatalf("%s at %d: %d delivered, %d lost of %d", name, offset, delivered, lost, damageRecords)
			}
			if lost > 0 {
				partly++
			} else {
				unharmed++
			}
			if lost > damageRecords/3 {
				tables++ // the index of the table is hit
			}
			records := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) })
			if records < damageRecords-damageRecords/3 {
				t.Errorf("%s at %d: export has %d records", name, offset, records)
			}
			if states := distinct(lines["state"], func(l inspect.Line) string { return l.Key }); states < damageRecords-damageRecords/3 {
				t.Errorf("%s at %d: export has %d states", name, offset, states)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d refused, %d with losses (%d of a whole table), %d without", refused, partly, tables, unharmed)
	if partly < 8 && !raceEnabled {
		t.Error("the damage hits nothing")
	}
	if tables+refused > 5 {
		t.Error("one bad byte costs too much")
	}
}

// drainDamaged acknowledges all there is and counts what dead letters say is
// lost.
func drainDamaged(t *testing.T, s *Store) (delivered, lost int) {
	t.Helper()
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	after := uint64(0)
	for rounds := 0; q.Stats().Length > 0; rounds++ {
		if rounds > damageRecords {
			t.Fatalf("no progress: %+v", q.Stats())
		}
		items := read(t, q, after, 40)
		for _, item := range items {
			if want := fmt.Sprintf("%d:", item.Sequence); !strings.HasPrefix(string(item.Payload), want) || item.Sequence <= after {
				t.Fatalf("item %d after %d has payload %q", item.Sequence, after, item.Payload)
			}
			after = item.Position
			delivered++
			if err := q.Ack(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	letters, err := q.DeadLetters(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		if !strings.HasPrefix(l.Reason, ReasonUnreadable) || !l.Unreadable {
			t.Errorf("dead letter %+v", l)
		}
		var from, to int
		if n, _ := fmt.Sscanf(l.Reason, ReasonUnreadable+": queue entries %d to %d are lost", &from, &to); n == 2 {
			lost += to - from + 1
			continue
		}
		lost++
	}
	if n, err := q.RetryDeadLetters(0, 1, 2, 3, 4); n != 0 || err != nil {
		t.Errorf("retried %d, %v", n, err)
	}
	return delivered, lost
}

// TestVitalDamage damages or removes the files without which a store cannot be
// opened.
func TestVitalDamage(t *testing.T) {
	flip := func(b []byte) []byte {
		b[len(b)/2] ^= 0x55
		return b
	}
	halve := func(b []byte) []byte { return b[:len(b)/2] }
	for _, c := range []struct {
		name, file string
		inTables   bool
		change     func([]byte) []byte // nil removes the file
		records    int                 // that an export still has, at least
	}{
		{"manifest flipped", "MANIFEST-", true, flip, damageRecords},
		{"manifest gone", "MANIFEST-", true, nil, damageRecords},
		{"marker gone", "marker.manifest.", true, nil, damageRecords},
		{"table gone", ".sst", true, nil, 0},
		{"table halved", ".sst", true, halve, 0},
		{"log flipped", ".log", false, flip, damageRecords / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := storeFiles(t, c.inTables)
			names := dataFiles(t, fs, c.file)
			name := names[len(names)-1]
			if c.change == nil {
				if err := fs.Remove("store/db/" + name); err != nil {
					t.Fatal(err)
				}
			} else {
				overwrite(t, fs, name, c.change(content(t, fs, name)))
			}
			s, err := Open("store", Options{firstSequence: 1, FS: fs})
			if err == nil {
				_ = s.Close() // the test fails below
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "watcherd store export") {
				t.Fatalf("open: %v", err)
			}
			t.Log(err)
			report, err := inspect.CheckFS(fs, "store")
			if err != nil || report.OK() {
				t.Errorf("check: %v %+v", err, report)
			}
			lines := exportLines(t, fs)
			if n := distinct(lines["record"], func(l inspect.Line) string { return fmt.Sprint(l.Sequence) }); n < c.records {
				t.Errorf("export has %d records, want %d", n, c.records)
			}
			if len(lines["damage"]) == 0 {
				t.Error("export says nothing of the damage")
			}
		})
	}
}

// TestVitalFilesFlipped flips a byte at many places of the files that lead to
// the data. The store opens with everything there, or does not and leaves the
// data alone.
func TestVitalFilesFlipped(t *testing.T) {
	pristine := storeFiles(t, false)
	data := append(dataFiles(t, pristine, ".sst"), dataFiles(t, pristine, ".log")...)
	refused, opened := 0, 0
	for _, like := range []string{"MANIFEST-", "OPTIONS-", ".log"} {
		names := dataFiles(t, pristine, like)
		name := names[len(names)-1]
		size := len(content(t, pristine, name))
		step := size/40 + 1
		if raceEnabled {
			step *= 5
		}
		for offset := 3; offset < size; offset += step {
			fs := copyFS(t, pristine)
			b := content(t, fs, name)
			b[offset] ^= 0x55
			overwrite(t, fs, name, b)
			changed := copyFS(t, fs)
			s, err := Open("store", Options{firstSequence: 1, FS: fs})
			if err != nil {
				if !errors.Is(err, ErrDamaged) {
					t.Fatalf("%s at %d: %v", name, offset, err)
				}
				for _, d := range data {
					if !bytes.Equal(content(t, fs, d), content(t, changed, d)) {
						t.Fatalf("%s at %d: a refused store has a changed %s", name, offset, d)
					}
				}
				refused++
				continue
			}
			opened++
			st := s.LogStats()
			delivered, lost := drainDamaged(t, s)
			least := damageRecords
			if like == ".log" {
				// Damage to the last two commits looks as if the power had failed
				// during them: no later one says that they were synced.
				least -= 2
			}
			if delivered < least || lost != 0 || st.Records != int64(delivered) {
				t.Fatalf("%s at %d of %d: %d delivered, %d lost, log %+v", name, offset, size, delivered, lost, st)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d refused, %d opened in full", refused, opened)
}

// TestDamagedListOfTables flips a bit at each place of the MANIFEST that the last opening began: the tables
// that it made of the write-ahead log are in the last record, and the log is gone.
func TestDamagedListOfTables(t *testing.T) {
	pristine := storeFiles(t, false)
	if err := openTest(t, "store", Options{firstSequence: 1, FS: pristine}).Close(); err != nil {
		t.Fatal(err)
	}
	names := dataFiles(t, pristine, "MANIFEST-")
	name := names[len(names)-1]
	size := len(content(t, pristine, name))
	for offset := range size {
		fs := copyFS(t, pristine)
		b := content(t, fs, name)
		b[offset] ^= 1 << (offset % 8)
		overwrite(t, fs, name, b)
		s, err := Open("store", Options{firstSequence: 1, FS: fs})
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d: %v", offset, err)
			}
			continue
		}
		if delivered, lost := drainDamaged(t, s); delivered != damageRecords || lost != 0 {
			t.Errorf("byte %d of %d: %d delivered, %d lost", offset, size, delivered, lost)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamageOfAnOldLog flips a byte of a write-ahead log whose commits are in tables, which is kept to be written over.
func TestDamageOfAnOldLog(t *testing.T) {
	fs := storeFiles(t, true)
	names := dataFiles(t, fs, ".log")
	if len(names) < 2 {
		t.Fatalf("no old log: %q", names)
	}
	b := content(t, fs, names[0])
	b[len(b)/4] ^= 0x55
	overwrite(t, fs, names[0], b)
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	if delivered, lost := drainDamaged(t, s); delivered != damageRecords || lost != 0 {
		t.Errorf("%d delivered, %d lost", delivered, lost)
	}
}

// TestMissingLog removes and cuts write-ahead logs that others follow, as the check of a file system may: the store is refused, as what
// follows would be there without what is before it.
func TestMissingLog(t *testing.T) {
	mem := vfs.NewCrashableMem()
	f := &faulty{}
	room := make(chan struct{})
	options := Options{firstSequence: 1, FS: errorfs.Wrap(mem, f), MaxBytes: 16 << 20}
	s := openTest(t, "store", options)
	q := ensure(t, s, "a")
	f.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			<-room
		}
		return nil
	})
	const records = 45
	minutes(t, s, 0, records, 16<<10, "a")
	if n := len(read(t, q, 0, records)); n != records {
		t.Fatalf("%d of %d records", n, records)
	}
	pristine := mem.CrashClone(vfs.CrashCloneCfg{})
	close(room)
	logs := dataFiles(t, pristine, ".log")
	if len(logs) < 3 {
		t.Fatalf("%d logs", len(logs))
	}
	for _, name := range logs[:len(logs)-1] {
		whole := content(t, pristine, name)
		var number uint32
		if _, err := fmt.Sscanf(name, "%d.log", &number); err != nil {
			t.Fatal(err)
		}
		cuts := []int{-1, 0} // -1: it is gone
		r := engine.WALReader{Content: whole, Num: number}
		for commit, _ := r.Next(); commit != nil; commit, _ = r.Next() {
			cuts = append(cuts, r.At)
		}
		for _, left := range cuts[:len(cuts)-1] {
			fs := copyFS(t, pristine)
			if left < 0 {
				if err := fs.Remove("store/db/" + name); err != nil {
					t.Fatal(err)
				}
			} else {
				overwrite(t, fs, name, whole[:left])
			}
			options.FS = fs
			s, err := Open("store", options)
			if err == nil {
				err = s.Close()
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s with %d of %d bytes: %v", name, left, len(whole), err)
			}
		}
	}
	options.FS = pristine
	if n := len(read(t, ensure(t, openTest(t, "store", options), "a"), 0, records)); n != records {
		t.Errorf("%d of %d records after the crash", n, records)
	}
}

// TestDamagedOptions flips bytes of the file in which the storage engine notes its
// settings, which are the program's: it is no reason to refuse the store.
func TestDamagedOptions(t *testing.T) {
	pristine := storeFiles(t, false)
	names := dataFiles(t, pristine, "OPTIONS-")
	name := names[len(names)-1]
	size := len(content(t, pristine, name))
	step := size / 60
	if raceEnabled {
		step *= 5
	}
	for offset := 0; offset < size; offset += step {
		fs := copyFS(t, pristine)
		b := content(t, fs, name)
		b[offset] ^= 0x55
		overwrite(t, fs, name, b)
		if report, err := inspect.CheckFS(fs, "store"); err != nil || !report.OK() {
			t.Errorf("byte %d: check: %v %q", offset, err, report.Problems)
		}
		s, err := Open("store", Options{firstSequence: 1, FS: fs})
		if err != nil {
			t.Fatalf("byte %d: %v", offset, err)
		}
		if delivered, lost := drainDamaged(t, s); delivered != damageRecords || lost != 0 {
			t.Errorf("byte %d: %d delivered, %d lost", offset, delivered, lost)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if left := dataFiles(t, fs, "OPTIONS-"); len(left) > 2 {
			t.Errorf("byte %d: %q", offset, left)
		}
	}
}

func TestOlderFormat(t *testing.T) {
	fs := storeFiles(t, true)
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	if err := errors.Join(s.db.Set(layout.FormatKey(), layout.ID32(layout.Version-1), nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("store", Options{firstSequence: 1, FS: fs}); !errors.Is(err, ErrOlderFormat) || !strings.Contains(err.Error(), "`mv store store.old`") {
		t.Errorf("an older layout: %v", err)
	}
}

func TestNewerFormat(t *testing.T) {
	fs := storeFiles(t, true)
	s, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.db.Set(layout.FormatKey(), layout.ID32(layout.Version+1), nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("store", Options{firstSequence: 1, FS: fs}); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("a newer layout: %v", err)
	}

	fs = storeFiles(t, true)
	markers := dataFiles(t, fs, "marker.format-version.")
	if err := fs.Rename("store/db/"+markers[0], "store/db/marker.format-version.000900.999"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("store", Options{firstSequence: 1, FS: fs}); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("a newer format of the engine: %v", err)
	}
}

// TestCheckAfterAKillAmidAFlush: a table that is not complete is no part of the store, and no damage.
func TestCheckAfterAKillAmidAFlush(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{firstSequence: 1})
	ensure(t, s, "a")
	appendN(t, s, 3, "a")
	if err := errors.Join(flush(s), s.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := inspect.Check(dir)
	if err != nil || !whole.OK() || whole.Files == 0 {
		t.Fatalf("check: %v, %+v", err, whole)
	}
	if err := os.WriteFile(filepath.Join(dir, "db", "000999.sst"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := inspect.Check(dir)
	if err != nil || !report.OK() || report.Files != whole.Files {
		t.Errorf("check: %v, %d files, %q", err, report.Files, report.Problems)
	}
}
