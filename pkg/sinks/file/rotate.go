package file

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// due reports whether f must be rotated before n more bytes are written at a time.
func (r Rotate) due(f *logFile, n int, at time.Time) bool {
	if f.size == 0 {
		return false
	}
	if r.MaxBytes > 0 && f.size+int64(n) > int64(r.MaxBytes) {
		return true
	}
	age := r.MaxAge.Std()
	return age > 0 && interval(f.written, age) != interval(at, age)
}

// interval numbers the periods of length d since 1970. Counting from there, and
// not from a start that would have to be remembered, survives restarts.
func interval(t time.Time, d time.Duration) int64 { return t.UnixNano() / int64(d) }

// rotate sets f aside under a name with the time and opens a new file.
func (s *sink) rotate(f *logFile) (*logFile, error) {
	root := s.folder.root
	newest, err := s.archive.newest(root, f.name)
	if err != nil {
		return nil, err
	}
	aside, at, err := freeName(root, f.name, newest)
	if err != nil {
		return nil, err
	}
	if err := root.Rename(f.name, aside); err != nil {
		return nil, err
	}
	if err := errors.Join(s.folder.drop(f), syncDir(root, filepath.Dir(f.name))); err != nil {
		return nil, err
	}
	s.metrics.rotations.Inc()
	s.archive.rotated(f.name, at)
	return s.folder.open(f.name, nil)
}

// stamp is the form of the time in a rotated file's name. The names of one path
// sort in the order of its rotations.
const stamp = "20060102T150405.000Z"

// mark stands before the stamp. No value of a token can hold it, so no object can
// be named so that its file passes for a rotated one of another.
const mark = "@"

// freeName returns a name for a rotated file that is not taken, and its stamp. The
// stamp comes after the newest one of the path, independent of the clock.
func freeName(root *os.Root, name, newest string) (aside, at string, err error) {
	stem, ext := split(name)
	t := time.Now().UTC()
	if last, err := time.Parse(stamp, newest); err == nil && !t.After(last) {
		t = last.Add(time.Millisecond)
	}
	for ; ; t = t.Add(time.Millisecond) {
		at = t.Format(stamp)
		if at <= newest {
			continue // less than a millisecond after it
		}
		aside = stem + mark + at + ext
		taken := false
		for _, candidate := range [...]string{aside, aside + gz} {
			_, err := root.Lstat(candidate)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", "", err
			}
			taken = taken || err == nil
		}
		if !taken {
			return aside, at, nil
		}
	}
}

// split cuts a name before its extension. That of a compressed file is none: at the end of a rotated file's name it
// is an ending, and without that the name is another file's.
func split(name string) (stem, ext string) {
	if ext = filepath.Ext(name); ext == gz {
		ext = ""
	}
	return strings.TrimSuffix(name, ext), ext
}

// parseRotated takes the base name of a rotated file apart: the path it was renamed
// from, the stamp, and the ending after that: nothing, gz, or gz and partial.
func parseRotated(entry string) (base, at, ending string, ok bool) {
	rest := entry
	for _, e := range [...]string{gz + partial, gz} {
		if cut, found := strings.CutSuffix(rest, e); found {
			rest, ending = cut, e
			break
		}
	}
	i := strings.LastIndex(rest, mark)
	if i < 0 || len(rest) < i+len(mark)+len(stamp) {
		return "", "", "", false
	}
	at, ext := rest[i+len(mark):i+len(mark)+len(stamp)], rest[i+len(mark)+len(stamp):]
	if _, err := time.Parse(stamp, at); err != nil {
		return "", "", "", false
	}
	base = rest[:i] + ext
	_, own := split(base)
	return base, at, ending, own == ext
}

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
	if f.written.IsZero() || now.Size() != f.size { // else it is as this sink left it, and a file server may have another clock
		f.written = now.ModTime()
	}
	f.size = now.Size()
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

func (f *logFile) cut(size int64) error {
	if err := f.file.Truncate(size); err != nil {
		return err
	}
	f.size = size
	return nil
}

// repairWindow is how far back from its end a file is searched for what a power cut
// took out of unsynced batches. It slides: each hole found extends the search.
const repairWindow = 16 << 20

// repair ends what a crash or a power cut left, so that the next line starts on its
// own. A hole is a run of zeros where a page was lost, since JSON holds no zero byte;
// deep also looks for those. What follows a hole, and a last line without its newline,
// was never accepted if it is a line of this package: it is cut off. A last line of
// another program's file gets its newline. A body looks like any other program's line: one is known by the lines
// that come next, as its event comes again.
func (f *logFile) repair(deep bool, lines []byte) (cut int64, err error) {
	end := f.size
	if deep {
		if end, err = wholeUntil(f.file, f.size); err != nil {
			return 0, err
		}
	}
	if end == f.size {
		last, err := lastNewline(f.file, f.size)
		if err != nil || last == f.size {
			return 0, err
		}
		ours, err := startsLine(f.file, last, f.size)
		if err == nil && !ours {
			ours, err = beginsOneOf(lines, f.file, last, f.size)
		}
		if err != nil {
			return 0, err
		}
		if !ours {
			return 0, f.append([]byte{'\n'})
		}
		end = last
	}
	cut = f.size - end
	if err := f.cut(end); err != nil {
		return 0, err
	}
	return cut, fsync(f.file)
}

// wholeUntil returns where the line with the first hole near the end begins, or size
// if there is no hole, or one in a line that is not of this package.
func wholeUntil(r io.ReaderAt, size int64) (int64, error) {
	hole, err := firstZero(r, size)
	if err != nil || hole < 0 {
		return size, err
	}
	start, err := lastNewline(r, hole)
	if err != nil {
		return 0, err
	}
	at := start
	if start == hole { // the line's beginning is lost: the line before decides
		if start == 0 {
			return whole(r, size)
		}
		if at, err = lastNewline(r, start-1); err != nil {
			return 0, err
		}
	}
	if ours, err := startsLine(r, at, hole); err != nil || !ours {
		return size, err
	}
	return start, nil
}

// whole judges a file that begins with zeros: a lost first page is of zeros alone.
func whole(r io.ReaderAt, size int64) (int64, error) {
	page := make([]byte, min(512, size))
	if _, err := r.ReadAt(page, 0); err != nil {
		return 0, err
	}
	if len(bytes.Trim(page, "\x00")) == 0 {
		return 0, nil
	}
	return size, nil
}

// firstZero returns the offset of the first zero byte of those near the end, or -1.
func firstZero(r io.ReaderAt, size int64) (int64, error) {
	const block = 1 << 20
	buf := make([]byte, min(block, size))
	first := int64(-1)
	floor := size - repairWindow
	for end := size; end > max(floor, 0); {
		n := min(block, end)
		if _, err := r.ReadAt(buf[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.IndexByte(buf[:n], 0); i >= 0 {
			first = end - n + int64(i)
			floor = first - repairWindow
		}
		end -= n
	}
	return first, nil
}

// lineStarts are what every line of this package begins with, in one format or another.
var lineStarts = func() [][]byte {
	starts := [][]byte{[]byte(`{"specversion":"1.0","id":"`)}
	for _, t := range [...]event.Type{event.Added, event.Updated, event.Deleted, event.Sync, event.Gap} {
		starts = append(starts, []byte(`{"type":"`+string(t)+`","id":"`))
	}
	return starts
}()

// startsLine reports whether what is there from at until end begins like a line of this
// package, or is the beginning of such a beginning.
func startsLine(r io.ReaderAt, at, end int64) (bool, error) {
	var buf [64]byte
	got := buf[:min(int64(len(buf)), end-at)]
	if _, err := r.ReadAt(got, at); err != nil {
		return false, err
	}
	for _, start := range lineStarts {
		n := min(len(start), len(got))
		if bytes.Equal(got[:n], start[:n]) {
			return true, nil
		}
	}
	return false, nil
}

// beginsOneOf reports whether what is there from at until end is the beginning of one of the lines.
func beginsOneOf(lines []byte, r io.ReaderAt, at, end int64) (bool, error) {
	if end-at > int64(len(lines)) {
		return false, nil
	}
	got := make([]byte, 1+end-at)
	if _, err := r.ReadAt(got[1:], at); err != nil {
		return false, err
	}
	got[0] = '\n'
	return bytes.HasPrefix(lines, got[1:]) || bytes.Contains(lines, got), nil
}

// lastNewline returns the length of r's part that ends in a newline, looking
// backwards from size.
func lastNewline(r io.ReaderAt, size int64) (int64, error) {
	const block = 64 << 10
	buf := make([]byte, min(block, size))
	for end := size; end > 0; {
		n := min(block, end)
		if _, err := r.ReadAt(buf[:n], end-n); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			return end - n + int64(i) + 1, nil
		}
		end -= n
	}
	return 0, nil
}
