package engine

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestEndSearch reads a table of two blocks and a footer: a damaged block stays one, with a checksum that the first bit explains;
// all else is read as it is.
func TestEndSearch(t *testing.T) {
	const blockLen, footerLen = 9000, 61
	var table []byte
	for i := range 2 {
		content := bytes.Repeat([]byte{byte('a' + i)}, blockLen-4)
		table = binary.LittleEndian.AppendUint32(append(table, content...), checksumOf(content))
	}
	table = append(table, bytes.Repeat([]byte("f"), footerLen)...)
	table[blockLen+blockLen/2] ^= 0x55
	fs := vfs.NewMem()
	if err := writeFile(fs, "1.sst", bytes.Clone(table)); err != nil { // a file may change what it is given
		t.Fatal(err)
	}
	f, err := Options(fs, nil, nil, 0).FS.Open("1.sst")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := func(offset, n int) []byte {
		t.Helper()
		b := make([]byte, n)
		if _, err := f.ReadAt(b, int64(offset)); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, healthy := range [][2]int{{0, blockLen}, {2 * blockLen, footerLen}, {2*blockLen + 8, footerLen - 8}} {
		if b := read(healthy[0], healthy[1]); !bytes.Equal(b, table[healthy[0]:][:healthy[1]]) {
			t.Errorf("%d bytes at %d are read differently", healthy[1], healthy[0])
		}
	}
	b := read(blockLen, blockLen)
	content, checksum := b[:blockLen-4], binary.LittleEndian.Uint32(b[blockLen-4:])
	if !bytes.Equal(content, table[blockLen:][:blockLen-4]) || checksum == checksumOf(content) {
		t.Error("the damaged block is not what the disk has, or seems to be healthy")
	}
	flipped := slices.Clone(content)
	flipped[0] ^= 1
	if checksum != checksumOf(flipped) {
		t.Error("the first bit does not explain the checksum")
	}
}
