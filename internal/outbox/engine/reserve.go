package engine

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// reserve is room on the disk that the store keeps for itself: when others have
// filled the disk, acknowledged entries still have to be written and turned into
// free space, or nothing would ever get better. It is a few allocated files. A new
// table or log takes one over under its own name, so that nobody else gets the room.
//
// There is none where the filesystem cannot allocate, or does not know its free
// space.
type reserve struct {
	fs  vfs.FS
	dir string

	mu   sync.Mutex
	part int64              // guarded by mu; bytes of a file; 0 = no reserve
	held [reserveParts]bool // guarded by mu
}

const (
	reserveParts   = 8
	reserveVital   = 3 // for write-ahead logs and the MANIFEST
	minReservePart = 256 << 10
	maxReservePart = 8 << 20
)

// openReserve finds the files that are there. It makes none.
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

// missing is how many bytes the reserve lacks.
func (r *reserve) missing() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missingLocked()
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

// fill makes the files that are missing, if the disk has the room and some more. A
// filesystem that cannot allocate gets no reserve.
func (r *reserve) fill(free int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := r.missingLocked()
	if missing == 0 || free < missing+r.part {
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

// firm allocates the files that are there again, which costs nothing where they have
// their room: those of a copied directory have none, as those that a kill left
// behind. A file that gets no room is removed.
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

// pop gives up one file, the path of which it returns. The last ones are only for
// what the store cannot go on without.
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

// drop removes one file; false if there is none.
func (r *reserve) drop(vital bool) bool {
	path, ok := r.pop(vital)
	return ok && r.fs.Remove(path) == nil
}
