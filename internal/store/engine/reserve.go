package engine

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// reserve is room on the disk that is allocated as a few files. When other programs
// have filled the disk, acknowledgements still have to be written before entries
// become free space. A new table or log takes a file over under its own name, so that
// no other program gets the room.
//
// There is no reserve on a filesystem that cannot allocate, or does not report its
// free space.
//
// The lock is held while files are allocated: a file that is being allocated takes room and is
// not there to be taken yet. A write that finds the disk full waits for it, and then takes it;
// without the lock it would fail for the lack of room that the reserve has just got.
type reserve struct {
	fs  vfs.FS
	dir string

	mu   sync.Mutex
	part int64              // guarded by mu; bytes of a file; 0 = no reserve
	held [reserveParts]bool // guarded by mu
	lent bool               // guarded by mu; not filled
}

const (
	reserveParts   = 8
	reserveVital   = 3 // for write-ahead logs and the MANIFEST
	minReservePart = 256 << 10
	maxReservePart = 8 << 20
)

// openReserve finds the existing files. It makes none.
func openReserve(fsys vfs.FS, dir string, maxBytes int64) *reserve {
	r := &reserve{fs: fsys, dir: dir}
	usage, err := fsys.GetDiskUsage(dir)
	if err != nil {
		return r
	}
	part := SizeFor(maxBytes, 64, minReservePart, maxReservePart) // as a table
	r.part = min(part, int64(usage.TotalBytes)/16/reserveParts)
	for i := range r.held {
		_, err := fsys.Stat(r.path(i))
		r.held[i] = err == nil
	}
	return r
}

func (r *reserve) path(i int) string {
	return r.fs.PathJoin(r.dir, fmt.Sprintf("RESERVE-%d", i))
}

func (r *reserve) missing() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missingLocked()
}

// size returns the bytes of the whole reserve.
func (r *reserve) size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return reserveParts * r.part
}

func (r *reserve) missingLocked() int64 {
	n := int64(0)
	for _, held := range r.held {
		if !held {
			n++
		}
	}
	return n * r.part
}

// fill makes the missing files if the disk has the room for one more than these. A
// filesystem that cannot allocate gets no reserve.
func (r *reserve) fill(free int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := r.missingLocked()
	if r.lent || missing == 0 || free < missing+r.part {
		return nil
	}
	for i := range r.held {
		if r.held[i] {
			continue
		}
		if err := r.allocate(r.path(i), r.create); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				r.part = 0
			}
			return errors.Join(err, ignoreAbsent(r.fs.Remove(r.path(i))))
		}
		r.held[i] = true
	}
	return nil
}

// firm allocates the existing files again. Those of a copied directory, and those
// that a killed process left, have no room. A file that gets no room is removed.
func (r *reserve) firm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.held {
		if r.held[i] && r.allocate(r.path(i), r.fs.OpenReadWrite) != nil {
			r.held[i] = false
			_ = r.fs.Remove(r.path(i)) // fill makes it new
		}
	}
}

// allocate opens a file and gives it its room.
func (r *reserve) allocate(path string, open func(string, vfs.DiskWriteCategory, ...vfs.OpenOption) (vfs.File, error)) error {
	f, err := open(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err = f.Preallocate(0, r.part); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (r *reserve) create(path string, c vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return r.fs.Create(path, c)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// pop takes one file out of the reserve and returns its path. The last files are
// only for those that Pebble depends on.
func (r *reserve) pop(vital bool) (path string, ok bool) {
	if r == nil {
		return "", false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := 0
	if !vital {
		first = reserveVital
	}
	for i := len(r.held) - 1; i >= first; i-- {
		if r.held[i] {
			r.held[i] = false
			return r.path(i), true
		}
	}
	return "", false
}

// lend frees the room for tables until giveBack is called; fill completes it then.
func (r *reserve) lend() (giveBack func()) {
	setLent := func(lent bool) {
		r.mu.Lock()
		r.lent = lent
		r.mu.Unlock()
	}
	setLent(true)
	for r.drop(false) {
	}
	return func() { setLent(false) }
}

// drop removes one file, and reports whether there was one.
func (r *reserve) drop(vital bool) bool {
	path, ok := r.pop(vital)
	return ok && r.fs.Remove(path) == nil
}
