package engine

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// blockFS spares Pebble the search for the bit that flipped in a damaged block (its internal/bitflip), which takes the
// checksum of the whole block for each bit of its first 40 KiB: at each reading, a minute for a block of 1.5 MB.
type blockFS struct{ vfs.FS }

func (b blockFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := b.FS.Open(name, opts...)
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return file, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &blockFile{file, info.Size()}, nil
}

func (b blockFS) Unwrap() vfs.FS { return b.FS }

// blockFile is a table. Of it, Pebble reads whole blocks, and the footer, which is its end.
type blockFile struct {
	vfs.File
	size int64
}

func (f *blockFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(p, offset)
	if err == nil && offset+int64(n) < f.size {
		endSearch(p[:n])
	}
	return n, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// endSearch gives a block whose checksum is wrong the one that it would have if its first bit were flipped. That is wrong
// as well, as two blocks that differ in one bit never have one checksum, and explained by the first bit that the search flips.
func endSearch(block []byte) {
	const checksumLen = 4
	if len(block) <= checksumLen {
		return
	}
	content, checksum := block[:len(block)-checksumLen], block[len(block)-checksumLen:]
	if binary.LittleEndian.Uint32(checksum) == checksumOf(content) {
		return
	}
	content[0] ^= 1
	binary.LittleEndian.PutUint32(checksum, checksumOf(content))
	content[0] ^= 1
}

// checksumOf is that of Pebble's blocks (its internal/crc), in which LevelDB's rotation and addition follow the CRC.
func checksumOf(content []byte) uint32 {
	c := crc32.Checksum(content, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
