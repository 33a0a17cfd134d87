package outbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
)

// dataBlocks finds the data blocks of a table without its indexes: those where the
// beginning looks like one and a checksum is right some bytes later.
func dataBlocks(content []byte, f func(data []byte) error) error {
	// What all data blocks have in common, behind the length of the longest key.
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	sample, err := emptyBlock(1<<10, nil)
	if err != nil {
		return err
	}
	at := int(schema.HeaderSize) + 4
	common := sample[at : at+3] // version, number of columns
	for begin := 0; ; {
		next := bytes.Index(content[min(begin+at, len(content)):], common)
		if next < 0 {
			return nil
		}
		begin += next
		n := checkedLen(content[begin:])
		if n == 0 {
			begin++
			continue
		}
		if err := f(bytes.Clone(content[begin : begin+n])); err != nil { // a copy is aligned
			return err
		}
		begin += n + block.TrailerLen
	}
}

// checkedLen is the length of the block that b begins with; 0 if there is none.
func checkedLen(b []byte) int {
	table := crc32.MakeTable(crc32.Castagnoli)
	c := ^uint32(0)
	for n := range max(len(b)-block.TrailerLen+1, 0) {
		c = table[byte(c)^b[n]] ^ c>>8 // b[n] would be the kind of compression
		if maskedChecksum(^c) == binary.LittleEndian.Uint32(b[n+1:]) && b[n] == byte(block.NoCompressionIndicator) {
			return n
		}
	}
	return 0
}

// blockKeys calls f for every version of a key in a data block.
func blockKeys(data []byte, f func(kind pebble.InternalKeyKind, key, value []byte, version uint64) error) (err error) {
	defer func() {
		// The decoder trusts what it reads, and blocks beside it hold no values here.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errMalformed, r)
		}
	}()
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var d colblk.DataBlockDecoder
	d.Init(&schema, data)
	var it colblk.DataBlockIter
	it.InitOnce(&schema, pebble.DefaultComparer, nil)
	if err := it.Init(&d, block.NoTransforms); err != nil {
		return err
	}
	for kv := it.First(); kv != nil; kv = it.Next() {
		if kv.K.Trailer == tombstoneTrailer {
			continue // of a block that was taken out
		}
		if err := f(kv.K.Kind(), kv.K.UserKey, kv.InPlaceValue(), uint64(kv.K.SeqNum())); err != nil {
			return err
		}
	}
	return nil
}
