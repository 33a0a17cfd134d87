package engine

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableWrites counts the writes of tables, and their bytes.
type tableWrites struct {
	vfs.FS
	writes, bytes atomic.Int64
}

type tableWrite struct {
	vfs.File
	fs *tableWrites
}

func (f *tableWrites) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if err == nil && strings.HasSuffix(name, ".sst") {
		file = tableWrite{file, f}
	}
	return file, err
}

func (w tableWrite) Write(p []byte) (int, error) {
	w.fs.writes.Add(1)
	w.fs.bytes.Add(int64(len(p)))
	return w.File.Write(p)
}

// TestTablesAreWrittenInLargeParts writes a table of 2 MB. Few writes reach the file system,
// and the table is whole after a crash: a sync writes what is held.
func TestTablesAreWrittenInLargeParts(t *testing.T) {
	mem := vfs.NewCrashableMem()
	counted := &tableWrites{FS: mem}
	guard := &fence{
		FS: counted, memory: vfs.NewMem(), released: make(chan struct{}), imagined: map[string]bool{},
		failed: func(err error) { t.Error(err) }, down: func() bool { return false }, owned: func() error { return nil },
		left: func() int64 { return math.MaxInt64 }, reserve: &reserve{},
	}
	open := func(fs vfs.FS) *pebble.DB {
		db, err := pebble.Open("db", &pebble.Options{FS: fs, Logger: quiet{}})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open(guard)
	const records = 2000
	value := func(i int) []byte { return fmt.Appendf(bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 512), "%d", i*i) }
	for i := range records {
		if err := db.Set(fmt.Appendf(nil, "%06d", i), value(i), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if n, size := counted.writes.Load(), counted.bytes.Load(); size == 0 || n > 2*size/tableBuffer+10 {
		t.Errorf("%d writes of %d bytes", n, size)
	}

	db = open(after)
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range records {
		got, closer, err := db.Get(fmt.Appendf(nil, "%06d", i))
		if err != nil || !bytes.Equal(got, value(i)) {
			t.Fatalf("record %d: %d bytes, %v", i, len(got), err)
		}
		if err := closer.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
