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

// FuzzDamage: a table with damaged bytes, cut or not, with checksums of the damage or without, is read and patched without a
// panic and in bounded memory, and what the patches leave are keys of the table.
func FuzzDamage(f *testing.F) {
	const keys = 60
	v := newVersions(f, keys, func(i int) []byte { return fmt.Appendf(nil, "key-%05d", i) }, func(i int) int { return 10 * (i % 100) })
	info := v.tables[0]
	intact, err := engine.ReadFile(v.fs, "db/"+info.BackingSSTNum.String()+".sst")
	if err != nil {
		f.Fatal(err)
	}
	var blocks []block.Handle
	if err := WithTableContent(intact, func(r *sstable.Reader) error {
		l, err := r.Layout()
		if err == nil {
			for _, d := range l.Data {
				blocks = append(blocks, d.Handle)
			}
			blocks = append(append(blocks, l.Index...), l.TopIndex, l.Properties, l.MetaIndex)
		}
		return err
	}); err != nil {
		f.Fatal(err)
	}
	var checksum block.Checksummer
	checksum.Init(block.ChecksumTypeCRC32c)
	known := map[string]bool{string(below): true, string(above): true}
	for i := range keys {
		known[fmt.Sprintf("key-%05d", i)] = true
	}
	flip := func(at uint64, by byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(at)), by) }
	f.Add(flip(blocks[0].Offset+9, 1), false, uint16(0))
	f.Add(flip(blocks[len(blocks)-4].Offset+3, 255), true, uint16(0))
	for _, b := range blocks {
		f.Add(flip(b.Offset+b.Length/2, 0x80), true, uint16(0))
	}
	f.Add(flip(uint64(len(intact)-20), 7), false, uint16(0))
	f.Add([]byte{}, false, uint16(len(intact)/2))
	f.Fuzz(func(t *testing.T, damage []byte, sealed bool, cut uint16) {
		content := bytes.Clone(intact)
		for ; len(damage) >= 3; damage = damage[3:] {
			content[int(binary.BigEndian.Uint16(damage))%len(content)] ^= damage[2]
		}
		for _, b := range blocks {
			if sealed && b.Length > 0 {
				sum := checksum.Checksum(content[b.Offset:b.Offset+b.Length], content[b.Offset+b.Length])
				binary.LittleEndian.PutUint32(content[b.Offset+b.Length+1:], sum)
			}
		}
		content = content[:len(content)-int(cut)%len(content)]
		testkit.Allocates(t, 16<<20+256*len(content), func() {
			patches, err := FindPatches(content, info.Smallest, info.Largest)
			if err == nil {
				for _, p := range patches {
					copy(content[p.Offset:], p.Data)
				}
				again, err := FindPatches(content, info.Smallest, info.Largest)
				if err != nil || len(again) > 0 {
					t.Errorf("a patched table needs %d patches: %v", len(again), err)
				}
			}
			_ = DataBlocks(content, func(data []byte) error { // what it finds of a damaged table is found
				return BlockKeys(data, func(_ pebble.InternalKeyKind, key, _ []byte, _ uint64) error {
					if !sealed && !known[string(key)] {
						t.Errorf("key %q is none of the table's", key)
					}
					return nil
				})
			})
		})
	})
}
