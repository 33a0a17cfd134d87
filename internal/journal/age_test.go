package journal

import (
	"testing"
	"time"
	"unsafe"
)

// TestAge: a writer is as old as the clock says that has moved more. The monotonic one stands while a machine is suspended, and the
// wall clock can be set back.
func TestAge(t *testing.T) {
	const hour = 3600
	for name, tc := range map[string]struct {
		elapsed time.Duration
		wall    int64 // seconds by which the wall clock was set meanwhile
		old     bool
	}{
		"a moment":              {},
		"an hour":               {hour * time.Second, 0, true},
		"suspended":             {0, hour, true},
		"set back":              {0, -hour, false},
		"an hour, and set back": {hour * time.Second, -hour, true},
	} {
		sent := time.Now().Add(-tc.elapsed)
		// The wall clock of a time.Time with a monotonic reading has its seconds above 30 bits of nanoseconds.
		*(*uint64)(unsafe.Pointer(&sent)) -= uint64(tc.wall << 30) // there is no other way to set the clocks of a test apart
		var w Writer
		w.proof.Store(&sent)
		if age := w.Age(); age < 0 || age > hour*time.Second/2 != tc.old {
			t.Errorf("%s: %v", name, age)
		}
	}
}
