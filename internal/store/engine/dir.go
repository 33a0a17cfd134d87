package engine

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// The files of a store directory. Pebble's own lie in dataDir.
const (
	lockFile  = "LOCK"
	ownerFile = "OWNER"
	dataDir   = "db"

	// In dataDir, and gone with that:
	lossFile   = "LOSS"
	repairFile = "REPAIR"
)

// The errors of a directory that belongs to another process.
var (
	ErrLocked = errors.New("the store is in use by another process")
	ErrStolen = errors.New("another process took over the store")
)

// A Dir is the directory of a store, held by this process: its lock, its owner
// token, the reserve of disk room, and the filesystem that Pebble sees. Its methods
// may be called from any goroutine once Open has returned.
type Dir struct {
	o       DirOptions
	path    string
	lock    io.Closer
	owner   *owner
	reserve *reserve
	fence   *fence
}

// DirOptions are the settings of [OpenDir]; all are required.
type DirOptions struct {
	FS         vfs.FS
	MaxBytes   int64        // the store's budget, which the reserve is sized by; 0 = none
	PauseBytes func() int64 // the size of Pebble's files from which on ingest pauses now; 0 = none, there is no budget
	Left       func() int64 // what Pebble's files leave of the budget as it is now; the most there is for no budget
	Logger     *slog.Logger
	// Fail is called with an error after which nothing may be written.
	Fail func(error)
	// Failure returns the cause of the failure, nil before Fail.
	Failure func() error
}

// OpenDir makes the directory if it is absent, and locks it. It fails with ErrLocked
// if another process has the lock. Close releases it.
func OpenDir(path string, o DirOptions) (*Dir, error) {
	if err := makeDir(o.FS, path); err != nil {
		return nil, fmt.Errorf("create the store's directory: %w", err)
	}
	lock, err := LockDir(o.FS, path)
	if err != nil {
		return nil, err
	}
	return &Dir{o: o, path: path, lock: lock}, nil
}

// Take writes the owner token and finds the reserve. Before it, nothing of the
// directory is read or written; after it, FS may be used.
func (d *Dir) Take() (err error) {
	d.reserve = openReserve(d.o.FS, d.path, d.o.MaxBytes)
	d.owner, err = takeOwnership(d.o.FS, d.path)
	for errors.Is(err, syscall.ENOSPC) && d.reserve.drop(true) {
		d.owner, err = takeOwnership(d.o.FS, d.path)
	}
	if err != nil {
		return d.FullError(err)
	}
	d.reserve.firm()
	down := func() bool { return d.o.Failure() != nil }
	d.fence = &fence{
		FS: d.o.FS, opening: true, left: d.o.Left, budget: d.o.MaxBytes > 0, pauseBytes: d.o.PauseBytes, oldLogs: (MemTables + 1) * MemTableBytes(d.o.MaxBytes), maxLog: 2 * MemTableBytes(d.o.MaxBytes), reserve: d.reserve, failed: d.o.Fail, down: down, owned: d.owner.check,
		imagined: make(map[string]bool), tables: make(map[string]*openTable), memory: vfs.NewMem(), released: make(chan struct{}),
	}
	return nil
}

// FS returns the filesystem for Pebble: it stops writing when the store has failed.
func (d *Dir) FS() vfs.FS { return d.fence }

// Create makes an empty store, with the contents that initialize writes, if there is
// none in the directory.
func (d *Dir) Create(o *pebble.Options, initialize func(*pebble.DB) error) error {
	fsys := d.o.FS
	data, unfinished := DataPath(fsys, d.path), fsys.PathJoin(d.path, unfinishedDir)
	if err := errors.Join(d.finishReplace(), fsys.RemoveAll(unfinished)); err != nil {
		return err
	}
	if _, err := fsys.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.fill(unfinished, o, initialize); err != nil {
		return err
	}
	if err := fsys.Rename(unfinished, data); err != nil {
		return err
	}
	return syncDir(fsys, d.path)
}

// fill makes a store with the contents that write writes.
func (d *Dir) fill(path string, o *pebble.Options, write func(*pebble.DB) error) error {
	db, err := pebble.Open(path, o)
	if err != nil {
		return err
	}
	err = errors.Join(write(db), db.Close())
	if failure := d.o.Failure(); failure != nil {
		return failure // the others follow from it
	}
	return err
}

// Replace replaces what is in the directory, which is not open, by what fill writes to an empty store. A failure or a
// crash leaves one or the other.
func (d *Dir) Replace(o *pebble.Options, fill func(*pebble.DB) error) error {
	fsys := d.o.FS
	unfinished := fsys.PathJoin(d.path, unfinishedDir)
	if err := errors.Join(d.finishReplace(), fsys.RemoveAll(unfinished)); err != nil {
		return err
	}
	err := d.fill(unfinished, o, fill)
	if failure := d.o.Failure(); failure != nil {
		return failure // nothing may be written any more
	}
	if err == nil {
		err = d.owner.check()
	}
	if err != nil {
		return errors.Join(err, fsys.RemoveAll(unfinished))
	}
	if err := fsys.Rename(unfinished, fsys.PathJoin(d.path, completeDir)); err != nil {
		return err
	}
	if err := syncDir(fsys, d.path); err != nil {
		return err
	}
	return d.finishReplace()
}

// finishReplace puts a complete replacement in its place, if there is one, and removes what it replaces.
func (d *Dir) finishReplace() error {
	fsys := d.o.FS
	data, complete, replaced := DataPath(fsys, d.path), fsys.PathJoin(d.path, completeDir), fsys.PathJoin(d.path, replacedDir)
	switch _, err := fsys.Stat(complete); {
	case errors.Is(err, fs.ErrNotExist):
		return fsys.RemoveAll(replaced)
	case err != nil:
		return err
	}
	for _, move := range [][2]string{{data, replaced}, {complete, data}} {
		if _, err := fsys.Stat(move[0]); errors.Is(err, fs.ErrNotExist) {
			continue // moved before a crash, or there was none
		}
		if err := fsys.RemoveAll(move[1]); err != nil {
			return err
		}
		if err := fsys.Rename(move[0], move[1]); err != nil {
			return err
		}
		if err := syncDir(fsys, d.path); err != nil {
			return err
		}
	}
	return fsys.RemoveAll(replaced)
}

// Open verifies the engine's files and opens them. Until Opened is called, a full
// disk fails the store rather than making Pebble wait for room.
func (d *Dir) Open(o func() *pebble.Options) (*pebble.DB, error) {
	data := DataPath(d.o.FS, d.path)
	if err := VerifyLogs(d.o.FS, data); err != nil {
		return nil, err
	}
	dropped, err := dropSettings(d.o.FS, data, o())
	if err != nil {
		return nil, err
	}
	if len(dropped) > 0 {
		d.o.Logger.Warn("damaged settings of the storage engine were removed; they are written again", "files", dropped)
	}
	d.fence.setReplayed(false)
	d.fence.manifested.Store(false)
	db, err := pebble.Open(data, o())
	if err == nil && !d.fence.manifested.Load() {
		if err = d.beginManifest(db); err != nil {
			d.fence.release()
			err = errors.Join(err, db.Close())
		}
	}
	if failure := d.o.Failure(); err != nil && failure != nil {
		err = failure // the other follows from it
	}
	if err == nil {
		d.fence.db.Store(db)
	}
	return db, d.FullError(err)
}

// beginManifest flushes a value that does not change. Pebble begins a MANIFEST when it replays a write-ahead log or flushes,
// and a checkpoint before that has an empty one. An opening that a kill or a full disk cut short leaves nothing to replay.
func (d *Dir) beginManifest(db *pebble.DB) error {
	value, closer, err := db.Get(layout.FormatKey())
	if errors.Is(err, pebble.ErrNotFound) {
		return nil // no store: see Store.checkFormat
	}
	if err != nil {
		return err
	}
	err = errors.Join(db.Set(layout.FormatKey(), bytes.Clone(value), pebble.Sync), closer.Close())
	if err != nil {
		return err
	}
	flushed, err := db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
	case <-d.fence.released:
	}
	return d.o.Failure()
}

// ErrCopying means that a copy of the store is being made.
var ErrCopying = errors.New("a backup is being made")

// ErrRepairing means that a repair changes, or has changed, a table of the store that is to be copied.
var ErrRepairing = errors.New("a damaged part of the store was removed meanwhile; make the backup again")

// Copy makes a new directory with the store as of one moment, with links to its tables if both
// are on one filesystem. If it fails, it removes what it made, and the store is not harmed. It ends
// with the error that end returns, after the file that is being copied.
func (d *Dir) Copy(db *pebble.DB, path string, end func() error) error {
	fsys := d.o.FS
	if _, err := fsys.Stat(path); err == nil {
		return &fs.PathError{Op: "backup", Path: path, Err: fs.ErrExist}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c := &storeCopy{dir: path, end: end}
	if !d.fence.copying.CompareAndSwap(nil, c) {
		return ErrCopying
	}
	defer d.fence.copying.Store(nil)
	if _, err := d.Repairs(); err != nil { // read after copying is set; see Repair
		return err
	}
	lossy, err := d.HasLoss()
	if err == nil {
		err = makeDir(fsys, path)
	}
	if err == nil {
		err = checkpoint(db, DataPath(fsys, path))
	}
	if err == nil && lossy {
		err = noteFile(fsys, DataPath(fsys, path), lossFile, nil)
	}
	if err == nil {
		err = syncDir(fsys, path)
	}
	if c.repaired.Load() {
		err = ErrRepairing // some tables may be of before, others of after it
	}
	if failure := d.o.Failure(); failure != nil {
		err = failure // the copy may be of what was never written
	}
	if err != nil {
		err = errors.Join(err, fsys.RemoveAll(path))
	}
	return err
}

// Copying reports whether a copy is being made, for which all files are kept.
func (d *Dir) Copying() bool { return d.fence.copying.Load() != nil }

// checkpoint returns as an error what Pebble panics with when it cannot sync the copy.
func checkpoint(db *pebble.DB, path string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("storage engine: %v", r)
		}
	}()
	return db.Checkpoint(path, pebble.WithFlushedWAL())
}

// Repair runs f, which changes tables in place of what the store wrote to them. A copy that is being made fails with
// ErrRepairing, and so does each other until f returns.
func (d *Dir) Repair(f func() error) error {
	d.fence.repairing.Store(true)
	defer d.fence.repairing.Store(false)
	d.fence.repairs.Add(1)
	if c := d.fence.copying.Load(); c != nil { // read after repairing is set; see Copy
		c.repaired.Store(true)
	}
	return f()
}

// Repairs returns how many repairs have begun. It fails with ErrRepairing while one changes tables, and if one was cut short
// that the store has no note of.
func (d *Dir) Repairs() (begun uint64, err error) {
	begun = d.fence.repairs.Load()
	noted, err := d.has(repairFile)
	if err == nil && (noted || d.fence.repairing.Load()) {
		err = ErrRepairing
	}
	return begun, err
}

// NoteLoss notes, durably, that the store lacks what was written to it. Only Replace ends that.
func (d *Dir) NoteLoss() error { return noteFile(d.fence, DataPath(d.fence, d.path), lossFile, nil) }

// HasLoss reports whether a loss is noted.
func (d *Dir) HasLoss() (bool, error) { return d.has(lossFile) }

// NoteRepair notes, durably, that a repair is in progress of which the store has no note, and what it removes.
func (d *Dir) NoteRepair(removed []byte) error {
	return noteFile(d.fence, DataPath(d.fence, d.path), repairFile, removed)
}

// HasRepair reports whether such a repair is noted, and what it removes; nothing if that cannot be read.
func (d *Dir) HasRepair() (removed []byte, noted bool, err error) {
	if noted, err = d.has(repairFile); noted {
		removed, _ = ReadFile(d.fence, d.fence.PathJoin(DataPath(d.fence, d.path), repairFile))
	}
	return removed, noted, err
}

// EndRepair removes that note. A crash may bring it back.
func (d *Dir) EndRepair() error {
	return d.fence.Remove(d.fence.PathJoin(DataPath(d.fence, d.path), repairFile))
}

func noteFile(fsys vfs.FS, dir, name string, content []byte) error {
	return replaceFile(fsys, dir, fsys.PathJoin(dir, name), content)
}

func (d *Dir) has(name string) (bool, error) {
	_, err := d.fence.Stat(d.fence.PathJoin(DataPath(d.fence, d.path), name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Opened ends the opening.
func (d *Dir) Opened() { d.fence.opened() }

// CheckOwner fails with ErrStolen if another process has taken the directory. It costs
// an open and a read of a few bytes.
func (d *Dir) CheckOwner() error { return d.owner.check() }

// RenewLogs specifies whether Pebble's write-ahead logs are new files, rather than
// old ones that are written over.
func (d *Dir) RenewLogs(renew bool) { d.fence.renew.Store(renew) }

// Short reports whether the reserve of disk room is incomplete.
func (d *Dir) Short() bool { return d.reserve.missing() > 0 }

// Refill completes the reserve if the disk has the room; free is its free space. A disk
// that is full again is not an error.
func (d *Dir) Refill(free int64) error {
	err := d.reserve.fill(free)
	if errors.Is(err, syscall.ENOSPC) {
		return nil // others were faster
	}
	if err == nil && !d.Short() {
		d.fence.roomy()
	}
	return err
}

// Lend frees the part of the reserve that is for tables, for a compaction that frees more
// than that, until giveBack is called.
func (d *Dir) Lend() (giveBack func()) { return d.reserve.lend() }

// Release ends every wait of a failed store, so that Pebble can be closed.
func (d *Dir) Release() { d.fence.release() }

// Close releases the lock, after Pebble is closed.
func (d *Dir) Close() error { return d.lock.Close() }

// DataPath returns the directory of Pebble's files in that of a store.
func DataPath(fsys vfs.FS, dir string) string { return fsys.PathJoin(dir, dataDir) }

// Exists returns an error unless there is a store in a directory.
func Exists(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(DataPath(fsys, dir)); err != nil {
		return fmt.Errorf("%s is not a store: %w", dir, err)
	}
	return nil
}

// LockDir locks a directory until the closer is closed or the process ends.
func LockDir(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(fsys.PathJoin(dir, lockFile))
	if err == nil {
		return lock, nil
	}
	// A lock that is held is reported as a bare errno or text; a file that
	// cannot be made, with its path.
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if token, rerr := ReadFile(fsys, fsys.PathJoin(dir, ownerFile)); rerr == nil {
		if holder := tokenForm.FindSubmatch(token); holder != nil {
			return nil, fmt.Errorf("%s: %w: %s", dir, ErrLocked, holder[1])
		}
	}
	return nil, fmt.Errorf("%s: %w (%w)", dir, ErrLocked, err)
}

// tokenForm is the form of an owner token.
var tokenForm = regexp.MustCompile(`^[0-9a-f]{32} (pid \d+ since \S+)\n$`)

// owner is the random token of the process that opened the directory last. It
// protects a store where locks do not work.
type owner struct {
	fs    vfs.FS
	path  string
	token string
}

// takeOwnership writes a new token, durably, before anything else of the
// directory is read or written.
func takeOwnership(fsys vfs.FS, dir string) (*owner, error) {
	var random [16]byte
	rand.Read(random[:])
	o := &owner{
		fs:    fsys,
		path:  fsys.PathJoin(dir, ownerFile),
		token: fmt.Sprintf("%s pid %d since %s\n", hex.EncodeToString(random[:]), os.Getpid(), time.Now().UTC().Format(time.RFC3339)),
	}
	if err := replaceFile(fsys, dir, o.path, []byte(o.token)); err != nil {
		return nil, fmt.Errorf("write owner token: %w", err)
	}
	return o, nil
}

// check reads the token back; it costs an open and a read of a few bytes.
func (o *owner) check() error {
	token, err := ReadFile(o.fs, o.path)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return nil // unknown: no file descriptor is free
	}
	if err != nil {
		return fmt.Errorf("read owner token: %w", err)
	}
	if string(token) != o.token {
		return fmt.Errorf("%w: %s now contains %q", ErrStolen, o.path, token)
	}
	return nil
}

// replaceFile replaces the contents of a file atomically and durably.
func replaceFile(fsys vfs.FS, dir, path string, content []byte) error {
	tmp := path + ".tmp"
	if err := writeFile(fsys, tmp, content); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(fsys, dir)
}

// writeFile writes a file and syncs it.
func writeFile(fsys vfs.FS, path string, content []byte) error {
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadFile reads a whole file.
func ReadFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// unfinishedDir is where a new store is made. It becomes dataDir by one rename
// once it is complete, so a crash while it was made leaves nothing that looks
// like a damaged store; what is found under this name was never in use.
const unfinishedDir = "db.unfinished"

// A replacement of a store is made in unfinishedDir, too. Once complete it is completeDir, and takes the place of dataDir,
// which becomes replacedDir before and is then removed. Opening the store continues that.
const (
	completeDir = "db.complete"
	replacedDir = "db.replaced"
)

// makeDir makes dir, and makes it and its new parents durable. If it fails, none of them is left: the next call would
// take it for durable.
func makeDir(fsys vfs.FS, dir string) (err error) {
	var made []string
	defer func() {
		for i := 0; err != nil && i < len(made); i++ {
			_ = fsys.Remove(made[i]) // may not have been made
		}
	}()
	for at := dir; ; {
		if _, err := fsys.Stat(at); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, at)
		parent := fsys.PathDir(at)
		if parent == at {
			break
		}
		at = parent
	}
	if len(made) == 0 {
		return nil
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, path := range made {
		if err := syncDir(fsys, fsys.PathDir(path)); err != nil {
			return err
		}
	}
	return nil
}

// FullError adds to an error of opening a store on a full disk how much room it needs.
// It returns any other error unchanged.
func (d *Dir) FullError(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	free := int64(-1)
	if usage, uerr := d.o.FS.GetDiskUsage(d.path); uerr == nil {
		free = int64(usage.AvailBytes)
	}
	return fmt.Errorf("the disk of %s is full: %d bytes are free, opening the store needs about %d: %w", d.path, free, d.openingNeeds(), err)
}

// openingNeeds estimates the room that opening the store takes: the write-ahead
// logs become tables, and new files are begun.
func (d *Dir) openingNeeds() int64 {
	need := int64(4 << 20)
	data := DataPath(d.o.FS, d.path)
	names, err := d.o.FS.List(data)
	if err != nil {
		return need
	}
	for _, name := range names {
		if d.o.FS.PathBase(name) == name && strings.HasSuffix(name, ".log") {
			if info, err := d.o.FS.Stat(d.o.FS.PathJoin(data, name)); err == nil {
				need += info.Size()
			}
		}
	}
	return need
}
