package outbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The files of a store directory. Pebble's own lie in dataDir.
const (
	lockFile  = "LOCK"
	ownerFile = "OWNER"
	dataDir   = "db"
)

// lockDir takes the lock that keeps other processes out, for as long as the
// process lives or until the closer is closed.
func lockDir(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(fsys.PathJoin(dir, lockFile))
	if err == nil {
		return lock, nil
	}
	// A lock that is held is reported as a bare errno or text; a file that
	// cannot be made, with its path.
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return nil, fmt.Errorf("%s: %w (%w)", dir, ErrLocked, err)
}

// owner is the random token in the directory that says which process opened it
// last. It matters where locks do not work.
type owner struct {
	fs    vfs.FS
	path  string
	token string
}

// takeOwnership writes a new token, durably, before anything else of the
// directory is read or written.
func takeOwnership(fsys vfs.FS, dir string) (*owner, error) {
	var random [16]byte
	rand.Read(random[:])
	o := &owner{
		fs:    fsys,
		path:  fsys.PathJoin(dir, ownerFile),
		token: fmt.Sprintf("%s pid %d\n", hex.EncodeToString(random[:]), os.Getpid()),
	}
	if err := replaceFile(fsys, dir, o.path, []byte(o.token)); err != nil {
		return nil, fmt.Errorf("write owner token: %w", err)
	}
	return o, nil
}

// check reads the token back; it costs an open and a read of a few bytes.
func (o *owner) check() error {
	token, err := readFile(o.fs, o.path)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return nil // out of file descriptors says nothing about the owner
	}
	if err != nil {
		return fmt.Errorf("read owner token: %w", err)
	}
	if string(token) != o.token {
		return fmt.Errorf("%w: %s now says %q", ErrStolen, o.path, token)
	}
	return nil
}

// replaceFile writes a file so that after a crash it has either the old or the
// new content.
func replaceFile(fsys vfs.FS, dir, path string, content []byte) error {
	tmp := path + ".tmp"
	f, err := fsys.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}
