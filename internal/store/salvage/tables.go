package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/engine"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// A compaction fails on a block whose checksum is wrong, and all tables above then wait
// for that compaction. Pebble cannot take a block out of a table. So the block is
// overwritten in place with an empty one of the same length: the indexes, the other
// blocks and the size of the file, which is in the MANIFEST, do not change. A crash
// in between leaves a damaged block. An index is made again from its blocks, and in place of a filter comes one that lets all
// keys pass.

// Patch is a block in place of a damaged one of a table file.
type Patch struct {
	Offset int64 // in the file
	Data   []byte
	Lost   layout.Range // the keys that the damaged block may have held; none if it was one of an index or a filter
}

// Loses reports whether keys may be lost.
func (p *Patch) Loses() bool { return p.Lost.Upper != nil }

// What is damaged between blocks becomes so many more of them at most, and none of less than this size.
const (
	maxParts = 16
	minPart  = 512
)

// errNoPatch: the damage is elsewhere.
var errNoPatch = errors.New("the table is damaged where it cannot be repaired")

// FindPatches reads a table file with its smallest and largest key, and returns a patch
// for each damaged block of data, of an index or of a filter.
func FindPatches(content []byte, smallest, largest pebble.InternalKey) (patches []Patch, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = panicked(r)
		}
	}()
	t := tableFile{content: content, smallest: smallest.UserKey, largest: largest.UserKey}
	if err := WithTableContent(content, t.open); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPatch, err)
	}
	lower, table := smallest.UserKey, xxhash.Sum64(content)
	for i, d := range t.data {
		if !t.valid(d.Handle) {
			h := hole{Range: layout.Range{Lower: lower, Upper: d.separator}, unique: table + d.Offset}
			if d.damage != nil {
				h.Range = *d.damage
			}
			if bytes.Compare(h.Upper, largest.UserKey) > 0 {
				h.Upper = largest.UserKey
			}
			if i == len(t.data)-1 && !largest.IsExclusiveSentinel() {
				h.others = append(h.others, largest)
			}
			h.others = append(h.others, pebble.InternalKey{UserKey: lower, Trailer: smallest.Trailer})
			data, err := h.block(int(d.Length))
			if err != nil {
				return nil, err
			}
			t.patch(d.Handle, data, h.Range)
		}
		lower = d.separator
	}
	return t.patches, t.verify()
}

// tableFile is a table's contents with the index of its data blocks.
type tableFile struct {
	content           []byte // with the patches
	smallest, largest []byte // keys
	checksum          block.Checksummer
	data              []dataBlock
	patches           []Patch
}

// dataBlock is a block whose keys are greater than the separator of the one before
// and not greater than its own.
type dataBlock struct {
	block.Handle
	separator []byte
	damage    *layout.Range // if the separators do not bound the keys
}

func (d *dataBlock) end() uint64 { return d.Offset + d.Length + block.TrailerLen }

// open reads the indexes, and patches what is damaged of them and of the filter.
func (t *tableFile) open(r *sstable.Reader) error {
	t.checksum.Init(r.BlockReader().ChecksumType())
	format, err := r.TableFormat()
	if err != nil {
		return err
	}
	if !format.BlockColumnar() {
		return fmt.Errorf("unexpected format %s", format)
	}
	// The footer: type of checksum, handles of the metaindex and of the index.
	footer := t.content[len(t.content)-format.FooterSize():]
	_, n := block.DecodeHandle(footer[1:])
	index, m := block.DecodeHandle(footer[1+n:])
	if n == 0 || m == 0 {
		return layout.ErrMalformed
	}
	indexes := []dataBlock{{Handle: index}}
	if r.Attributes.Has(sstable.AttributeTwoLevelIndex) {
		if !t.valid(index) {
			parts, err := t.findIndexes(index.Offset)
			if err == nil {
				_, err = t.patchIndex(index, parts)
			}
			if err != nil {
				return err
			}
		}
		if indexes, err = t.index(index); err != nil {
			return err
		}
	}
	for n, i := range indexes {
		if !t.valid(i.Handle) {
			blocks, err := t.indexed(indexes[n:], indexes[0].Offset)
			if err == nil {
				blocks, err = t.patchIndex(i.Handle, blocks)
			}
			if err != nil {
				return err
			}
			t.data = append(t.data, blocks...) // not as they are read: damage knows its bounds
			continue
		}
		blocks, err := t.index(i.Handle)
		if err != nil {
			return err
		}
		t.data = append(t.data, blocks...)
	}
	if len(t.patches) == 0 {
		return t.openFilter(r)
	}
	next := uint64(0)
	for _, d := range t.data {
		if d.Offset != next {
			return fmt.Errorf("no block at %d: %w", next, layout.ErrMalformed)
		}
		next = d.end()
	}
	return WithTableContent(t.content, t.openFilter)
}

// openFilter patches the filter if that is damaged. The indexes can be read.
func (t *tableFile) openFilter(r *sstable.Reader) error {
	l, err := r.Layout()
	if err != nil {
		return err
	}
	for _, f := range l.Filter {
		if t.valid(f.Handle) {
			continue
		}
		// A number of probes per key and one of lines end a filter: without probes, each key may be there.
		b := make([]byte, f.Length+block.TrailerLen)
		binary.LittleEndian.PutUint32(b[f.Length-4:], 1)
		t.patch(f.Handle, b, layout.Range{})
	}
	return nil
}

func (t *tableFile) index(h block.Handle) (blocks []dataBlock, err error) {
	var it colblk.IndexIter
	// A copy is aligned.
	content := bytes.Clone(t.content[h.Offset : h.Offset+h.Length])
	if kind := block.CompressionIndicator(t.content[h.Offset+h.Length]); kind != block.NoCompressionIndicator {
		n, err := block.DecompressedLen(kind, content)
		if err != nil {
			return nil, err
		}
		plain := make([]byte, n)
		if err := block.DecompressInto(kind, content, plain); err != nil {
			return nil, err
		}
		content = plain
	}
	if err := it.Init(pebble.DefaultComparer, content, block.NoTransforms); err != nil {
		return nil, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		b, err := it.BlockHandleWithProperties()
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, dataBlock{Handle: b.Handle, separator: bytes.Clone(it.Separator())})
	}
	return blocks, nil
}

// findIndexes finds the indexes of which the one at an offset is the index. They lie between the data and that.
func (t *tableFile) findIndexes(end uint64) (indexes []dataBlock, err error) {
	next := uint64(0)
	err = DataBlocks(t.content[:end], func(offset int, data []byte) error {
		next = uint64(offset+len(data)) + block.TrailerLen
		return nil
	})
	for err == nil && next < end {
		i := dataBlock{Handle: block.Handle{Offset: next, Length: uint64(checkedLen(t.content[next:end]))}}
		var blocks []dataBlock
		if i.Length == 0 {
			return nil, fmt.Errorf("index block at %d: %w", next, layout.ErrMalformed)
		}
		if blocks, err = t.index(i.Handle); len(blocks) > 0 {
			i.separator = blocks[len(blocks)-1].separator
		}
		indexes, next = append(indexes, i), i.end()
	}
	return indexes, err
}

// indexed finds the data blocks of the first of the indexes that are left, which is damaged. They lie behind those of the indexes before;
// all data ends at an offset. What is damaged between two blocks counts as one.
func (t *tableFile) indexed(indexes []dataBlock, end uint64) (blocks []dataBlock, err error) {
	begin, last := uint64(0), t.smallest
	if n := len(t.data); n > 0 {
		begin, last = t.data[n-1].end(), t.data[n-1].separator
	}
	damaged := slices.IndexFunc(indexes, func(i dataBlock) bool { return t.valid(i.Handle) }) // their number
	if damaged < 0 {
		damaged = len(indexes)
	} else if known, err := t.index(indexes[damaged].Handle); err != nil || len(known) == 0 {
		return nil, errors.Join(err, layout.ErrMalformed)
	} else {
		end = known[0].Offset
	}
	next := begin
	goOn := func(offset uint64, first []byte) { // with the next block, of that first key
		separator := pebble.DefaultComparer.Separator(nil, last, first)
		if before := len(blocks) - 1; before >= 0 {
			blocks[before].separator = separator
		}
		if next+block.TrailerLen < offset {
			h := block.Handle{Offset: next, Length: offset - next - block.TrailerLen}
			// With the separator of the block before: no search is led here, and the two are as short as they were.
			blocks = append(blocks, dataBlock{h, separator, &layout.Range{Lower: last, Upper: first}})
		}
	}
	err = DataBlocks(t.content[begin:end], func(offset int, data []byte) error {
		it, err := blockIter(data)
		if err != nil {
			return err
		}
		d := dataBlock{Handle: block.Handle{Offset: begin + uint64(offset), Length: uint64(len(data))}}
		goOn(d.Offset, bytes.Clone(it.First().K.UserKey))
		last, next = bytes.Clone(it.Last().K.UserKey), d.end()
		blocks = append(blocks, d)
		return nil
	})
	upper := indexes[damaged-1].separator
	if upper == nil {
		upper = pebble.DefaultComparer.Successor(nil, t.largest)
	}
	goOn(end, upper)
	if n := len(blocks); n > 0 {
		blocks[n-1].separator = upper
	}
	if damaged > 1 {
		blocks = slices.DeleteFunc(blocks, func(d dataBlock) bool { return bytes.Compare(d.separator, indexes[0].separator) > 0 })
	}
	return blocks, err
}

// patchIndex makes an index of a length again, with the blocks that it returns. The size of an index has steps: where none fits, what is damaged
// between two blocks is cut into more of them.
func (t *tableFile) patchIndex(h block.Handle, blocks []dataBlock) ([]dataBlock, error) {
	parts := slices.Repeat([]uint64{1}, len(blocks)) // of each block
	for range maxParts {
		var cut []dataBlock
		longest, part := -1, uint64(0)
		for i, d := range blocks {
			if n := (d.Length + block.TrailerLen) / parts[i]; d.damage != nil && n > part {
				longest, part = i, n
			}
			for begin, left := d, parts[i]; left > 0; left-- {
				begin.Length = (d.end()-begin.Offset)/left - block.TrailerLen
				cut = append(cut, begin)
				begin.Offset = begin.end()
			}
		}
		if data := indexBlock(cut, int(h.Length)); data != nil {
			t.patch(h, data, layout.Range{})
			return cut, nil
		}
		if part < 2*minPart {
			break
		}
		parts[longest]++
	}
	return nil, fmt.Errorf("no room for %d blocks in the index at %d: %w", len(blocks), h.Offset, layout.ErrMalformed)
}

// indexBlock returns an index of a length, nil if that cannot be. Zeros behind the last separator fill it: the next key, if there is
// one, is behind them (see holeLen), and properties of the blocks, by which readers pass over some, are left out.
func indexBlock(blocks []dataBlock, length int) []byte {
	var w colblk.IndexBlockWriter
	w.Init()
	for fill := range length {
		w.Reset()
		for i, d := range blocks {
			separator := d.separator
			if i == len(blocks)-1 {
				separator = append(bytes.Clone(separator), make([]byte, fill)...)
			}
			w.AddBlockHandle(separator, d.Handle, nil)
		}
		size := w.Size()
		if size > length {
			return nil
		}
		if size == length {
			return append(bytes.Clone(w.Finish(len(blocks))), make([]byte, block.TrailerLen)...)
		}
	}
	return nil
}

// patch puts data with room for its trailer in place of a block.
func (t *tableFile) patch(h block.Handle, data []byte, lost layout.Range) {
	t.seal(data)
	if len(t.patches) == 0 {
		t.content = bytes.Clone(t.content)
	}
	copy(t.content[h.Offset:], data)
	t.patches = append(t.patches, Patch{Offset: int64(h.Offset), Data: data, Lost: lost})
}

func (t *tableFile) valid(h block.Handle) bool {
	size := uint64(len(t.content))
	if h.Offset > size || h.Length > size || h.Offset+h.Length+block.TrailerLen > size {
		return false
	}
	b := t.content[h.Offset : h.Offset+h.Length+block.TrailerLen]
	return t.checksum.Checksum(b[:h.Length], b[h.Length]) == binary.LittleEndian.Uint32(b[h.Length+1:])
}

func (t *tableFile) seal(b []byte) {
	n := len(b) - block.TrailerLen
	trailer := block.MakeTrailer(byte(block.NoCompressionIndicator), t.checksum.Checksum(b[:n], byte(block.NoCompressionIndicator)))
	copy(b[n:], trailer[:])
}

func (t *tableFile) verify() error {
	if len(t.patches) == 0 {
		return nil
	}
	return WithTableContent(t.content, func(r *sstable.Reader) error {
		it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }() // its error was seen while reading
		var last pebble.InternalKey
		for kv := it.First(); kv != nil; kv = it.Next() {
			if order := bytes.Compare(kv.K.UserKey, last.UserKey); last.UserKey != nil && (order < 0 || order == 0 && kv.K.Trailer >= last.Trailer) {
				return fmt.Errorf("%w: %s after %s", layout.ErrMalformed, kv.K, last)
			}
			last.CopyFrom(kv.K)
		}
		return it.Error()
	})
}

// hole is the empty block for a range of lost keys.
//
// A block needs a key, within the bounds of its table: a compaction fails on another one.
// It is a tombstone, as old as can be, of a key just after the lower bound that never
// exists. The key holds unique: Pebble panics if it compacts two tombstones of one key and
// one age. Where such a key has no room, it is one of others:
//
//   - in the last block, the table's largest key with the age of its lost version: a newer
//     tombstone would hide newer versions, an older one could be as old as another version;
//   - the lower bound, with the age of the table's smallest key. In the first block, the
//     two are that key. Elsewhere it is the separator of the block before. If nothing but
//     zeros follow it in the upper bound, it is shorter than the keys around it, and none
//     of them.
type hole struct {
	layout.Range
	unique uint64
	others []pebble.InternalKey
}

// holeLen is how many zeros follow the lower bound in the key of an empty block, at
// least. No key of the store holds as many (package layout), and those of fixed length are
// shorter.
const holeLen = 14

// block returns a data block of a length, with room for its trailer.
func (h hole) block(length int) ([]byte, error) {
	// More zeros bring the key below the upper bound, where there is room.
	for zeros := holeLen; zeros < holeLen+64; zeros++ {
		key := append(bytes.Clone(h.Lower), make([]byte, zeros)...)
		key = binary.BigEndian.AppendUint64(append(key, 1), h.unique)
		if bytes.Compare(key, h.Upper) > 0 {
			continue
		}
		if b := tombstone(key, TombstoneTrailer, length); b != nil {
			return b, nil
		}
	}
	for _, k := range h.others {
		if b := tombstone(k.UserKey, k.Trailer>>8<<8|TombstoneTrailer, length); b != nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("%w: no room for a key in a block of %d bytes", errNoPatch, length)
}

// tombstone returns a data block of a length with a tombstone, whose value, which
// compactions drop, fills the block; nil if that length cannot be.
func tombstone(key []byte, trailer pebble.InternalKeyTrailer, length int) []byte {
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var e colblk.DataBlockEncoder
	e.Init(&schema)
	encode := func(fill int) int {
		e.Reset()
		e.Add(pebble.InternalKey{UserKey: key, Trailer: trailer}, make([]byte, fill), block.InPlaceValuePrefix(false), e.KeyWriter.ComparePrev(key), false)
		return e.Size()
	}
	// The size grows with the value, in steps where its length takes another byte.
	for fill := max(length-encode(0)-16, 0); fill <= length; fill++ {
		size := encode(fill)
		if size > length {
			break
		}
		if size == length {
			b, _ := e.Finish(1, size)
			return append(bytes.Clone(b), make([]byte, block.TrailerLen)...)
		}
	}
	return nil
}

// TombstoneTrailer is a deletion with sequence number 0: the key of an empty block.
const TombstoneTrailer = 0<<8 | pebble.InternalKeyTrailer(pebble.InternalKeyKindDelete)

// WithTableContent opens a table in memory for f.
func WithTableContent(content []byte, f func(*sstable.Reader) error) error {
	fs := vfs.NewMem()
	file, err := fs.Create("table.sst", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(bytes.Clone(content)) // a file may change what it is given
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return WithTable(fs, "table.sst", f)
}

// WithTable opens a table file for f.
func WithTable(fsys vfs.FS, path string, f func(*sstable.Reader) error) error {
	o := engine.Options(fsys, nil, nil, 0)
	file, err := o.FS.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	o.EnsureDefaults()
	reader, err := sstable.NewReader(context.Background(), readable, o.MakeReaderOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(f(reader), reader.Close())
}

// DataBlocks calls f for each data block of a table without using its indexes: bytes
// that begin like a block and end with a valid checksum.
func DataBlocks(content []byte, f func(offset int, data []byte) error) error {
	// What all data blocks have in common, behind the length of the longest key.
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	sample := tombstone([]byte{0}, TombstoneTrailer, 1<<10)
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
		if err := f(begin, bytes.Clone(content[begin:begin+n])); err != nil { // a copy is aligned
			return err
		}
		begin += n + block.TrailerLen
	}
}

// checkedLen returns the length of the block at the beginning of b; 0 if there is none.
func checkedLen(b []byte) int {
	table := crc32.MakeTable(crc32.Castagnoli)
	c := ^uint32(0)
	for n := range max(len(b)-block.TrailerLen+1, 0) {
		c = table[byte(c)^b[n]] ^ c>>8 // b[n] would be the kind of compression
		if engine.MaskedChecksum(^c) == binary.LittleEndian.Uint32(b[n+1:]) && b[n] == byte(block.NoCompressionIndicator) {
			return n
		}
	}
	return 0
}

// panicked is the error of a panic or a fault of a decoder, which trusts what has a valid checksum.
func panicked(r any) error { return fmt.Errorf("%w: %v", layout.ErrMalformed, r) }

// BlockKeys calls f for every version of a key in a data block.
func BlockKeys(data []byte, f func(kind pebble.InternalKeyKind, key, value []byte, version uint64) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = panicked(r)
		}
	}()
	it, err := blockIter(data)
	if err != nil {
		return err
	}
	for kv := it.First(); kv != nil; kv = it.Next() {
		if kv.K.Trailer == TombstoneTrailer {
			continue // of a block that was taken out
		}
		if err := f(kv.K.Kind(), kv.K.UserKey, kv.InPlaceValue(), uint64(kv.K.SeqNum())); err != nil {
			return err
		}
	}
	return nil
}

func blockIter(data []byte) (*colblk.DataBlockIter, error) {
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var d colblk.DataBlockDecoder
	d.Init(&schema, data)
	var it colblk.DataBlockIter
	it.InitOnce(&schema, pebble.DefaultComparer, nil)
	return &it, it.Init(&d, block.NoTransforms)
}
