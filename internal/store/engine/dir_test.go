package engine

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestBudgetWhileOpening opens a directory with a budget, of which nothing is known to be free
// before the size of the store is measured: the first compactions are not expanded.
func TestBudgetWhileOpening(t *testing.T) {
	const budget, disk = 64 << 20, 1 << 40
	for _, maxBytes := range []int64{0, budget} {
		mem := vfs.NewMem()
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: disk, TotalBytes: disk})
		left := int64(disk) * 2
		if maxBytes > 0 {
			left = maxBytes
		}
		d, err := OpenDir("store", DirOptions{
			FS: mem, MaxBytes: maxBytes, Left: func() int64 { return left }, Logger: slog.New(slog.DiscardHandler),
			Fail: func(err error) { t.Error(err) }, Failure: func() error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Take(); err != nil {
			t.Fatal(err)
		}
		available := func() uint64 {
			usage, err := d.FS().GetDiskUsage("store")
			if err != nil {
				t.Fatal(err)
			}
			return usage.AvailBytes
		}
		if n := available(); (n == 0) != (maxBytes > 0) {
			t.Errorf("budget %d: %d bytes are available before the store is measured", maxBytes, n)
		}
		d.Opened()
		if n := available(); n == 0 {
			t.Errorf("budget %d: nothing is available to an open store", maxBytes)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
