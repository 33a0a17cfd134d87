package outbox

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence stands between Pebble and the filesystem so that a failed store stops
// touching its directory at once, as if the process had died there.
//
// Pebble answers a failed WAL or MANIFEST write with Logger.Fatalf or a panic
// and expects the process to be gone: what it would do afterwards is undefined
// (it may remove a table that a MANIFEST record, perhaps on disk after all,
// names). So the fence sees such an error first, reports it, and from then on
// pretends: writes go nowhere and succeed, and Pebble unwinds in peace while
// every caller of the Store gets ErrFailed.
//
// Errors while writing a table are given to Pebble: flushes and compactions are
// tried again, and nothing committed depends on them.
type fence struct {
	vfs.FS

	// failed is called with the first fatal error.
	failed func(error)
	// owned reports whether the directory is still ours; asked before a file
	// is created, renamed or removed.
	owned func() error

	mu       sync.Mutex
	down     bool                // guarded by mu; the store has failed
	live     bool                // guarded by mu; Open is done, errors are not Pebble's to return any more
	imagined map[string]struct{} // guarded by mu; files created after the failure
	fullTill time.Time           // guarded by mu; no new table before this, the disk is full

	// released is closed when the failed store is being closed.
	released chan struct{}
}

// fullDiskPause keeps Pebble from trying flushes in a tight loop while the disk
// is full.
const fullDiskPause = 250 * time.Millisecond

func newFence(fs vfs.FS, failed func(error), owned func() error) *fence {
	return &fence{
		FS:       fs,
		failed:   failed,
		owned:    owned,
		imagined: make(map[string]struct{}),
		released: make(chan struct{}),
	}
}

// lower lets nothing through from now on.
func (f *fence) lower() {
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
}

func (f *fence) isDown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.down
}

// goLive ends the time in which errors are left to Pebble's Open to return.
func (f *fence) goLive() {
	f.mu.Lock()
	f.live = true
	f.mu.Unlock()
}

func (f *fence) release() { close(f.released) }

// vital reports whether Pebble cannot go on after an error with this file:
// everything but tables, blobs and temporary files.
func vital(name string) bool {
	return !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob") && !strings.HasSuffix(name, ".dbtmp")
}

// check turns the outcome of an operation on the named file into what Pebble
// is told.
func (f *fence) check(name string, err error) error {
	if err == nil {
		return nil
	}
	if !vital(name) {
		if errors.Is(err, syscall.ENOSPC) {
			f.mu.Lock()
			f.fullTill = time.Now().Add(fullDiskPause)
			f.mu.Unlock()
		}
		return err
	}
	f.mu.Lock()
	live := f.live
	f.mu.Unlock()
	if !live {
		return err
	}
	f.failed(err)
	return nil
}

// mayTouch reports whether an operation that changes the directory may go
// ahead; if not, it is to succeed without effect.
func (f *fence) mayTouch() bool {
	if f.isDown() {
		return false
	}
	if err := f.owned(); err != nil {
		f.failed(err)
		return false
	}
	return true
}

// waitForSpace delays the creation of a table after the disk was full.
func (f *fence) waitForSpace(name string) {
	if vital(name) {
		return
	}
	f.mu.Lock()
	wait := time.Until(f.fullTill)
	f.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.released:
	}
}

func (f *fence) imagine(name string) vfs.File {
	f.mu.Lock()
	f.imagined[name] = struct{}{}
	f.mu.Unlock()
	return &fencedFile{File: vfs.NewMemFile(nil), fence: f, name: name}
}

func (f *fence) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		if err = f.check(name, err); err != nil {
			return nil, err
		}
		return f.imagine(name), nil
	}
	return &fencedFile{File: file, fence: f, name: name}, nil
}

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.waitForSpace(name)
	if !f.mayTouch() {
		return f.imagine(name), nil
	}
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if !f.mayTouch() {
		return f.imagine(name), nil
	}
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.wrap(name, file, err)
}

func (f *fence) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.mayTouch() {
		return f.imagine(newname), nil
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.wrap(newname, file, err)
}

// Open of a file that was only imagined cannot succeed; whoever asks (a
// compaction) is held until the store is closed, else it would ask forever.
func (f *fence) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f.mu.Lock()
	_, imagined := f.imagined[name]
	f.mu.Unlock()
	if imagined {
		<-f.released
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	return f.FS.Open(name, opts...)
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &fencedFile{File: dir, fence: f, name: name}, nil
}

func (f *fence) Link(oldname, newname string) error {
	if !f.mayTouch() {
		return nil
	}
	return f.check(newname, f.FS.Link(oldname, newname))
}

func (f *fence) Rename(oldname, newname string) error {
	if !f.mayTouch() {
		return nil
	}
	return f.check(newname, f.FS.Rename(oldname, newname))
}

// Remove gives its error to Pebble, which logs it: a file too many harms
// nobody.
func (f *fence) Remove(name string) error {
	if !f.mayTouch() {
		return nil
	}
	return f.FS.Remove(name)
}

func (f *fence) RemoveAll(name string) error {
	if !f.mayTouch() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	if !f.mayTouch() {
		return nil
	}
	return f.FS.MkdirAll(dir, perm)
}

// Unwrap implements vfs.FS.
func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file (or directory) open for writing.
type fencedFile struct {
	vfs.File
	fence *fence
	name  string
}

func (w *fencedFile) Write(p []byte) (int, error) {
	if w.fence.isDown() {
		return len(p), nil
	}
	n, err := w.File.Write(p)
	if err = w.fence.check(w.name, err); err != nil {
		return n, err
	}
	return len(p), nil
}

func (w *fencedFile) WriteAt(p []byte, off int64) (int, error) {
	if w.fence.isDown() {
		return len(p), nil
	}
	n, err := w.File.WriteAt(p, off)
	if err = w.fence.check(w.name, err); err != nil {
		return n, err
	}
	return len(p), nil
}

func (w *fencedFile) Sync() error {
	if w.fence.isDown() {
		return nil
	}
	return w.fence.check(w.name, w.File.Sync())
}

func (w *fencedFile) SyncData() error {
	if w.fence.isDown() {
		return nil
	}
	return w.fence.check(w.name, w.File.SyncData())
}

func (w *fencedFile) SyncTo(length int64) (bool, error) {
	if w.fence.isDown() {
		return true, nil
	}
	full, err := w.File.SyncTo(length)
	return full, w.fence.check(w.name, err)
}

// Preallocate only makes later writes faster; the write itself tells whether
// there is room.
func (w *fencedFile) Preallocate(offset, length int64) error {
	if w.fence.isDown() {
		return nil
	}
	if err := w.File.Preallocate(offset, length); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return w.fence.check(w.name, err)
	}
	return nil
}

func (w *fencedFile) Close() error {
	err := w.File.Close()
	if w.fence.isDown() {
		return nil
	}
	return w.fence.check(w.name, err)
}
