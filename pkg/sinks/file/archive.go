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
	"regexp"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Endings of a compressed file, and of one that is not finished.
const (
	gz      = ".gz"
	partial = ".partial"
)

// archivist compresses and deletes rotated files beside the writes. It lists a folder
// when its first file is opened, and knows from then on what was rotated: a listing
// would cost more with each file in the folder. What is done to a file is decided by
// what is on disk, so what one run leaves undone the next one does.
type archivist struct {
	root     string
	own      *regexp.Regexp // names of this sink's files
	rotation Rotate
	minFree  int64 // that a compression leaves
	access   access
	log      *slog.Logger
	metrics  *metrics

	stop   context.Context // ends a compression that is under way
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // guards what follows; not held over I/O
	listed  map[string]bool
	known   map[string]*history // path → its rotated files
	stamps  int                 // of all known paths
	pending []job               // in order
	running bool
}

// history is what is known of the rotated files of a path.
type history struct {
	newest string   // stamp
	stamps []string // of the files that are to be looked at, in order
	undone bool     // a file of the last process is not compressed
}

// maxStamps bounds what is remembered; beyond it everything is listed again.
const maxStamps = 1 << 17

// job is a path whose rotated files are to be tidied.
type job struct {
	name string
	keep bool // delete what is too many; only where the path is this sink's for certain
}

func newArchivist(t *template, r Rotate, minFree int64, rights access, log *slog.Logger, m *metrics) *archivist {
	stop, cancel := context.WithCancel(context.Background())
	return &archivist{
		root: t.root, own: t.matcher(), rotation: r, minFree: minFree, access: rights, log: log, metrics: m, stop: stop, cancel: cancel,
		listed: map[string]bool{}, known: map[string]*history{},
	}
}

// idle reports that there is nothing to do to rotated files.
func (a *archivist) idle() bool { return a.rotation.Compress != "gzip" && a.rotation.Keep == 0 }

// opened is called when a file was opened and locked: what the last process left
// undone of its rotated files is done now. The first file of a folder lists it.
func (a *archivist) opened(root *os.Root, name string) error {
	if a.idle() {
		return nil
	}
	if err := a.list(root, filepath.Dir(name)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.known[name]; h != nil && (h.undone || a.rotation.Keep > 0 && len(h.stamps) > a.rotation.Keep) {
		h.undone = false
		a.tidyLocked(job{name: name, keep: true})
	}
	return nil
}

// newest returns the stamp of the path's last rotation, or "".
func (a *archivist) newest(root *os.Root, name string) (string, error) {
	if err := a.list(root, filepath.Dir(name)); err != nil {
		return "", err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.known[name]; h != nil {
		return h.newest, nil
	}
	return "", nil
}

// rotated is called when a file was renamed with a stamp.
func (a *archivist) rotated(name, at string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addLocked(name, at, "")
	if !a.idle() {
		a.tidyLocked(job{name: name, keep: true})
	}
}

// reset discards the state: another folder has replaced the root.
func (a *archivist) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resetLocked()
}

func (a *archivist) resetLocked() {
	clear(a.listed)
	clear(a.known)
	a.stamps = 0
}

// list learns what rotated files there are in a folder. It is called in the sink's
// turn, so that no rotation comes between.
func (a *archivist) list(root *os.Root, dir string) error {
	a.mu.Lock()
	if a.stamps > maxStamps {
		a.resetLocked()
	}
	listed := a.listed[dir]
	a.mu.Unlock()
	if listed {
		return nil
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	found := map[string]*history{}
	for {
		entries, err := d.ReadDir(1024)
		a.learn(found, dir, entries)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, d.Close())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listed[dir] = true
	for name, h := range found {
		slices.Sort(h.stamps)
		h.stamps = slices.Compact(h.stamps)
		// No event may ever be written to that path again.
		if h.undone && a.own.MatchString(name) {
			a.tidyLocked(job{name: name})
		}
	}
	return d.Close()
}

func (a *archivist) learn(found map[string]*history, dir string, entries []fs.DirEntry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, entry := range entries {
		base, at, ending, ok := parseRotated(entry.Name())
		if ok && entry.Type().IsRegular() {
			name := filepath.Join(dir, base)
			found[name] = a.addLocked(name, at, ending)
		}
	}
}

// addLocked adds a rotated file. Of those that need no more care only the newest stamp
// is of interest.
func (a *archivist) addLocked(name, at, ending string) *history {
	h := a.known[name]
	if h == nil {
		h = &history{}
		a.known[name] = h
		a.stamps++
	}
	h.newest = max(h.newest, at)
	undone := a.rotation.Compress == "gzip" && ending != gz
	h.undone = h.undone || undone
	if undone || a.rotation.Keep > 0 {
		h.stamps = append(h.stamps, at)
		a.stamps++
	}
	return h
}

// tidyLocked does a job in the background. It starts a goroutine unless one is at
// work; Close waits for it.
func (a *archivist) tidyLocked(j job) {
	if i := slices.IndexFunc(a.pending, func(p job) bool { return p.name == j.name }); i >= 0 {
		a.pending[i].keep = a.pending[i].keep || j.keep
		return
	}
	a.pending = append(a.pending, j)
	if !a.running && a.stop.Err() == nil {
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
		j := a.pending[0]
		a.pending = a.pending[1:]
		a.mu.Unlock()

		if err := a.tidy(j); err != nil && a.stop.Err() == nil {
			a.metrics.archiveErrors.Inc()
			a.log.Warn("compress or delete rotated files; retry after the next rotation", "file", j.name, "error", err)
		}
	}
}

// tidy works in a root of its own, for the sink's may be replaced meanwhile.
func (a *archivist) tidy(j job) (err error) {
	root, err := os.OpenRoot(a.root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	a.mu.Lock()
	var stamps []string
	if h := a.known[j.name]; h != nil {
		stamps = slices.Clone(h.stamps)
	}
	a.mu.Unlock()
	var errs []error
	done := map[string]bool{} // stamps that need no more care
	count := 0
	for _, at := range slices.Backward(stamps) {
		r, err := findRotated(root, j.name, at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(r.endings) == 0 { // another program removed it
			done[at] = true
			continue
		}
		count++
		switch {
		case a.rotation.Keep > 0 && count > a.rotation.Keep:
			if j.keep {
				err = r.remove(root)
				done[at] = err == nil
			}
		case a.rotation.Compress == "gzip":
			err = a.compress(root, r)
			done[at] = err == nil && a.rotation.Keep == 0
		}
		errs = append(errs, err)
	}
	a.remove(j.name, done)
	return errors.Join(append(errs, syncDir(root, filepath.Dir(j.name)))...)
}

func (a *archivist) remove(name string, stamps map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.known[name]; h != nil {
		before := len(h.stamps)
		h.stamps = slices.DeleteFunc(h.stamps, func(at string) bool { return stamps[at] })
		a.stamps -= before - len(h.stamps)
	}
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

// findRotated looks for the rotated file of a name and stamp.
func findRotated(root *os.Root, name, at string) (*rotatedFile, error) {
	stem, ext := split(name)
	r := &rotatedFile{name: stem + mark + at + ext}
	for _, ending := range [...]string{"", gz, gz + partial} {
		info, err := root.Lstat(r.name + ending)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case info.Mode().IsRegular():
			r.endings = append(r.endings, ending)
		}
	}
	return r, nil
}

// compress makes the .gz of a rotated file and then removes the file itself. The lock
// on the file keeps another archivist, whose names may overlap, from doing the same.
func (a *archivist) compress(root *os.Root, r *rotatedFile) (err error) {
	if !r.has("") {
		if r.has(gz + partial) { // left by a crash, or by removal of the file
			return root.Remove(r.name + gz + partial)
		}
		return nil
	}
	in := &logFile{name: r.name}
	if in.file, err = root.Open(r.name); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.file.Close()) }()
	if err := lock(in.file); err != nil {
		return fmt.Errorf("compress %s: another sink or process is at it: %w", r.name, err)
	}
	if same, err := in.refresh(root); err != nil || !same {
		return err // the other one has finished
	}
	if r.has(gz + partial) { // left by a crash
		if err := root.Remove(r.name + gz + partial); err != nil {
			return err
		}
	}
	if !r.has(gz) {
		if err := a.writeGzip(root, in.file, r.name); err != nil {
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

func (a *archivist) writeGzip(root *os.Root, in io.Reader, name string) (err error) {
	out, err := root.OpenFile(name+gz+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := a.access.grant(out); err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	if _, err := io.CopyBuffer(zip, &source{a, in}, make([]byte, 256<<10)); err != nil { // the disk is asked for each
		return err
	}
	return errors.Join(zip.Close(), fsync(out))
}

// source is what is compressed. It fails once the archivist is to stop, or the disk has no room for more.
type source struct {
	a *archivist
	r io.Reader
}

func (s *source) Read(p []byte) (int, error) {
	if err := errors.Join(s.a.stop.Err(), room(s.a.root, int64(len(p)), s.a.minFree)); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
