package file

import (
	"bytes"
	"io"

	"github.com/watcherd/watcherd/pkg/event"
)

// repairWindow is how far back from its end a file is searched for what a power cut
// took out of unsynced batches. It slides: each hole found extends the search.
const repairWindow = 16 << 20

// repair ends what a crash or a power cut left, so that the next line starts on its
// own. A hole is a run of zeros where a page was lost, since JSON holds no zero byte;
// deep also looks for those. What follows a hole, and a last line without its newline,
// was never accepted if it is a line of this package: it is cut off. A last line of
// another program's file gets its newline.
func (f *logFile) repair(deep bool) (cut int64, err error) {
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
