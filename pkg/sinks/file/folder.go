package file

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// folder is the root folder and the files open in it. It is used in the sink's
// turn only, except for its path.
type folder struct {
	path    string
	maxOpen int
	access  access
	log     *slog.Logger
	metrics *metrics

	root  *os.Root                 // nil until needed
	info  fs.FileInfo              // of root, to notice a folder that was replaced
	files map[string]*list.Element // name → element of recent
	whole map[string]struct{}      // names of files that were opened: they have no holes
	// recent holds *logFile, the last used in front.
	recent *list.List
}

// prepare makes sure that root is the folder that stands at path now, making it
// when there is none. It reports whether that is another one than before.
func (d *folder) prepare() (replaced bool, err error) {
	if d.root != nil {
		if now, err := os.Stat(d.path); err == nil && os.SameFile(now, d.info) {
			return false, nil
		}
		d.log.Warn("folder of the file sink was replaced or removed; reopening its files", "path", d.path)
		if err := d.close(); err != nil {
			d.log.Warn("close files of a removed folder", "path", d.path, "error", err)
		}
	}
	if err := d.access.makeFolder(d.path); err != nil {
		return false, err
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return false, err
	}
	info, err := root.Stat(".")
	if err != nil {
		return false, errors.Join(err, root.Close())
	}
	d.root, d.info = root, info
	clear(d.whole)
	return true, nil
}

// makeFolder makes the folder and those above it, and makes each new name durable.
func (a *access) makeFolder(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := a.makeFolder(parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, 0o700)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if made {
		err = a.openFolderAt(path)
	}
	if err == nil {
		err = syncFolder(parent)
	}
	if made && err != nil { // the next attempt would take it for durable
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func (a *access) openFolderAt(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(a.openFolder(f), f.Close())
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(fsync(f), f.Close())
}

// room returns an error unless need bytes leave floor free on the disk of a folder.
func room(path string, need, floor int64) error {
	if floor == 0 {
		return nil
	}
	free, known, err := freeSpace(path)
	if err != nil || !known || free-need >= floor {
		return err
	}
	return fmt.Errorf("%d MiB are free on the disk of %s, of which minFree leaves %d MiB to others: make room", free>>20, path, floor>>20)
}

// open returns the file of that name, which stands on disk under that name now. The lines come next.
func (d *folder) open(name string, lines []byte) (*logFile, error) {
	if el, ok := d.files[name]; ok {
		f, _ := el.Value.(*logFile)
		left := f.size
		same, err := f.refresh(d.root)
		if err == nil && same && f.size == left {
			d.recent.MoveToFront(el)
			return f, nil
		}
		// What another program has cut or added may end amid a line.
		if err := d.drop(f); err != nil {
			d.log.Warn("close a file that was moved or changed", "file", name, "error", err)
		}
		delete(d.whole, name)
	}
	d.trim()
	f, err := d.openNew(name, lines)
	if err != nil {
		return nil, err
	}
	d.files[name] = d.recent.PushFront(f)
	d.metrics.open.Set(float64(len(d.files)))
	return f, nil
}

// trim closes the files that were longest not used until there is room for one more.
func (d *folder) trim() {
	for len(d.files) >= d.maxOpen {
		f, _ := d.recent.Back().Value.(*logFile)
		if err := d.drop(f); err != nil {
			d.log.Warn("close the least recently used file", "file", f.name, "error", err)
		}
	}
}

func (d *folder) drop(f *logFile) error {
	if el, ok := d.files[f.name]; ok {
		d.recent.Remove(el)
		delete(d.files, f.name)
		d.metrics.open.Set(float64(len(d.files)))
	}
	return f.file.Close()
}

// close closes every file and the root; the next prepare opens it again.
func (d *folder) close() error {
	var errs []error
	for d.recent.Len() > 0 {
		f, _ := d.recent.Front().Value.(*logFile)
		errs = append(errs, d.drop(f))
	}
	if d.root != nil {
		errs = append(errs, d.root.Close())
		d.root = nil
	}
	return errors.Join(errs...)
}

// openNew opens or makes a file, ends what a crash left torn, and locks it.
func (d *folder) openNew(name string, lines []byte) (*logFile, error) {
	if err := d.makeParents(name); err != nil {
		return nil, err
	}
	// O_EXCL never follows a link in the last part, which Lstat has then ruled out
	// for the other case; what is opened is compared with what is there.
	const flags = os.O_RDWR | os.O_APPEND
	file, err := d.root.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600)
	created := err == nil
	if errors.Is(err, fs.ErrExist) {
		if _, err := d.regular(name); err != nil {
			return nil, err
		}
		file, err = d.root.OpenFile(name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	f := &logFile{name: name, file: file, fresh: true}
	if err := d.adopt(f, created, lines); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

func (d *folder) adopt(f *logFile, created bool, lines []byte) error {
	if same, err := f.refresh(d.root); err != nil {
		return err
	} else if !same {
		return fmt.Errorf("%s was replaced while it was opened", f.name)
	}
	if err := lock(f.file); err != nil {
		return fmt.Errorf("%s is written by another sink or process: %w", f.name, err)
	}
	if created {
		if err := syncDir(d.root, filepath.Dir(f.name)); err != nil { // the next attempt would take the name for durable
			return errors.Join(err, d.root.Remove(f.name))
		}
		d.isWhole(f.name)
		return d.access.grant(f.file)
	}
	if err := d.access.grant(f.file); err != nil {
		return err
	}
	// Every batch since it was opened first is synced: no power cut has come between.
	_, whole := d.whole[f.name]
	size := f.size
	cut, err := f.repair(!whole, lines)
	if err != nil {
		return fmt.Errorf("repair %s: %w", f.name, err)
	}
	d.isWhole(f.name)
	switch {
	case cut > 0:
		d.metrics.repairs.Inc()
		d.log.Warn("removed an incomplete last line; its events come again, unless another program has cut it", "file", f.name, "bytes", cut)
	case f.size > size:
		d.log.Warn("terminated the last line of another program's file", "file", f.name)
	}
	return nil
}

// maxWhole bounds the names that are remembered; beyond it files are looked through again.
const maxWhole = 1 << 17

func (d *folder) isWhole(name string) {
	if len(d.whole) >= maxWhole {
		clear(d.whole)
	}
	d.whole[name] = struct{}{}
}

// makeParents makes the folders above name, each checked not to be a link.
func (d *folder) makeParents(name string) error {
	dir := filepath.Dir(name)
	if dir == "." {
		return nil
	}
	if err := d.makeParents(dir); err != nil {
		return err
	}
	info, err := d.root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.root.Mkdir(dir, 0o700); err == nil {
			if err = d.openFolder(dir); err != nil { // the next attempt would take it for durable
				err = errors.Join(err, d.root.Remove(dir))
			}
			return err
		}
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &refusedError{name: dir, what: "not a folder"}
	}
	return nil
}

// openFolder ends the making of a folder.
func (d *folder) openFolder(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.access.openFolder(f), f.Close(), syncDir(d.root, filepath.Dir(dir)))
}

// regular refuses what is not a regular file, links above all.
func (d *folder) regular(name string) (fs.FileInfo, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &refusedError{name: name, what: "not a regular file"}
	}
	return info, nil
}

// refusedError reports something at the path that this sink does not
// write to or through.
type refusedError struct{ name, what string }

func (e *refusedError) Error() string { return e.name + " is " + e.what + "; links are refused" }

// fsync is every sync of a file or folder; a test observes them.
var fsync = (*os.File).Sync

// syncDir makes the names in a folder durable.
func syncDir(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(fsync(f), f.Close())
}
