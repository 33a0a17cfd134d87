package rawjson

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// endless continues a response with one byte until it has given all that a test allows.
type endless struct {
	left int
	byte byte
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.ErrClosedPipe
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = e.byte
	}
	e.left -= n
	return n, nil
}

// Of an item that does not end no more is read than an item may have.
func TestEndlessItem(t *testing.T) {
	for name, start := range map[string]string{
		"an item":           `{"items":[{"metadata":{"name":"`,
		"the metadata":      `{"metadata":{"continue":"`,
		"the name of a key": `{"`,
	} {
		rest := &endless{left: 5 * maxItem, byte: 'x'}
		_, err := ScanList(io.MultiReader(strings.NewReader(start), rest), func([]byte) error { return nil })
		if read := 5*maxItem - rest.left; !errors.Is(err, ErrLongItem) || read > 2*maxItem+listBuffer {
			t.Errorf("%s: %d bytes read, error %v", name, read, err)
		}
	}
}
