package rawwatch

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/watcherd/watcherd/pkg/compact"
)

const (
	// readBuffer holds most lines whole, so that they need no copy.
	readBuffer = 32 << 10

	// keepBuffer is the largest buffer kept from one long line to the next.
	keepBuffer = 1 << 20

	// maxLine bounds a line: an object and what a watch event puts around it.
	maxLine = compact.MaxRawLen + 1<<10
)

// lines splits a watch stream into lines.
type lines struct {
	r    *bufio.Reader
	long []byte // a line that did not fit in r's buffer
	max  int    // the longest line
}

func newLines(r io.Reader) *lines {
	return &lines{r: bufio.NewReaderSize(r, readBuffer), max: maxLine}
}

// next returns the next line that is not empty, without its end, valid until the
// following call. A last line without an end counts as a line; then comes io.EOF.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		if line = trim(line); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (l *lines) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	if cap(l.long) > keepBuffer {
		l.long = nil
	}
	l.long = append(l.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.long) > l.max {
			return nil, &unreadable{fmt.Errorf("a watch event of more than %d bytes", l.max)}
		}
		line, err = l.r.ReadSlice('\n')
		l.long = append(l.long, line...)
	}
	return l.long, err
}

func trim(line []byte) []byte {
	for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
		line = line[:n-1]
	}
	return line
}
