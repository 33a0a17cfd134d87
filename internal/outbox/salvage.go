package outbox

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/wal"
)

// files exports a store that cannot be opened: every table and every
// write-ahead log by itself. Names first, so that the lines can use them.
func (e *exporter) files(i *inspection) error {
	if err := e.damage("the store as a whole", i.openErr); err != nil {
		return err
	}
	tables, err := i.fs.List(i.dataPath())
	if err != nil {
		return err
	}
	tables = slices.DeleteFunc(tables, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	slices.Sort(tables)
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

func isName(key []byte) bool    { return len(key) > 0 && key[0] == prefixName }
func isNotName(key []byte) bool { return len(key) > 0 && key[0] != prefixName }
func isMeta(key []byte) bool    { return len(key) > 0 && key[0] == prefixMeta }

// errWrite is an error of the reader's side: it ends the export, while one of
// the files only ends that file.
type errWrite struct{ error }

func (e errWrite) Unwrap() error { return e.error }

// table exports one table, from the beginning up to the damage and from the end
// down to it.
func (e *exporter) table(i *inspection, name string, wanted func(key []byte) bool) error {
	err := withTable(i.fs, i.fs.PathJoin(i.dataPath(), name), func(r *sstable.Reader) error {
		last, damage, err := e.tableWay(r, name, nil, wanted)
		if err != nil || damage == nil {
			return err
		}
		if last == nil {
			last = []byte{}
		}
		if _, _, err = e.tableWay(r, name, last, wanted); err != nil {
			return err
		}
		return damage
	})
	return e.fileDamage(name, err, wanted)
}

func (e *exporter) fileDamage(name string, err error, wanted func(key []byte) bool) error {
	if write := (errWrite{}); errors.As(err, &write) {
		return write.error
	}
	if err != nil && wanted([]byte{prefixLog}) { // say it once
		return e.damage("file "+name, err)
	}
	return nil
}

// tableWay walks a table up, or, if downTo is not nil, from its end down to that
// key.
func (e *exporter) tableWay(r *sstable.Reader, name string, downTo []byte, wanted func(key []byte) bool) (last []byte, damage, err error) {
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return nil, err, nil
	}
	defer func() { _ = it.Close() }() // repeats the damage
	kv := it.First
	step := it.Next
	if downTo != nil {
		kv, step = it.Last, it.Prev
	}
	for at := kv(); at != nil; at = step() {
		key := at.K.UserKey
		if downTo != nil && pebble.DefaultComparer.Compare(key, downTo) <= 0 {
			return nil, nil, nil
		}
		if wanted(key) {
			value, _, damage := at.Value(nil)
			if damage != nil {
				return last, damage, nil
			}
			err := e.version(at.K.Kind(), key, value, name, uint64(at.K.SeqNum()))
			if err != nil {
				return last, nil, errWrite{err}
			}
		}
		last = append(last[:0], key...)
	}
	return last, it.Error(), nil
}

// logs exports the write-ahead logs, each up to its damage.
func (e *exporter) logs(i *inspection, wanted func(key []byte) bool) error {
	logs, err := wal.Scan(wal.Dir{FS: i.fs, Dirname: i.dataPath()})
	if err != nil {
		return e.fileDamage("write-ahead logs", err, wanted)
	}
	for _, l := range logs {
		_, name := l.SegmentLocation(0)
		if err := e.fileDamage(name, e.log(l, name, wanted), wanted); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) log(l wal.LogicalLog, name string, wanted func(key []byte) bool) (err error) {
	r := l.OpenForRead()
	defer func() { err = errors.Join(err, r.Close()) }()
	for {
		record, _, err := r.NextRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		batch, err := io.ReadAll(record)
		if err != nil {
			return err
		}
		if err := e.batch(batch, name, wanted); err != nil {
			return err
		}
	}
}

func (e *exporter) batch(batch []byte, name string, wanted func(key []byte) bool) error {
	if _, ok := batchrepr.ReadHeader(batch); !ok {
		return errMalformed
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

// version writes one version of a key.
func (e *exporter) version(kind pebble.InternalKeyKind, key, value []byte, name string, version uint64) error {
	if e.learning {
		if kind == pebble.InternalKeyKindSet || kind == pebble.InternalKeyKindSetWithDelete {
			e.learn(string(key[1:]), value, version)
		}
		return nil
	}
	l := exported{File: name, Version: version}
	switch kind {
	case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
	case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
		l.Deleted, value = true, nil
	case pebble.InternalKeyKindRangeDelete:
		return e.out.Encode(exported{
			Type: "deleted-range", Name: fmt.Sprintf("from %q up to %q", key, value), File: name, Version: version,
		})
	default:
		return nil // counters are merged; they are not exported
	}
	return e.line(key, value, l)
}
