package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

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
// in between leaves a damaged block.

// Patch is an empty block in place of a damaged one of a table file.
type Patch struct {
	Offset int64 // in the file
	Data   []byte
	Lost   layout.Range // the keys that the damaged block may have held
}

// errNoPatch: the damage is not in a data block.
var errNoPatch = errors.New("the index or the footer of the table is damaged")

// FindPatches reads a table file, whose keys lie in bounds, and returns a patch for
// each damaged data block.
func FindPatches(content []byte, bounds layout.Range) (patches []Patch, err error) {
	t := tableFile{content: content}
	err = WithTableContent(content, func(r *sstable.Reader) error { return t.open(r) })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPatch, err)
	}
	lower, table := bounds.Lower, xxhash.Sum64(content)
	for _, d := range t.data {
		upper := d.separator
		if bytes.Compare(upper, bounds.Upper) > 0 {
			upper = bounds.Upper
		}
		if !t.valid(d.Handle) {
			data, err := emptyBlock(int(d.Length), lower, upper, table+d.Offset)
			if err != nil {
				return nil, err
			}
			t.seal(data)
			patches = append(patches, Patch{Offset: int64(d.Offset), Data: data, Lost: layout.Range{Lower: lower, Upper: upper}})
		}
		lower = d.separator
	}
	return patches, t.verify(patches)
}

// tableFile is a table's contents with the index of its data blocks.
type tableFile struct {
	content  []byte
	checksum block.Checksummer
	data     []dataBlock
}

// dataBlock is a block whose keys are greater than the separator of the one before
// and not greater than its own.
type dataBlock struct {
	block.Handle
	separator []byte
}

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
	if !r.Attributes.Has(sstable.AttributeTwoLevelIndex) {
		t.data, err = t.index(nil, index)
		return err
	}
	top, err := t.index(nil, index)
	for _, i := range top {
		if err == nil {
			t.data, err = t.index(t.data, i.Handle)
		}
	}
	return err
}

// index appends the entries of an index block.
func (t *tableFile) index(blocks []dataBlock, h block.Handle) ([]dataBlock, error) {
	if !t.valid(h) {
		return blocks, fmt.Errorf("index block at %d: %w", h.Offset, layout.ErrMalformed)
	}
	var it colblk.IndexIter
	// A copy is aligned.
	content := bytes.Clone(t.content[h.Offset : h.Offset+h.Length])
	if kind := block.CompressionIndicator(t.content[h.Offset+h.Length]); kind != block.NoCompressionIndicator {
		n, err := block.DecompressedLen(kind, content)
		if err != nil {
			return blocks, err
		}
		plain := make([]byte, n)
		if err := block.DecompressInto(kind, content, plain); err != nil {
			return blocks, err
		}
		content = plain
	}
	if err := it.Init(pebble.DefaultComparer, content, block.NoTransforms); err != nil {
		return blocks, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		b, err := it.BlockHandleWithProperties()
		if err != nil {
			return blocks, err
		}
		blocks = append(blocks, dataBlock{Handle: b.Handle, separator: bytes.Clone(it.Separator())})
	}
	return blocks, nil
}

// valid reports whether the checksum of a block is right.
func (t *tableFile) valid(h block.Handle) bool {
	size := uint64(len(t.content))
	if h.Offset > size || h.Length > size || h.Offset+h.Length+block.TrailerLen > size {
		return false
	}
	b := t.content[h.Offset : h.Offset+h.Length+block.TrailerLen]
	return t.checksum.Checksum(b[:h.Length], b[h.Length]) == binary.LittleEndian.Uint32(b[h.Length+1:])
}

// seal writes the trailer of an uncompressed block.
func (t *tableFile) seal(b []byte) {
	n := len(b) - block.TrailerLen
	trailer := block.MakeTrailer(byte(block.NoCompressionIndicator), t.checksum.Checksum(b[:n], byte(block.NoCompressionIndicator)))
	copy(b[n:], trailer[:])
}

// verify reads the whole table with its patches.
func (t *tableFile) verify(patches []Patch) error {
	if len(patches) == 0 {
		return nil
	}
	content := bytes.Clone(t.content)
	for _, p := range patches {
		copy(content[p.Offset:], p.Data)
	}
	return WithTableContent(content, func(r *sstable.Reader) error {
		it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
		if err != nil {
			return err
		}
		defer func() { _ = it.Close() }() // its error was seen while reading
		var last []byte
		for kv := it.First(); kv != nil; kv = it.Next() {
			if last != nil && bytes.Compare(kv.K.UserKey, last) < 0 {
				return fmt.Errorf("%w: %q after %q", layout.ErrMalformed, kv.K.UserKey, last)
			}
			last = append(last[:0], kv.K.UserKey...)
		}
		return it.Error()
	})
}

// holeLen is how many zeros follow the lower bound in the key of an empty block, at
// least. No key of the store holds as many (package layout), and those of fixed length are
// shorter.
const holeLen = 14

// emptyBlock returns a data block of a length, with room for its trailer. A block
// needs a key. It is a tombstone, as old as can be, of a key just after lower that
// never exists; its value, which compactions drop, fills the block. The key holds unique:
// Pebble panics if it compacts two tombstones of one key and one age. More zeros bring
// it below upper, where there is room.
func emptyBlock(length int, lower, upper []byte, unique uint64) ([]byte, error) {
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	var e colblk.DataBlockEncoder
	e.Init(&schema)
	encode := func(zeros, fill int) {
		e.Reset()
		key := holeKey(lower, zeros, unique)
		tombstone := pebble.InternalKey{UserKey: key, Trailer: TombstoneTrailer}
		e.Add(tombstone, make([]byte, fill), block.InPlaceValuePrefix(false), e.KeyWriter.ComparePrev(key), false)
	}
	// The size grows with the value, in steps where its length takes another byte.
	for zeros := holeLen; zeros < holeLen+64; zeros++ {
		if bytes.Compare(lower, upper) < 0 && bytes.Compare(holeKey(lower, zeros, unique), upper) > 0 {
			continue
		}
		encode(zeros, 0)
		for fill := max(length-e.Size()-16, 0); fill <= length; fill++ {
			encode(zeros, fill)
			size := e.Size()
			if size > length {
				break
			}
			if size == length {
				b, _ := e.Finish(1, size)
				return append(bytes.Clone(b), make([]byte, block.TrailerLen)...), nil
			}
		}
	}
	return nil, fmt.Errorf("%w: no room for a key in a block of %d bytes", errNoPatch, length)
}

func holeKey(lower []byte, zeros int, unique uint64) []byte {
	key := append(bytes.Clone(lower), make([]byte, zeros)...)
	return binary.BigEndian.AppendUint64(append(key, 1), unique)
}

// TombstoneTrailer is a deletion with sequence number 0: the key of an empty block.
const TombstoneTrailer = 0<<8 | pebble.InternalKeyTrailer(pebble.InternalKeyKindDelete)

// WithTableContent opens a table in memory for f.
func WithTableContent(content []byte, f func(*sstable.Reader) error) error {
	fs := vfs.NewMem()
	file, err := fs.Create("table", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(bytes.Clone(content)) // a file may change what it is given
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return WithTable(fs, "table", f)
}

// WithTable opens a table file for f.
func WithTable(fsys vfs.FS, path string, f func(*sstable.Reader) error) error {
	file, err := fsys.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	o := engine.Options(fsys, nil, nil, 0)
	o.EnsureDefaults()
	reader, err := sstable.NewReader(context.Background(), readable, o.MakeReaderOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(f(reader), reader.Close())
}

// DataBlocks calls f for each data block of a table without using its indexes: bytes
// that begin like a block and end with a valid checksum.
func DataBlocks(content []byte, f func(data []byte) error) error {
	// What all data blocks have in common, behind the length of the longest key.
	schema := colblk.DefaultKeySchema(pebble.DefaultComparer, 16)
	sample, err := emptyBlock(1<<10, nil, nil, 0)
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

// BlockKeys calls f for every version of a key in a data block.
func BlockKeys(data []byte, f func(kind pebble.InternalKeyKind, key, value []byte, version uint64) error) (err error) {
	defer func() {
		// The decoder trusts what it reads, and blocks beside it hold no values here.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", layout.ErrMalformed, r)
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
		if kv.K.Trailer == TombstoneTrailer {
			continue // of a block that was taken out
		}
		if err := f(kv.K.Kind(), kv.K.UserKey, kv.InPlaceValue(), uint64(kv.K.SeqNum())); err != nil {
			return err
		}
	}
	return nil
}
