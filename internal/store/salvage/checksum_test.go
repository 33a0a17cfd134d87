//go:build !race

package salvage

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2/sstable/block"
)

// TestDamageBeforeChecksum: an index that was damaged in memory, before it got its checksum, is an error. In other blocks Pebble
// cannot be kept from reading what such damage points to.
func TestDamageBeforeChecksum(t *testing.T) {
	tab := newTable(t)
	var checksum block.Checksummer
	checksum.Init(block.ChecksumTypeCRC32c)
	for _, b := range tab.index {
		damaged := tab.content[b.Offset : b.Offset+b.Length+block.TrailerLen]
		damaged[3] ^= 0xff
		binary.LittleEndian.PutUint32(damaged[b.Length+1:], checksum.Checksum(damaged[:b.Length], damaged[b.Length]))
	}
	if patches, err := FindPatches(tab.content, tab.info.Smallest, tab.info.Largest); err == nil {
		t.Errorf("%d patches", len(patches))
	}
}
