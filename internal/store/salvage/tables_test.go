package salvage

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// TestPatchedVersions patches the block of one key in two tables, which hold the same
// keys in the same blocks, and compacts them together: Pebble reads both patches, and
// has every other key.
func TestPatchedVersions(t *testing.T) {
	const keys, lost = 400, 150
	key := func(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }
	fs := vfs.NewMem()
	open := func() *pebble.DB {
		t.Helper()
		o := engine.Options(fs, engine.Logger{Log: slog.New(slog.DiscardHandler), Limit: new(engine.LogLimit), Fatal: func(err error) { t.Error(err) }}, nil, 0)
		o.DisableAutomaticCompactions = true
		db, err := pebble.Open("db", o)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	compact := func() {
		t.Helper()
		if err := db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	value := make([]byte, 1000)
	for version := range 2 {
		for i := range keys {
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
			compact() // to the last level
		}
	}
	levels, err := db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	patched := 0
	for _, level := range levels {
		for _, table := range level {
			if bytes.Compare(table.Smallest.UserKey, key(lost)) > 0 || bytes.Compare(table.Largest.UserKey, key(lost)) < 0 {
				continue
			}
			path := fmt.Sprintf("db/%06d.sst", table.FileNum)
			content, err := engine.ReadFile(fs, path)
			if err != nil {
				t.Fatal(err)
			}
			content[bytes.Index(content, key(lost)[:8])+len(content)/3] ^= 1
			patches, err := FindPatches(content, layout.Range{Lower: table.Smallest.UserKey, Upper: table.Largest.UserKey})
			if err != nil || len(patches) != 1 {
				t.Fatal(len(patches), err)
			}
			for _, p := range patches {
				copy(content[p.Offset:], p.Data)
				if err := BlockKeys(p.Data[:len(p.Data)-5], func(pebble.InternalKeyKind, []byte, []byte, uint64) error { return io.EOF }); err != nil {
					t.Errorf("a patch holds a key: %v", err)
				}
				patched++
			}
			f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(content); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if patched != 2 {
		t.Fatalf("%d tables are patched", patched)
	}
	db = open()
	compact()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for ok := it.First(); ok; ok = it.Next() {
		left++
	}
	if err := it.Close(); err != nil || left < keys-100 {
		t.Errorf("%d of %d keys are left, %v", left, keys, err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
