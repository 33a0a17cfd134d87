package reload

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/watcherd/watcherd/config"
)

// folder reports changes in a folder. The file itself is not watched: a watch
// follows the inode, which the first rename or symlink swap takes away. A nil
// folder never reports anything.
type folder struct {
	dir      string
	notifier *fsnotify.Watcher
}

// watchFolder starts to watch. After an error the folder, if it is not nil, may
// come to work with renew.
func watchFolder(dir string) (*folder, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &folder{dir: dir, notifier: n}, n.Add(dir)
}

func (f *folder) events() <-chan fsnotify.Event {
	if f == nil {
		return nil
	}
	return f.notifier.Events
}

// losses signals that events may have been lost.
func (f *folder) losses() <-chan error {
	if f == nil {
		return nil
	}
	return f.notifier.Errors
}

// renew watches the folder that now has the name, which may be another than
// before. If there is none, the next poll retries.
func (f *folder) renew() {
	if f == nil {
		return
	}
	_ = f.notifier.Add(f.dir) // until it works the file is missing, and that is reported
}

func (f *folder) close() {
	if f != nil {
		_ = f.notifier.Close() // it only ever returns nil
	}
}

// concerns reports whether a change of name in the file's folder may be one of
// the file. Kubernetes swaps the link ..data, through which its files are seen.
func concerns(name, path string) bool {
	base := filepath.Base(name)
	return base == filepath.Base(path) || base == "..data"
}

// ownMount reports whether a file is a mount point itself. Where the system does
// not report it, it is not.
func ownMount(path string) bool {
	full, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer mounts.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && unescape.Replace(fields[4]) == full {
			return true
		}
	}
	return false
}

// fileContent is the result of reading the file: its content or an error.
type fileContent struct {
	data []byte
	sum  [sha256.Size]byte
	err  error
}

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
