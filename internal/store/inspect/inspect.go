package inspect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
)

// inspection is a store directory opened for reading only, damaged or not. It holds
// the directory's lock, which excludes a running daemon.
type inspection struct {
	fs   vfs.FS
	dir  string
	lock io.Closer // nil on a read-only filesystem
	db   *pebble.DB
	// openErr is the reason of a nil db.
	openErr error
}

func open(fsys vfs.FS, dir string) (*inspection, error) {
	if _, err := fsys.Stat(engine.DataPath(fsys, dir)); err != nil {
		return nil, fmt.Errorf("%s is not a store: %w", dir, err)
	}
	lock, err := engine.LockDir(fsys, dir)
	if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return nil, err
	}
	i := &inspection{fs: fsys, dir: dir, lock: lock}
	logger := engine.Logger{Log: slog.New(slog.DiscardHandler), Limit: &engine.LogLimit{}, Fatal: func(error) {}}
	o := engine.Options(unlockedFS{fsys}, logger, &pebble.EventListener{
		DataCorruption: func(pebble.DataCorruptionInfo) {}, // shows up where it is read
	}, 0)
	o.ReadOnly = true
	o.FormatMajorVersion = pebble.FormatMinSupported // any version is readable
	if i.openErr = engine.VerifyLogs(fsys, i.dataPath()); i.openErr == nil {
		i.db, i.openErr = pebble.Open(i.dataPath(), o)
	}
	return i, nil
}

func (i *inspection) dataPath() string { return engine.DataPath(i.fs, i.dir) }

func (i *inspection) close() error {
	var errs []error
	if i.db != nil {
		errs = append(errs, i.db.Close())
	}
	if i.lock != nil {
		errs = append(errs, i.lock.Close())
	}
	return errors.Join(errs...)
}

// unlockedFS has no lock for Pebble, which would need to write even for reading,
// and none of the files of its settings (see engine.IsSettings).
type unlockedFS struct{ vfs.FS }

func (u unlockedFS) List(dir string) ([]string, error) {
	names, err := u.FS.List(dir)
	return slices.DeleteFunc(names, engine.IsSettings), err
}

func (unlockedFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (u unlockedFS) Unwrap() vfs.FS { return u.FS }
