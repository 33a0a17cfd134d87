package engine

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ReplaceTable replaces a table by one of the same size, atomically and durably; all who have it open read that from then on.
// A link to the old file, such as a backup's, stays one to that.
func (d *Dir) ReplaceTable(path string, content []byte) error {
	if failure := d.o.Failure(); failure != nil {
		return failure
	}
	fsys := d.o.FS
	// Pebble removes a file of this name when it opens the store.
	tmp := fsys.PathJoin(fsys.PathDir(path), "temporary."+strings.TrimSuffix(fsys.PathBase(path), ".sst")+".dbtmp")
	err := writeFile(fsys, tmp, content)
	for errors.Is(err, syscall.ENOSPC) && d.reserve.drop(false) {
		err = writeFile(fsys, tmp, content)
	}
	if err == nil {
		err = d.fence.replaceTable(tmp, path)
	}
	if err != nil && d.o.Failure() == nil {
		err = errors.Join(err, ignoreAbsent(fsys.Remove(tmp)))
	}
	return err
}

// openTable is a table that Pebble has open.
type openTable struct {
	readers int                      // guarded by fence.mu
	current atomic.Pointer[vfs.File] // what is read; nil: what each reader has opened
	closing []vfs.File               // guarded by fence.mu; replacements, of which reads may be in progress
}

// tableReader is one opening of a table.
type tableReader struct {
	vfs.File
	fence *fence
	name  string
	table *openTable
}

func (r *tableReader) ReadAt(p []byte, offset int64) (int, error) {
	file := r.File
	if current := r.table.current.Load(); current != nil {
		file = *current
	}
	n, err := file.ReadAt(p, offset)
	if errors.Is(err, syscall.EIO) {
		return readAround(file, p, offset)
	}
	return n, err
}

// pageSize is how much of a file a disk fails to read with one bad sector.
const pageSize = 4 << 10

// readAround is ReadAt with zeros for the pages that the disk cannot read. The checksum of their blocks is wrong then:
// they are damaged like others, and a compaction does not fail the store.
func readAround(file io.ReaderAt, p []byte, offset int64) (n int, err error) {
	for n < len(p) && err == nil {
		at := offset + int64(n)
		page := p[n:min(len(p), n+pageSize-int(at%pageSize))]
		m, rerr := file.ReadAt(page, at)
		if errors.Is(rerr, syscall.EIO) {
			clear(page)
			m, rerr = len(page), nil
		}
		n, err = n+m, rerr
	}
	return n, err
}

// ReadTable reads a table file, with zeros for what the disk cannot read.
func ReadTable(fsys vfs.FS, path string) (content []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content = make([]byte, info.Size())
	_, err = readAround(f, content, 0)
	return content, err
}

func (r *tableReader) Close() error {
	return errors.Join(r.File.Close(), r.fence.leaveTable(r.name, r.table))
}

func (f *fence) openTable(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	t := f.enterTable(name) // before: else a replacement at this moment is missed
	file, err := f.at(name).Open(name, opts...)
	if err != nil {
		return nil, errors.Join(err, f.leaveTable(name, t))
	}
	return &tableReader{file, f, name, t}, nil
}

func (f *fence) enterTable(name string) *openTable {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tables[name]
	if t == nil {
		t = &openTable{}
		f.tables[name] = t
	}
	t.readers++
	return t
}

// leaveTable closes the replacements with the last reader.
func (f *fence) leaveTable(name string, t *openTable) error {
	f.mu.Lock()
	t.readers--
	var closing []vfs.File
	if t.readers == 0 {
		delete(f.tables, name)
		closing = t.closing
	}
	f.mu.Unlock()
	var errs []error
	for _, file := range closing {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// replaceTable gives a complete file the name of a table. An error means that nothing has changed, or that the store has failed.
func (f *fence) replaceTable(tmp, name string) (err error) {
	t := f.enterTable(name)
	defer func() { _ = f.leaveTable(name, t) }() // closes what was read
	dir, err := f.OpenDir(f.PathDir(name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	file, err := f.FS.Open(tmp)
	if err != nil {
		return err
	}
	if err := f.Rename(tmp, name); err != nil {
		return errors.Join(err, file.Close())
	}
	f.mu.Lock()
	t.closing = append(t.closing, file)
	f.mu.Unlock()
	err = dir.Sync() // fails the store
	t.current.Store(&file)
	return err
}
