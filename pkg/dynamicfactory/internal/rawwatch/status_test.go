package rawwatch

import (
	"testing"
	"time"
	"unsafe"
)

// An event that is read after the machine was suspended may have waited since then: the monotonic clock
// stood still meanwhile.
func TestEventAfterASuspension(t *testing.T) {
	before := time.Now()
	const second = 1 << 30                                                        // of the wall clock within a time with both
	*(*uint64)(unsafe.Pointer(&before)) -= uint64(time.Hour/time.Second) * second // nothing else sets one clock alone
	if now := time.Now(); now.Sub(before) > time.Minute || now.Round(0).Sub(before.Round(0)) < time.Hour {
		t.Fatalf("from %v to %v", before, now)
	}
	s := &stats{heard: before, known: before}
	if got := s.received(nil); !got.Equal(before) {
		t.Errorf("nothing is missing up to %v, want %v", got, before)
	}
}
