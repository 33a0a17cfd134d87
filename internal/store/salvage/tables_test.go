package salvage

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestPatchedVersions patches the block of one key in two tables, which hold the same
// keys in the same blocks, and compacts them together: Pebble reads both patches, and
// has every other key.
func TestPatchedVersions(t *testing.T) {
	const keys = 400
	versions := newVersions(t, keys, func(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }, func(int) int { return 1000 })
	for version := range 2 {
		p := versions.patch(version, 40)
		if p == nil {
			t.Fatal("nothing is patched")
		}
		if err := BlockKeys(p.Data[:len(p.Data)-block.TrailerLen], func(pebble.InternalKeyKind, []byte, []byte, uint64) error { return io.EOF }); err != nil {
			t.Errorf("a patch holds a key: %v", err)
		}
	}
	if left := versions.compacted(); left < keys-100 {
		t.Errorf("%d of %d keys are left", left, keys)
	}
}

// TestPatchedBounds patches every block of small tables, whose keys are the bounds of
// their table and of their block: alone, and with the same block of a table that has
// other versions of the keys.
func TestPatchedBounds(t *testing.T) {
	note := func(i int) []byte { return append([]byte{'o'}, layout.ID32(uint32(i))...) }
	for name, c := range map[string]struct {
		keys int
		key  func(i int) []byte
		size func(i int) int
	}{
		"one key":                  {keys: 1, key: note, size: func(int) int { return 6000 }},
		"one key without value":    {keys: 1, key: note, size: func(int) int { return 0 }},
		"keys without values":      {keys: 3, key: note, size: func(int) int { return 0 }},
		"a block for each key":     {keys: 4, key: note, size: func(int) int { return 6000 }},
		"a last block of few":      {keys: 4, key: note, size: func(i int) int { return 6000 * (3 - i) }},
		"a short separator":        {keys: 4, key: func(i int) []byte { return note(0xfe + i) }, size: func(int) int { return 6000 }},
		"keys that begin alike":    {keys: 4, key: func(i int) []byte { return bytes.Repeat([]byte{1}, 1+i) }, size: func(int) int { return 6000 }},
		"as many as a block holds": {keys: 9, key: note, size: func(int) int { return 1000 }},
	} {
		t.Run(name, func(t *testing.T) {
			for nth, more := 0, true; more; nth++ {
				more = false
				for _, patched := range [][]int{{0}, {1}, {0, 1}} {
					versions := newVersions(t, c.keys, c.key, c.size)
					var lost []layout.Range
					for _, version := range patched {
						if p := versions.patch(version, nth); p != nil {
							lost = append(lost, p.Lost)
						}
					}
					more = more || len(lost) > 0
					intact := 0
					for i := range c.keys {
						if !slices.ContainsFunc(lost, func(r layout.Range) bool { return r.Overlaps(c.key(i), append(c.key(i), 0)) }) {
							intact++
						}
					}
					if left := versions.compacted(); left < intact || left > c.keys {
						t.Errorf("block %d of %v: %d keys are left, %d of %d are intact", nth, patched, left, intact, c.keys)
					}
				}
			}
		})
	}
}

// TestPatchedIndexes damages each block of an index and of a filter in turn, alone and beside blocks of data: every key
// that is in no damaged block of data is there, as before.
func TestPatchedIndexes(t *testing.T) {
	for name, keys := range map[string]int{"one index": 101, "an index of indexes": 1100} {
		for version := range 2 {
			if version == 1 && keys > 1000 {
				continue // each takes a while with the race detector
			}
			t.Run(fmt.Sprintf("%s, version %d", name, version), func(t *testing.T) {
				versions := newVersions(t, keys, func(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }, func(i int) int { return 1000 + i%7 })
				table := versions.tables[version]
				pristine, err := engine.ReadFile(versions.fs, "db/"+table.BackingSSTNum.String()+".sst")
				if err != nil {
					t.Fatal(err)
				}
				read := func(content []byte) (all map[string]string) {
					t.Helper()
					all = map[string]string{}
					err := WithTableContent(content, func(r *sstable.Reader) error {
						it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
						if err != nil {
							return err
						}
						for kv := it.First(); kv != nil; kv = it.Next() {
							if kv.K.Kind() == pebble.InternalKeyKindSet {
								all[string(kv.K.UserKey)] = string(kv.InPlaceValue())
							}
						}
						for key := range all {
							if kv := it.SeekPrefixGE([]byte(key), []byte(key), 0); kv == nil || string(kv.K.UserKey) != key {
								t.Errorf("%q is found by a scan alone", key)
							}
						}
						return it.Close()
					})
					if err != nil {
						t.Fatal(err)
					}
					return all
				}
				want := read(pristine)
				var l *sstable.Layout
				if err := WithTableContent(pristine, func(r *sstable.Reader) error {
					l, err = r.Layout()
					return err
				}); err != nil {
					t.Fatal(err)
				}
				blocks := slices.Clone(l.Index)
				if l.TopIndex.Length > 0 {
					blocks = append(blocks, l.TopIndex)
				}
				if len(blocks) > 1 != (keys > 1000) || len(l.Filter) != 1 {
					t.Fatalf("%d blocks of indexes, %d filters", len(blocks), len(l.Filter))
				}
				for _, f := range l.Filter {
					blocks = append(blocks, f.Handle)
				}
				for _, damaged := range blocks {
					n := len(l.Data)
					for _, data := range [][]int{
						{},
						{0},
						{0, 1},
						{n / 2},
						{n / 2, n/2 + 1},
						{n / 2, n/2 + 1, n/2 + 2},
						{n - 1},
						{n - 2, n - 1},
						{n - 3, n - 2, n - 1},
						{9, n - 2, n - 1},
						{1, 2, 4, n - 4, n - 3, n - 2},
						{1, 3, 4, 5, n - 2, n - 1},
					} {
						if damaged == l.TopIndex && slices.Contains(data, n-1) {
							continue // where the data ends is not known
						}
						content := bytes.Clone(pristine)
						content[damaged.Offset+damaged.Length/2] ^= 1
						intact := maps.Clone(want)
						for _, i := range data {
							d := l.Data[i]
							content[d.Offset+d.Length/2] ^= 1
							if err := BlockKeys(bytes.Clone(pristine[d.Offset:d.Offset+d.Length]), func(_ pebble.InternalKeyKind, key, _ []byte, _ uint64) error {
								delete(intact, string(key))
								return nil
							}); err != nil {
								t.Fatal(err)
							}
						}
						patches, err := FindPatches(content, table.Smallest, table.Largest)
						if err != nil {
							t.Fatalf("block %d beside %d: %v", damaged.Offset, data, err)
						}
						lost := false
						for _, p := range patches {
							copy(content[p.Offset:], p.Data)
							lost = lost || p.Loses()
						}
						if got := read(content); !maps.Equal(got, intact) || lost != (len(data) > 0) {
							t.Errorf("block %d beside %d: %d of %d keys, lost: %v", damaged.Offset, data, len(got), len(intact), lost)
						}
					}
				}
			})
		}
	}
}

// versions is a closed database with two versions of each key: one in the last level, among
// keys around them, and one in level 0, which a compaction with another table takes to a
// level between.
type versions struct {
	t      testing.TB
	fs     *vfs.MemFS
	tables [2]pebble.SSTableInfo
}

var below, above = []byte{0}, []byte{0xfe}

func newVersions(t testing.TB, keys int, key func(i int) []byte, size func(i int) int) *versions {
	t.Helper()
	v := &versions{t: t, fs: vfs.NewMem()}
	db := v.open()
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	set := func(key []byte) {
		t.Helper()
		if err := db.Set(key, key, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	for version := range v.tables {
		set(below)
		if version == 0 {
			set(above)
		} else if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
		for i := keys - 1; i >= 0; i-- { // the first key is the newest
			value := make([]byte, size(i))
			for at := range value {
				value[at] = byte(r.Uint32())
			}
			if err := db.Set(key(i), value, pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
		if version == 0 {
			if err := db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
				t.Fatal(err)
			}
		}
		levels, err := db.SSTables()
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range slices.Concat(levels...) {
			name := table.BackingSSTNum.String()
			if !seen[name] && (version == 0 || !bytes.Equal(table.Smallest.UserKey, below)) {
				v.tables[version] = table
			}
			seen[name] = true
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *versions) open() *pebble.DB {
	v.t.Helper()
	o := engine.Options(v.fs, engine.Logger{Log: slog.New(slog.DiscardHandler), Limit: new(engine.LogLimit), Fatal: func(err error) { v.t.Error(err) }}, nil, 0)
	o.DisableAutomaticCompactions = true
	o.LBaseMaxBytes = 1 // so that there are levels between
	db, err := pebble.Open("db", o)
	if err != nil {
		v.t.Fatal(err)
	}
	return db
}

// patch damages the nth block of the table of a version and patches it; nil if there is
// none.
func (v *versions) patch(version, nth int) *Patch {
	v.t.Helper()
	table := v.tables[version]
	path := "db/" + table.BackingSSTNum.String() + ".sst"
	content, err := engine.ReadFile(v.fs, path)
	if err != nil {
		v.t.Fatal(err)
	}
	var blocks []block.HandleWithProperties
	if err := WithTableContent(content, func(r *sstable.Reader) error {
		l, err := r.Layout()
		if err == nil {
			blocks = l.Data
		}
		return err
	}); err != nil {
		v.t.Fatal(err)
	}
	if nth >= len(blocks) {
		return nil
	}
	content[blocks[nth].Offset+blocks[nth].Length/2] ^= 1
	patches, err := FindPatches(content, table.Smallest, table.Largest)
	if err != nil || len(patches) != 1 {
		v.t.Fatal(nth, len(patches), err)
	}
	p := patches[0]
	copy(content[p.Offset:], p.Data)
	f, err := v.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		v.t.Fatal(err)
	}
	if _, err := f.Write(content); err != nil {
		v.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		v.t.Fatal(err)
	}
	return &p
}

// compacted compacts the two versions of the keys together and returns how many keys are
// left, which are as many for a Get as for an iterator, before as after.
func (v *versions) compacted() (left int) {
	v.t.Helper()
	db := v.open()
	for range 2 {
		it, err := db.NewIter(nil)
		if err != nil {
			v.t.Fatal(err)
		}
		before := left
		left = 0
		for ok := it.First(); ok; ok = it.Next() {
			if bytes.Equal(it.Key(), below) || bytes.Equal(it.Key(), above) {
				continue
			}
			left++
			value, closer, err := db.Get(it.Key())
			if err != nil {
				v.t.Fatalf("%q: %v", it.Key(), err)
			}
			if !bytes.Equal(value, it.Value()) {
				v.t.Errorf("%q has another value for an iterator", it.Key())
			}
			if err := closer.Close(); err != nil {
				v.t.Fatal(err)
			}
		}
		if err := it.Close(); err != nil {
			v.t.Fatal(err)
		}
		if before > 0 && left != before {
			v.t.Errorf("%d keys before the compaction, %d after", before, left)
		}
		if err := db.Compact(v.t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
			v.t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		v.t.Fatal(err)
	}
	return left
}
