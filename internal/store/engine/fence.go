package engine

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence is the filesystem that Pebble sees. A failed store stops touching its
// directory at once, as if the process had died.
//
// Pebble answers a failed WAL or MANIFEST write with Logger.Fatalf or a panic
// and expects the process to be gone: what it would do afterwards is undefined
// (it may remove a table that a MANIFEST record, perhaps on disk after all,
// names). So the fence reports such an error first. From then on writes to the
// directory succeed without effect and new files are made in memory, while every
// caller of the store gets its failure. Memory is bounded: flushed data was in memory
// before, and compactions wait.
//
// Errors of writing a table are returned to Pebble: flushes and compactions are
// retried, and nothing committed depends on them.
type fence struct {
	vfs.FS

	// failed takes a fatal error.
	failed func(error)
	// down reports whether the store has failed. It is the state that callers of the
	// store see, so no caller gets a result of a write without effect.
	down func() bool
	// owned returns an error if another process has taken the directory. It is
	// called before a file is created, renamed or removed.
	owned func() error
	// reserve is room to use when the disk is full; nil if there is none.
	reserve *reserve

	manifested atomic.Bool // a MANIFEST was begun since Dir.Open

	renew atomic.Bool // write-ahead logs are made new, not over old ones
	// maxLog is the size of an old write-ahead log beyond which the next one is made new: one
	// batch can make a large log, whose size would count against the budget in each later one.
	maxLog int64

	// left returns what Pebble's files leave of the budget, the old write-ahead logs not
	// counted; these may take oldLogs bytes.
	left    func() int64
	oldLogs int64
	budget  bool // there is one

	// pauseBytes returns the size of the store from which on ingest pauses, and no compaction begins a
	// table while a copy is made, which keeps what compactions replace; 0 for no budget.
	pauseBytes func() int64

	// db is the open store, nil before. A compaction of one with a budget waits for the
	// deletion of what the compactions before it replaced.
	db atomic.Pointer[pebble.DB]

	// copying is the copy of the store that is being made, nil if there is none. Its disk may
	// be full, or gone, without harm to the store.
	copying atomic.Pointer[storeCopy]
	// repairing is set while a repair changes the store, of which no copy may be made.
	repairing atomic.Bool
	repairs   atomic.Uint64 // how many of them have begun; counted after repairing is set

	mu       sync.Mutex
	imagined map[string]bool       // guarded by mu; files made after the failure; they lie in memory
	tables   map[string]*openTable // guarded by mu; by path
	opening  bool                  // guarded by mu; the store is being opened
	replayed bool                  // guarded by mu; the store that is being opened has a new write-ahead log
	full     bool                  // guarded by mu; the disk is full, as far as is known
	fullTill time.Time             // guarded by mu; no new table before this, the disk is full

	memory *vfs.MemFS

	// released is closed when the failed store is being closed.
	released chan struct{}
	once     sync.Once
}

// storeCopy is a copy of the store.
type storeCopy struct {
	dir string
	end func() error // returns the reason to make no more files of it, or nil

	repaired atomic.Bool // a repair has begun meanwhile
}

// FullDiskPause keeps Pebble from trying flushes in a tight loop while the disk
// is full.
const FullDiskPause = 250 * time.Millisecond

// release ends every wait of a failed store.
func (f *fence) release() { f.once.Do(func() { close(f.released) }) }

// vital reports whether Pebble depends on the named file: every file but tables and blobs.
// Temporary files are written by its Open, which leaves a goroutine behind when it fails so late.
func vital(name string) bool {
	return !strings.HasSuffix(name, ".sst") && !strings.HasSuffix(name, ".blob")
}

// isCopy reports whether the named file belongs to a copy of the store.
func (f *fence) isCopy(name string) bool {
	c := f.copying.Load()
	return c != nil && (name == c.dir || strings.HasPrefix(name, c.dir+string(os.PathSeparator)))
}

// endCopy returns the reason to make no more files of the copy.
func (f *fence) endCopy() error {
	c := f.copying.Load()
	switch {
	case c == nil:
		return nil
	case c.repaired.Load():
		return ErrRepairing
	default:
		return c.end()
	}
}

// check reports a fatal error of the named file, and returns the error that Pebble
// gets.
func (f *fence) check(name string, err error) error {
	if err == nil || !vital(name) {
		return err
	}
	f.fatal(err)
	return nil
}

// fatal fails the store, and ends every wait of one that is being opened.
func (f *fence) fatal(err error) {
	f.failed(err)
	f.mu.Lock()
	opening := f.opening
	f.mu.Unlock()
	if opening {
		f.release()
	}
}

// tableFull handles a flush without room for its table. After the first such error,
// the next table gets a part of the reserve; after a second, the whole reserve is
// freed. Pebble retries forever and Open waits for it, so a store that is being opened
// fails when the reserve is empty.
func (f *fence) tableFull(err error) {
	f.mu.Lock()
	again, opening := f.full, f.opening
	f.full = true
	f.fullTill = time.Now().Add(FullDiskPause)
	f.mu.Unlock()
	if !again {
		return
	}
	freed := false
	for f.reserve.drop(false) {
		freed = true
	}
	if opening && !freed {
		f.fatal(err)
	}
}

// noRoom handles a full disk on a write of the named file. Compactions wait for room,
// so that flushes come first.
func (f *fence) noRoom(name string, compaction bool, err error) {
	switch {
	case vital(name) || !errors.Is(err, syscall.ENOSPC):
	case compaction:
		f.mu.Lock()
		f.fullTill = time.Now().Add(FullDiskPause)
		f.mu.Unlock()
	default:
		f.tableFull(err)
	}
}

func (f *fence) setReplayed(replayed bool) {
	f.mu.Lock()
	f.replayed = replayed
	f.mu.Unlock()
}

func (f *fence) opened() {
	f.mu.Lock()
	f.opening = false
	f.mu.Unlock()
}

// roomy ends the use of the reserve: the disk has room again.
func (f *fence) roomy() {
	f.mu.Lock()
	f.full = false
	f.mu.Unlock()
}

// isFull reports whether a new table or log should take a part of the reserve.
func (f *fence) isFull() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full
}

// create makes a file, on a full disk out of the reserve.
func (f *fence) create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	large := strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".log")
	if large && c != compactionCategory && f.isFull() {
		if part, ok := f.reserve.pop(vital(name)); ok {
			file, err := f.FS.ReuseForWrite(part, name, c)
			if err == nil && !vital(name) {
				file = roomyTable{file, name}
			}
			return file, err
		}
	}
	file, err := f.FS.Create(name, c)
	for errors.Is(err, syscall.ENOSPC) && c != compactionCategory && f.reserve.drop(vital(name)) {
		file, err = f.FS.Create(name, c)
	}
	return file, err
}

// tableFile is a table that is being written, in parts of tableBuffer bytes: Pebble writes
// 4 KiB at a time, and a system call for each costs more CPU than the copy. After an error
// Pebble gives the table up.
type tableFile struct {
	vfs.File
	held []byte
}

const tableBuffer = 64 << 10

func (t *tableFile) Write(p []byte) (int, error) {
	if t.held = append(t.held, p...); len(t.held) < tableBuffer {
		return len(p), nil
	}
	if err := t.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *tableFile) flush() error {
	held := t.held
	t.held = held[:0]
	_, err := t.File.Write(held)
	return err
}

func (t *tableFile) Sync() error {
	if err := t.flush(); err != nil {
		return err
	}
	return t.File.Sync()
}

func (t *tableFile) SyncData() error {
	if err := t.flush(); err != nil {
		return err
	}
	return t.File.SyncData()
}

func (t *tableFile) SyncTo(length int64) (bool, error) {
	if err := t.flush(); err != nil {
		return false, err
	}
	return t.File.SyncTo(length)
}

// roomyTable is a table in a part of the reserve. Close frees the rest of that part: a
// flush may write many small tables.
type roomyTable struct {
	vfs.File
	name string
}

func (t roomyTable) Close() error {
	if info, err := t.Stat(); err == nil && t.Fd() != vfs.InvalidFd {
		_ = os.Truncate(t.name, info.Size()) // or the room comes back with the table's end
	}
	return t.File.Close()
}

// mayTouch reports whether an operation may change the directory. If not, it succeeds
// without effect.
func (f *fence) mayTouch() bool {
	if f.down() {
		return false
	}
	if err := f.owned(); err != nil {
		f.failed(err)
		return false
	}
	return true
}

// waitForSpace delays the creation of a table after the disk was full.
func (f *fence) waitForSpace(name string) {
	if vital(name) {
		return
	}
	f.mu.Lock()
	wait := time.Until(f.fullTill)
	f.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.released:
	}
}

const (
	deletionsEvery = 5 * time.Millisecond
	copyEvery      = 100 * time.Millisecond
	// maxDeletionsWait bounds the wait of a table: Pebble counts files that no deletion is
	// scheduled for, too.
	maxDeletionsWait = time.Second
)

// waitForDeletions delays a table of a compaction until Pebble has deleted the tables that
// are obsolete, and those that a reader keeps while ingest is paused. It deletes in the
// background; on a busy machine several compactions would leave their inputs on the disk,
// beyond what the reserve below the budget is sized for.
func (f *fence) waitForDeletions() {
	db := f.db.Load()
	if db == nil {
		return
	}
	for began := time.Now(); ; {
		pause := f.pauseBytes()
		if pause == 0 {
			return
		}
		m, wait := db.Metrics(), deletionsEvery
		left := m.Table.Local.ObsoleteSize
		if m.Compact.NumInProgress == 1 && int64(m.DiskSpaceUsage()) >= pause { // else another compaction may keep them until its end
			left += m.Table.Local.ZombieSize
		}
		switch {
		case f.copying.Load() != nil: // nothing is deleted
			if wait = copyEvery; int64(m.DiskSpaceUsage()) < pause {
				return
			}
		case left == 0 || time.Since(began) >= maxDeletionsWait:
			return
		}
		select {
		case <-time.After(wait):
		case <-f.released:
			return
		}
	}
}

// errFenced is the error of a compaction while a failed store is closed.
var errFenced = errors.New("the store failed")

func (f *fence) imagine(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if c == compactionCategory {
		<-f.released
		return nil, errFenced
	}
	if err := f.memory.MkdirAll(f.PathDir(name), 0o700); err != nil {
		return nil, err
	}
	file, err := f.memory.Create(name, c)
	if err == nil {
		f.mu.Lock()
		f.imagined[name] = true
		f.mu.Unlock()
	}
	return file, err
}

// compactionCategory is the category of tables that a compaction writes.
const compactionCategory = "pebble-compaction"

func (f *fence) at(name string) vfs.FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.imagined[name] {
		return f.memory
	}
	return f.FS
}

func (f *fence) wrap(name string, c vfs.DiskWriteCategory, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		f.noRoom(name, c == compactionCategory, err)
		if err = f.check(name, err); err != nil {
			return nil, err
		}
		return f.imagine(name, c)
	}
	return &fencedFile{File: file, fence: f, name: name, compaction: c == compactionCategory}, nil
}

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if f.isCopy(name) {
		if err := f.endCopy(); err != nil {
			return nil, err
		}
		return f.FS.Create(name, c)
	}
	f.waitForSpace(name)
	if c == compactionCategory {
		f.waitForDeletions()
	}
	if !f.mayTouch() {
		return f.imagine(name, c)
	}
	if err := f.settle(name); err != nil {
		return f.wrap(name, c, nil, err)
	}
	file, err := f.create(name, c)
	if err == nil && !vital(name) {
		file = &tableFile{File: file}
	}
	if strings.HasSuffix(name, ".log") {
		f.setReplayed(true)
	}
	if strings.HasPrefix(f.PathBase(name), "MANIFEST-") {
		f.manifested.Store(true)
	}
	return f.wrap(name, c, file, err)
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if !f.mayTouch() {
		return f.imagine(name, c)
	}
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.wrap(name, c, file, err)
}

func (f *fence) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !f.mayTouch() {
		return f.imagine(newname, c)
	}
	info, err := f.FS.Stat(oldname)
	if f.renew.Load() || err == nil && info.Size() > f.maxLog {
		if err := f.FS.Remove(oldname); err != nil {
			return f.wrap(newname, c, nil, err)
		}
		return f.Create(newname, c)
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.wrap(newname, c, file, err)
}

func (f *fence) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		return f.openTable(name, opts...)
	}
	return f.at(name).Open(name, opts...)
}

func (f *fence) Stat(name string) (vfs.FileInfo, error) { return f.at(name).Stat(name) }

// List fails a store whose obsolete files cannot be listed when it is opened. Pebble's Open
// would fail, and leave the goroutines of a flush behind, which panic.
func (f *fence) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if err == nil || f.isCopy(dir) {
		return names, err
	}
	f.mu.Lock()
	late := f.opening && f.replayed
	f.mu.Unlock()
	if !late {
		return nil, err
	}
	f.fatal(err)
	return nil, nil
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil || f.isCopy(name) {
		return dir, err
	}
	return &fencedFile{File: dir, fence: f, name: name}, nil
}

func (f *fence) Link(oldname, newname string) error {
	if f.isCopy(newname) {
		if err := f.endCopy(); err != nil {
			return err
		}
		return f.FS.Link(oldname, newname)
	}
	if !f.mayTouch() {
		return nil
	}
	return f.check(newname, f.FS.Link(oldname, newname))
}

// Rename is used by Pebble only while opening, for files it wrote just before, and by repairs.
func (f *fence) Rename(oldname, newname string) error {
	if f.isCopy(newname) {
		return f.FS.Rename(oldname, newname)
	}
	if !f.mayTouch() {
		return nil
	}
	return f.check(newname, f.FS.Rename(oldname, newname))
}

// Remove returns its error to Pebble, which logs it: a file that stays is harmless.
func (f *fence) Remove(name string) error {
	if f.isCopy(name) {
		return f.FS.Remove(name)
	}
	if !f.mayTouch() {
		return nil
	}
	if err := f.settle(name); err != nil {
		return f.check(name, err)
	}
	return f.FS.Remove(name)
}

// settle makes everything in the directory durable before a marker is made or
// removed. Markers name the current MANIFEST; Pebble syncs the directory once
// after it made the new marker and removed the old, which is not enough on a
// filesystem that may keep the one change and lose the other.
func (f *fence) settle(name string) error {
	if !strings.HasPrefix(f.PathBase(name), "marker.") {
		return nil
	}
	return syncDir(f.FS, f.PathDir(name))
}

func (f *fence) RemoveAll(name string) error {
	if f.isCopy(name) {
		return f.FS.RemoveAll(name)
	}
	if !f.mayTouch() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	if f.isCopy(dir) {
		return f.FS.MkdirAll(dir, perm)
	}
	if !f.mayTouch() {
		return nil
	}
	return f.FS.MkdirAll(dir, perm)
}

// GetDiskUsage reports what the budget leaves as free space, if the disk does not have less:
// Pebble expands its compactions by half of that at most. The size of a store that is being
// opened is unknown: a budget leaves nothing of it.
func (f *fence) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	usage, err := f.FS.GetDiskUsage(path)
	left := max(f.left()-f.reserve.size()-f.oldLogs, 0)
	f.mu.Lock()
	if f.opening && f.budget {
		left = 0
	}
	f.mu.Unlock()
	usage.AvailBytes = min(usage.AvailBytes, uint64(left))
	return usage, err
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file (or directory) open for writing.
type fencedFile struct {
	vfs.File
	fence      *fence
	name       string
	compaction bool // a table that a compaction writes
}

// done returns the error of an operation that Pebble gets.
func (w *fencedFile) done(err error) error {
	if err != nil {
		w.fence.noRoom(w.name, w.compaction, err)
	}
	return w.fence.check(w.name, err)
}

// cut reports whether the file may no longer be written, with the error that Pebble
// gets: a table fails, any other file succeeds without effect.
func (w *fencedFile) cut() (bool, error) {
	if !w.fence.down() {
		return false, nil
	}
	if vital(w.name) {
		return true, nil
	}
	return true, errFenced
}

func (w *fencedFile) Write(p []byte) (int, error) {
	if cut, err := w.cut(); cut {
		return len(p), err
	}
	n, err := w.File.Write(p)
	// The rejected rest is not in the file, so it may be written again.
	for errors.Is(err, syscall.ENOSPC) && vital(w.name) && w.fence.reserve.drop(true) {
		var more int
		more, err = w.File.Write(p[n:])
		n += more
	}
	if err = w.done(err); err != nil {
		return n, err
	}
	return len(p), nil
}

func (w *fencedFile) WriteAt(p []byte, off int64) (int, error) {
	if cut, err := w.cut(); cut {
		return len(p), err
	}
	n, err := w.File.WriteAt(p, off)
	if err = w.done(err); err != nil {
		return n, err
	}
	return len(p), nil
}

func (w *fencedFile) Sync() error {
	if cut, err := w.cut(); cut {
		return err
	}
	return w.done(w.File.Sync())
}

func (w *fencedFile) SyncData() error {
	if cut, err := w.cut(); cut {
		return err
	}
	return w.done(w.File.SyncData())
}

func (w *fencedFile) SyncTo(length int64) (bool, error) {
	if cut, err := w.cut(); cut {
		return true, err
	}
	full, err := w.File.SyncTo(length)
	return full, w.done(err)
}

// Preallocate only makes later writes faster; a write reports a full disk itself.
func (w *fencedFile) Preallocate(offset, length int64) error {
	if cut, err := w.cut(); cut {
		return err
	}
	if err := w.File.Preallocate(offset, length); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return w.done(err)
	}
	return nil
}

func (w *fencedFile) Close() error {
	err := w.File.Close()
	if w.fence.down() {
		return nil
	}
	return w.done(err)
}
