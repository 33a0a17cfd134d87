package reload

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/watcherd/watcherd/config"
)

// fileContent is the result of reading the file: its content or an error.
type fileContent struct {
	data []byte
	sum  [sha256.Size]byte
	err  error
}

// same reports whether two looks found the same.
func (s fileContent) same(other fileContent) bool {
	if s.err != nil || other.err != nil {
		return s.err != nil && other.err != nil && s.err.Error() == other.err.Error()
	}
	return s.sum == other.sum
}

var errEmpty = errors.New("the config file is empty")

// read looks at the file. What is larger than a configuration may be is cut right
// above that, so that it is refused as such.
func read(path string) fileContent {
	info, err := os.Stat(path)
	if err != nil {
		return fileContent{err: err}
	}
	if !info.Mode().IsRegular() {
		// Opening a pipe would block.
		return fileContent{err: fmt.Errorf("%s is not a regular file", path)}
	}
	file, err := os.Open(path)
	if err != nil {
		return fileContent{err: err}
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, config.MaxSize+1))
	if err != nil {
		return fileContent{err: err}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fileContent{err: errEmpty}
	}
	return fileContent{data: data, sum: sha256.Sum256(data)}
}
