package engine

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestPartsOfTheReserve keeps the last parts for what the store cannot continue without.
func TestPartsOfTheReserve(t *testing.T) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll("store", 0o700); err != nil {
		t.Fatal(err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 100 << 20, TotalBytes: 1 << 40})
	r := openReserve(mem, "store", 64<<20)
	if err := r.fill(0); err != nil || r.missing() == 0 {
		t.Fatalf("on a full disk: %d bytes are missing, %v", r.missing(), err)
	}
	if err := r.fill(100 << 20); err != nil || r.missing() != 0 {
		t.Fatalf("%d bytes are missing, %v", r.missing(), err)
	}
	tables := 0
	for _, ok := r.pop(false); ok; _, ok = r.pop(false) {
		tables++
	}
	if tables != reserveParts-reserveVital {
		t.Errorf("tables can take %d parts of %d", tables, reserveParts)
	}
	if _, ok := r.pop(true); !ok {
		t.Error("nothing is left for the write-ahead log")
	}
}
