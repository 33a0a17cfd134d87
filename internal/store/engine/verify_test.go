package engine

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/testkit"
)

var noise = testkit.Noise

// TestTornAcrossABlock cuts the first part of a MANIFEST's last record, which
// crosses a block, as a power cut may that has kept the later block.
func TestTornAcrossABlock(t *testing.T) {
	chunk := func(kind byte, payload []byte) []byte {
		b := make([]byte, chunkHeader, chunkHeader+len(payload))
		binary.LittleEndian.PutUint16(b[4:], uint16(len(payload)))
		b[6] = kind
		b = append(b, payload...)
		c := crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli))
		binary.LittleEndian.PutUint32(b, (c>>15|c<<17)+0xa282ead8)
		return b
	}
	whole := chunk(fullChunk, noise(recordBlock-1000))
	first, last := chunk(firstChunk, noise(1000-2*chunkHeader)), chunk(4, noise(500))
	torn := append(append(bytes.Clone(whole), make([]byte, len(first))...), last...)
	if len(torn) != recordBlock+len(last) {
		t.Fatalf("%d bytes", len(torn))
	}
	for _, c := range []struct {
		name    string
		content []byte
		damaged bool
	}{
		{"whole", append(append(bytes.Clone(whole), first...), last...), false},
		{"torn", torn, false},
		{"torn at the padding", append(append(chunk(fullChunk, noise(recordBlock-3-chunkHeader)), 0, 0, 0), first...), false},
		{"damaged, as another record follows", append(bytes.Clone(torn), chunk(fullChunk, noise(100))...), true},
	} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll("store/db", 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create("store/db/M", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(c.content)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := verifyLog(fs, "store/db/M", 0, discard, validChunk); (err != nil) != c.damaged {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestDamagedLogNumber flips each bit of the log's number in a commit of a write-ahead log. With the number of the
// next log it looks like the end of this one.
func TestDamagedLogNumber(t *testing.T) {
	const number = 6
	var whole []byte
	for range 3 {
		synced := len(whole)
		b := make([]byte, syncChunkHeader, syncChunkHeader+100)
		b[6] = syncKinds + fullChunk
		b = append(b, noise(100)...)
		binary.LittleEndian.PutUint16(b[4:], 100)
		binary.LittleEndian.PutUint32(b[7:], number)
		binary.LittleEndian.PutUint64(b[11:], uint64(synced))
		binary.LittleEndian.PutUint32(b, MaskedChecksum(crc32.Checksum(b[6:], crc32.MakeTable(crc32.Castagnoli))))
		whole = append(whole, b...)
	}
	verify := func(content []byte) error {
		fs := vfs.NewMem()
		f, err := fs.Create("000006.log", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(bytes.Clone(content)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return verifyLog(fs, "000006.log", number, discard, func(content []byte, end int64) bool { return syncedChunk(content, end, number) })
	}
	for _, content := range [][]byte{whole, append(bytes.Clone(whole), make([]byte, 200)...)} {
		if err := verify(content); err != nil {
			t.Error(err)
		}
	}
	for bit := range 32 {
		b := bytes.Clone(whole)
		b[7+bit/8] ^= 1 << (bit % 8)
		if err := verify(b); err == nil {
			t.Errorf("bit %d of the first commit's number: no damage is found", bit)
		}
	}
}
