package file

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// logFile is one open file.
type logFile struct {
	name string // relative to the root
	file *os.File

	// As of the last refresh, and of every write since.
	size    int64
	written time.Time // last change

	fresh bool // opened since the archivist looked at its path
}

// refresh looks at the file on disk. It is not the same when another file, or
// none, has its name now.
func (f *logFile) refresh(root *os.Root) (same bool, err error) {
	mine, err := f.file.Stat()
	if err != nil {
		return false, err
	}
	now, err := root.Lstat(f.name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !os.SameFile(mine, now) {
		return false, err
	}
	f.size, f.written = now.Size(), now.ModTime()
	return true, nil
}

// append writes buf at the end. On failure it cuts the file back to where it was;
// if that fails too, the error reports it and the file must not be used again.
func (f *logFile) append(buf []byte) error {
	n, err := f.file.Write(buf)
	if err == nil && n == len(buf) {
		f.size += int64(n)
		return nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	if n == 0 {
		return err
	}
	return errors.Join(err, f.cut(f.size))
}

// cut makes size the file's end.
func (f *logFile) cut(size int64) error {
	if err := f.file.Truncate(size); err != nil {
		return err
	}
	f.size = size
	return nil
}
