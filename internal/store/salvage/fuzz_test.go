package salvage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/testkit"
)

// table is a table with its blocks.
type table struct {
	content []byte
	info    pebble.SSTableInfo
	blocks  []block.Handle
	index   []block.Handle // among the blocks
	keys    map[string]bool
}

func newTable(t testing.TB) *table {
	const keys = 60
	v := newVersions(t, keys, func(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }, func(i int) int { return 10 * (i % 100) })
	out := &table{info: v.tables[0], keys: map[string]bool{string(below): true, string(above): true}}
	for i := range keys {
		out.keys[fmt.Sprintf("key-%05d", i)] = true
	}
	var err error
	if out.content, err = engine.ReadFile(v.fs, "db/"+out.info.BackingSSTNum.String()+".sst"); err != nil {
		t.Fatal(err)
	}
	if err := WithTableContent(out.content, func(r *sstable.Reader) error {
		l, err := r.Layout()
		if err == nil {
			for _, d := range l.Data {
				out.blocks = append(out.blocks, d.Handle)
			}
			out.index = l.Index
			out.blocks = append(append(out.blocks, l.Index...), l.Properties, l.MetaIndex)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// read does what is done with a table that is damaged, and calls f for the keys.
func (tab *table) read(t testing.TB, content []byte, f func(key []byte)) {
	testkit.Allocates(t, 16<<20+256*len(content), func() {
		patches, err := FindPatches(content, tab.info.Smallest, tab.info.Largest)
		if err == nil {
			for _, p := range patches {
				copy(content[p.Offset:], p.Data)
			}
			again, err := FindPatches(content, tab.info.Smallest, tab.info.Largest)
			if err != nil || len(again) > 0 {
				t.Errorf("a patched table needs %d patches: %v", len(again), err)
			}
		}
		_ = DataBlocks(content, func(_ int, data []byte) error { // what it finds of a damaged table is found
			return BlockKeys(data, func(_ pebble.InternalKeyKind, key, _ []byte, _ uint64) error {
				f(key)
				return nil
			})
		})
	})
}

// FuzzDamage: a table with damaged bytes, cut or not, is read and patched without a panic and in bounded memory, and what is found
// are keys of the table.
func FuzzDamage(f *testing.F) {
	tab := newTable(f)
	flip := func(at uint64, by byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(at)), by) }
	for _, b := range tab.blocks {
		f.Add(flip(b.Offset+b.Length/2, 0x80), uint16(0))
		f.Add(flip(b.Offset+b.Length, 1), uint16(0)) // the kind of compression
	}
	for back := range 40 { // the footer
		f.Add(flip(uint64(len(tab.content)-1-back), 7), uint16(0))
	}
	f.Add([]byte{}, uint16(len(tab.content)/2))
	f.Fuzz(func(t *testing.T, damage []byte, cut uint16) {
		content := bytes.Clone(tab.content)
		for ; len(damage) >= 3; damage = damage[3:] {
			content[int(binary.BigEndian.Uint16(damage))%len(content)] ^= damage[2]
		}
		tab.read(t, content[:len(content)-int(cut)%len(content)], func(key []byte) {
			if !tab.keys[string(key)] {
				t.Errorf("key %q is none of the table's", key)
			}
		})
	})
}
