package heap

import (
	"runtime"
	"sync"
	"testing"
)

// TestRead keeps the names of the metrics honest: an unknown one panics.
func TestRead(t *testing.T) {
	before := read()
	garbage := make([]byte, 32<<20)
	runtime.KeepAlive(garbage)
	after := read()
	if after.allocated < before.allocated+32<<20 || after.resident == 0 {
		t.Errorf("heap before %+v and after 32 MiB %+v", before, after)
	}
	if got := (state{resident: 100, live: 30}).excess(); got != 70 {
		t.Errorf("excess %d, want 70", got)
	}
	if got := (state{resident: 100, live: 130}).excess(); got != 0 {
		t.Errorf("excess %d of a heap that shrank, want 0", got)
	}
}

// TestPace: a small heap may double, a large one grow by about a half.
func TestPace(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 8 << 20: 100, 64 << 20: 100, 128 << 20: 70, 1 << 30: 50, 1 << 40: 50} {
		if got := (state{live: live}).pace(); got != want {
			t.Errorf("pace of %d MiB in use: %d %%, want %d", live>>20, got, want)
		}
	}
}

// TestTrim: what waits in a pool to be used again is freed.
func TestTrim(t *testing.T) {
	var pool sync.Pool
	pool.Put(new([1 << 20]byte))
	trim()
	if pool.Get() != nil {
		t.Error("the pool has kept its content")
	}
}
