package engine

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestReplaceTable replaces a table twice while it is open: its readers read what is there, a link keeps the old content,
// and all files are closed with the last reader.
func TestReplaceTable(t *testing.T) {
	fs := &countingFS{FS: vfs.NewMem()}
	d, err := OpenDir("store", DirOptions{
		FS: fs, Left: func() int64 { return 1 << 40 }, Logger: slog.New(slog.DiscardHandler), Fail: func(err error) { t.Error(err) }, Failure: func() error { return nil },
	})
	if err := errors.Join(err, d.Take()); err != nil {
		t.Fatal(err)
	}
	const path, link = "store/db/000001.sst", "store/link"
	if err := errors.Join(fs.MkdirAll("store/db", 0o700), writeFile(fs, path, []byte("old")), fs.Link(path, link)); err != nil {
		t.Fatal(err)
	}
	reads := func(f vfs.File, want string) {
		t.Helper()
		b := make([]byte, 3)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != want {
			t.Errorf("%q is read, want %q, %v", b, want, err)
		}
	}
	var readers []vfs.File
	open := func() vfs.File {
		f, err := d.FS().Open(path)
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, f)
		return f
	}
	before := open()
	reads(before, "old")
	for _, content := range []string{"new", "two"} {
		if err := d.ReplaceTable(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		reads(before, content)
		reads(open(), content)
	}
	if b, err := ReadFile(fs, link); err != nil || string(b) != "old" {
		t.Errorf("the link has %q, %v", b, err)
	}
	for _, f := range readers {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := fs.open.Load(); n != 0 || len(d.fence.tables) != 0 {
		t.Errorf("%d files are open, %d tables are known", n, len(d.fence.tables))
	}
	reads(open(), "two")
	if err := errors.Join(readers[len(readers)-1].Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// countingFS counts the tables, and what replaces them, that are open for reading.
type countingFS struct {
	vfs.FS
	open atomic.Int64
}

func (c *countingFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(name, opts...)
	if err == nil {
		c.open.Add(1)
		f = countedFile{f, c}
	}
	return f, err
}

type countedFile struct {
	vfs.File
	fs *countingFS
}

func (f countedFile) Close() error {
	f.fs.open.Add(-1)
	return f.File.Close()
}
