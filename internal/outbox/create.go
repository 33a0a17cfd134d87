package outbox

import (
	"errors"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// unfinishedDir is where a new store is made. It becomes dataDir by one rename
// once it is complete, so a crash while it was made leaves nothing that looks
// like a damaged store; what is found under this name never held anything.
const unfinishedDir = "db.unfinished"

// makeDir makes dir, and makes it and its new parents durable.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string
	for at := dir; ; {
		if _, err := fsys.Stat(at); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, at)
		parent := fsys.PathDir(at)
		if parent == at {
			break
		}
		at = parent
	}
	if len(made) == 0 {
		return nil
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, path := range made {
		if err := syncDir(fsys, fsys.PathDir(path)); err != nil {
			return err
		}
	}
	return nil
}

// create makes an empty store if there is none in the directory.
func (s *Store) create() error {
	fsys := s.opts.FS
	data, unfinished := fsys.PathJoin(s.dir, dataDir), fsys.PathJoin(s.dir, unfinishedDir)
	if _, err := fsys.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.RemoveAll(unfinished); err != nil {
		return err
	}
	db, err := pebble.Open(unfinished, s.pebbleOptions())
	if err != nil {
		return err
	}
	err = db.Set(formatKey(), id32(layoutVersion), pebble.Sync)
	err = errors.Join(err, db.Close())
	if failure := s.Err(); failure != nil {
		return failure // the others follow from it
	}
	if err != nil {
		return err
	}
	if err := fsys.Rename(unfinished, data); err != nil {
		return err
	}
	return syncDir(fsys, s.dir)
}
