package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
	"github.com/watcherd/watcherd/internal/store/salvage"
)

// files exports a store that cannot be opened: every table and every
// write-ahead log by itself. Names first, so that the lines can use them.
func (e *exporter) files(i *inspection) error {
	if err := e.damage("the store as a whole", i.openErr); err != nil {
		return err
	}
	tables, err := i.tables()
	if err != nil {
		return err
	}
	passes := []func(key []byte) bool{isName, isNotName}
	if e.veil != nil {
		passes = slices.Insert(passes, 0, isMeta)
	}
	for n, pass := range passes {
		e.learning = n < len(passes)-2
		for _, name := range tables {
			if err := e.table(i, name, pass); err != nil {
				return err
			}
		}
		if err := e.logs(i, pass); err != nil {
			return err
		}
	}
	return nil
}

func isName(key []byte) bool    { return len(key) > 0 && key[0] == layout.PrefixName }
func isNotName(key []byte) bool { return len(key) > 0 && key[0] != layout.PrefixName }
func isMeta(key []byte) bool    { return len(key) > 0 && key[0] == layout.PrefixMeta }

// errWrite is an error of writing, which ends the export. An error of reading ends
// only one file.
type errWrite struct{ error }

func (e errWrite) Unwrap() error { return e.error }

// unindexed exports each table with damaged indexes by itself: the open database
// cannot read it.
func (e *exporter) unindexed(i *inspection) error {
	tables, err := i.tables()
	if err != nil {
		return err
	}
	for _, name := range tables {
		var patches []salvage.Patch
		content, err := engine.ReadTable(i.fs, i.fs.PathJoin(i.dataPath(), name))
		if err == nil {
			patches, err = salvage.FindPatches(content, pebble.InternalKey{UserKey: []byte{0}}, pebble.InternalKey{UserKey: []byte{0xff}})
		}
		if err == nil && !slices.ContainsFunc(patches, func(p salvage.Patch) bool { return !p.Loses() }) {
			continue
		}
		if err := e.table(i, name, func([]byte) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// tables are the names of the table files, sorted.
func (i *inspection) tables() ([]string, error) {
	names, err := i.fs.List(i.dataPath())
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	slices.Sort(names)
	return names, nil
}

// table exports one table without its damaged blocks. If the indexes are damaged, it
// exports every data block that it finds.
func (e *exporter) table(i *inspection, name string, wanted func(key []byte) bool) error {
	content, err := engine.ReadTable(i.fs, i.fs.PathJoin(i.dataPath(), name))
	if err != nil {
		return e.fileDamage(name, err, wanted)
	}
	version := func(kind pebble.InternalKeyKind, key, value []byte, version uint64) error {
		if !wanted(key) {
			return nil
		}
		if err := e.version(kind, key, value, name, version); err != nil {
			return errWrite{err}
		}
		return nil
	}
	patches, err := salvage.FindPatches(content, pebble.InternalKey{UserKey: []byte{0}}, pebble.InternalKey{UserKey: []byte{0xff}})
	if err != nil {
		if err := e.fileDamage(name, err, wanted); err != nil {
			return err
		}
		return e.fileDamage(name, salvage.DataBlocks(content, func(_ int, data []byte) error { return salvage.BlockKeys(data, version) }), wanted)
	}
	for _, p := range patches {
		copy(content[p.Offset:], p.Data)
		what := "an index or a filter"
		if p.Loses() {
			what = p.Lost.String()
		}
		if err := e.fileDamage(name+": "+what, errBlock, wanted); err != nil {
			return err
		}
	}
	return e.fileDamage(name, salvage.WithTableContent(content, func(r *sstable.Reader) error {
		it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }() // repeats the damage
		for at := it.First(); at != nil; at = it.Next() {
			if at.K.Trailer == salvage.TombstoneTrailer {
				continue // of a block that was taken out
			}
			value, _, err := at.Value(nil)
			if err != nil {
				return err
			}
			if err := version(at.K.Kind(), at.K.UserKey, value, uint64(at.K.SeqNum())); err != nil {
				return err
			}
		}
		return errors.Join(it.Error(), deletedRanges(r, version))
	}), wanted)
}

// deletedRanges calls f for each range of keys that a table deletes.
func deletedRanges(r *sstable.Reader, f func(kind pebble.InternalKeyKind, key, value []byte, version uint64) error) error {
	it, err := r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	span, err := it.First()
	for ; span != nil && err == nil; span, err = it.Next() {
		for _, k := range span.Keys {
			if err := f(pebble.InternalKeyKindRangeDelete, span.Start, span.End, uint64(k.SeqNum())); err != nil {
				return err
			}
		}
	}
	return err
}

var errBlock = errors.New("the block fails its checksum")

// fileDamage writes a line about the damage to a file. It returns errors of writing.
func (e *exporter) fileDamage(name string, err error, wanted func(key []byte) bool) error {
	if write := (errWrite{}); errors.As(err, &write) {
		return write.error
	}
	if err != nil && wanted([]byte{layout.PrefixLog}) { // say it once
		return e.damage("file "+name, err)
	}
	return nil
}

func (e *exporter) logs(i *inspection, wanted func(key []byte) bool) error {
	logs, err := wal.Scan(wal.Dir{FS: i.fs, Dirname: i.dataPath()})
	if err != nil {
		return e.fileDamage("write-ahead logs", err, wanted)
	}
	for _, l := range logs {
		for n := range l.NumSegments() {
			_, path := l.SegmentLocation(n)
			if err := e.log(i, path, uint32(l.Num), wanted); err != nil {
				return err
			}
		}
	}
	return nil
}

// log exports what is readable of a write-ahead log: what follows damage too.
func (e *exporter) log(i *inspection, path string, num uint32, wanted func(key []byte) bool) error {
	name := i.fs.PathBase(path)
	content, err := engine.ReadFile(i.fs, path)
	if err != nil {
		return e.fileDamage(name, err, wanted)
	}
	r := engine.WALReader{Content: content, Num: num}
	for {
		batch, damaged := r.Next()
		if damaged {
			if err := e.fileDamage(fmt.Sprintf("%s before byte %d", name, r.At), layout.ErrMalformed, wanted); err != nil {
				return err
			}
		}
		if batch == nil {
			return nil
		}
		if err := e.batch(batch, name, wanted); err != nil {
			if err := e.fileDamage(fmt.Sprintf("%s at byte %d", name, r.At), err, wanted); err != nil {
				return err
			}
		}
	}
}

func (e *exporter) batch(batch []byte, name string, wanted func(key []byte) bool) error {
	if _, ok := batchrepr.ReadHeader(batch); !ok {
		return layout.ErrMalformed
	}
	version := uint64(batchrepr.ReadSeqNum(batch))
	for r := batchrepr.Read(batch); ; version++ {
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		if !wanted(key) {
			continue
		}
		if err := e.version(kind, key, value, name, version); err != nil {
			return errWrite{err}
		}
	}
}

func (e *exporter) version(kind pebble.InternalKeyKind, key, value []byte, name string, version uint64) error {
	if e.learning {
		if kind == pebble.InternalKeyKindSet || kind == pebble.InternalKeyKindSetWithDelete {
			e.learn(string(key[1:]), value, version)
		}
		return nil
	}
	l := Line{File: name, Version: version}
	switch kind {
	case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
	case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
		l.Deleted, value = true, nil
	case pebble.InternalKeyKindRangeDelete:
		return e.out.Encode(Line{
			Type: "deleted-range", Name: fmt.Sprintf("from %q up to %q", key, value), File: name, Version: version,
		})
	default:
		return nil // counters are merged; they are not exported
	}
	return e.line(key, value, l)
}

// inspection is a store directory opened for reading only, damaged or not. It holds
// the directory's lock, which excludes a running daemon.
type inspection struct {
	fs   vfs.FS
	dir  string
	lock io.Closer // nil on a read-only filesystem
	db   *pebble.DB
	// openErr is the reason of a nil db.
	openErr error
}

func open(fsys vfs.FS, dir string) (*inspection, error) {
	if err := engine.Exists(fsys, dir); err != nil {
		return nil, err
	}
	lock, err := engine.LockDir(fsys, dir)
	if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
		return nil, err
	}
	i := &inspection{fs: fsys, dir: dir, lock: lock}
	logger := engine.Logger{Log: slog.New(slog.DiscardHandler), Limit: &engine.LogLimit{}, Fatal: func(error) {}}
	o := engine.Options(unlockedFS{fsys}, logger, &pebble.EventListener{
		DataCorruption: func(pebble.DataCorruptionInfo) {}, // shows up where it is read
	}, 0)
	o.ReadOnly = true
	o.FormatMajorVersion = pebble.FormatMinSupported // any version is readable
	if i.openErr = engine.VerifyLogs(fsys, i.dataPath()); i.openErr == nil {
		i.db, i.openErr = pebble.Open(i.dataPath(), o)
	}
	return i, nil
}

func (i *inspection) dataPath() string { return engine.DataPath(i.fs, i.dir) }

func (i *inspection) close() error {
	var errs []error
	if i.db != nil {
		errs = append(errs, i.db.Close())
	}
	if i.lock != nil {
		errs = append(errs, i.lock.Close())
	}
	return errors.Join(errs...)
}

// unlockedFS has no lock for Pebble, which would need to write even for reading,
// and none of the files of its settings (see engine.IsSettings).
type unlockedFS struct{ vfs.FS }

func (u unlockedFS) List(dir string) ([]string, error) {
	names, err := u.FS.List(dir)
	return slices.DeleteFunc(names, engine.IsSettings), err
}

func (unlockedFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }
func (u unlockedFS) Unwrap() vfs.FS               { return u.FS }
