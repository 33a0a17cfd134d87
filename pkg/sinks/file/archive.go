package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Endings of a compressed file, and of one that is not finished.
const (
	gz      = ".gz"
	partial = ".partial"
)

// archivist compresses and deletes rotated files beside the writes. It looks at
// what is on disk, so what one run leaves undone the next one does.
type archivist struct {
	root     string
	rotation Rotate
	log      *slog.Logger
	metrics  *metrics

	stop    context.Context // ends a compression that is under way; done after close
	cancel  context.CancelFunc
	done    sync.WaitGroup
	mu      sync.Mutex // guards what follows
	pending []string   // names to tidy, in order
	running bool
}

func newArchivist(root string, r Rotate, log *slog.Logger, m *metrics) *archivist {
	stop, cancel := context.WithCancel(context.Background())
	return &archivist{root: root, rotation: r, log: log, metrics: m, stop: stop, cancel: cancel}
}

// tidy compresses the rotated files of a name and deletes what is too many, in
// the background. It starts a goroutine unless one is at work; close waits for it.
func (a *archivist) tidy(name string) {
	if a.rotation.Compress != "gzip" && a.rotation.Keep == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.pending, name) {
		a.pending = append(a.pending, name)
	}
	if !a.running {
		a.running = true
		a.done.Go(a.work)
	}
}

func (a *archivist) work() {
	for {
		a.mu.Lock()
		if len(a.pending) == 0 || a.stop.Err() != nil {
			a.running = false
			a.mu.Unlock()
			return
		}
		name := a.pending[0]
		a.pending = a.pending[1:]
		a.mu.Unlock()

		if err := a.tidyNow(name); err != nil && a.stop.Err() == nil {
			a.metrics.archiveErrors.Inc()
			a.log.Warn("tidy rotated files; tried again after the next rotation", "file", name, "error", err)
		}
	}
}

// tidyNow works in a root of its own, for the sink's may be replaced meanwhile.
func (a *archivist) tidyNow(name string) (err error) {
	root, err := os.OpenRoot(a.root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	dir, base := filepath.Split(name)
	dir = filepath.Clean(dir)
	rotated, err := rotatedFiles(root, dir, base)
	if err != nil {
		return err
	}
	var errs []error
	for i, r := range rotated { // the newest first
		switch {
		case a.rotation.Keep > 0 && i >= a.rotation.Keep:
			errs = append(errs, r.remove(root))
		case a.rotation.Compress == "gzip":
			errs = append(errs, a.compress(root, r))
		}
	}
	return errors.Join(append(errs, syncDir(root, dir))...)
}

// rotatedFile is one rotated file: its name before compression, and the endings
// under which it is there.
type rotatedFile struct {
	name    string
	endings []string
}

func (r *rotatedFile) has(ending string) bool { return slices.Contains(r.endings, ending) }

func (r *rotatedFile) remove(root *os.Root) error {
	var errs []error
	for _, ending := range r.endings {
		errs = append(errs, root.Remove(r.name+ending))
	}
	return errors.Join(errs...)
}

// rotatedFiles returns the rotated files of a path, the newest first.
func rotatedFiles(root *os.Root, dir, base string) ([]*rotatedFile, error) {
	d, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	stem, ext := split(base)
	var out []*rotatedFile
	byStamp := map[string]*rotatedFile{}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(b.Name(), a.Name()) })
	for _, entry := range entries {
		at, ending, ok := stampOf(entry.Name(), base)
		if !ok || !entry.Type().IsRegular() {
			continue
		}
		r := byStamp[at]
		if r == nil {
			r = &rotatedFile{name: filepath.Join(dir, stem+mark+at+ext)}
			byStamp[at] = r
			out = append(out, r)
		}
		r.endings = append(r.endings, ending)
	}
	return out, nil
}

// compress makes the .gz of a rotated file and then removes the file itself.
func (a *archivist) compress(root *os.Root, r *rotatedFile) error {
	if r.has(gz + partial) { // left by a crash
		if err := root.Remove(r.name + gz + partial); err != nil {
			return err
		}
	}
	if !r.has("") {
		return nil
	}
	if !r.has(gz) {
		if err := a.writeGzip(root, r.name); err != nil {
			return errors.Join(fmt.Errorf("compress %s: %w", r.name, err), root.Remove(r.name+gz+partial))
		}
		if err := root.Rename(r.name+gz+partial, r.name+gz); err != nil {
			return err
		}
		// The copy must be there for good before the original goes.
		if err := syncDir(root, filepath.Dir(r.name)); err != nil {
			return err
		}
	}
	return root.Remove(r.name)
}

func (a *archivist) writeGzip(root *os.Root, name string) (err error) {
	in, err := root.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := root.OpenFile(name+gz+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	zip := gzip.NewWriter(out)
	if _, err := io.Copy(zip, &stoppable{ctx: a.stop, r: in}); err != nil {
		return err
	}
	return errors.Join(zip.Close(), out.Sync())
}

// stoppable is a reader that fails once its context is done.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s *stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// close stops what is under way and waits for it.
func (a *archivist) close(ctx context.Context) error {
	a.cancel()
	gone := make(chan struct{})
	go func() {
		a.done.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
