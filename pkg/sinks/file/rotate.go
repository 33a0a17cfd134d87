package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// due reports whether f must be set aside before n more bytes are written.
func (r Rotate) due(f *logFile, n int) bool {
	if f.size == 0 {
		return false
	}
	if r.MaxBytes > 0 && f.size+int64(n) > int64(r.MaxBytes) {
		return true
	}
	age := r.MaxAge.Std()
	return age > 0 && interval(f.written, age) != interval(time.Now(), age)
}

// interval numbers the stretches of length d since 1970. Counting from there, and
// not from a start that would have to be remembered, survives restarts.
func interval(t time.Time, d time.Duration) int64 { return t.UnixNano() / int64(d) }

// rotate sets f aside under a name with the time and opens a new file.
func (s *sink) rotate(f *logFile) (*logFile, error) {
	root := s.folder.root
	aside, err := freeName(root, f.name)
	if err != nil {
		return nil, err
	}
	if err := root.Rename(f.name, aside); err != nil {
		return nil, err
	}
	if err := errors.Join(s.folder.forget(f), syncDir(root, filepath.Dir(f.name))); err != nil {
		return nil, err
	}
	s.metrics.rotations.Inc()
	s.archive.tidy(f.name)
	return s.folder.open(f.name)
}

// stamp is the form of the time in a rotated file's name. The names of one path
// sort by age.
const stamp = "20060102T150405.000Z"

// mark stands before the stamp. No value of a token can hold it, so no object can
// be named so that its file passes for a rotated one of another.
const mark = "@"

// freeName returns a name for a rotated file that is not taken.
func freeName(root *os.Root, name string) (string, error) {
	stem, ext := split(name)
	for t := time.Now().UTC(); ; t = t.Add(time.Millisecond) {
		aside := stem + mark + t.Format(stamp) + ext
		taken := false
		for _, candidate := range [...]string{aside, aside + gz} {
			_, err := root.Lstat(candidate)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			taken = taken || err == nil
		}
		if !taken {
			return aside, nil
		}
	}
}

// split cuts a name before its extension.
func split(name string) (stem, ext string) {
	ext = filepath.Ext(name)
	return strings.TrimSuffix(name, ext), ext
}

// stampOf returns the stamp of a rotated file of the path with that base name,
// and what follows its extension: nothing, gz or gz and partial.
func stampOf(entry, base string) (at, suffix string, ok bool) {
	stem, ext := split(base)
	rest, ok := strings.CutPrefix(entry, stem+mark)
	if !ok || len(rest) < len(stamp) {
		return "", "", false
	}
	at = rest[:len(stamp)]
	if _, err := time.Parse(stamp, at); err != nil {
		return "", "", false
	}
	suffix, ok = strings.CutPrefix(rest[len(stamp):], ext)
	return at, suffix, ok && (suffix == "" || suffix == gz || suffix == gz+partial)
}
