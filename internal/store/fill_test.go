package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestFillKnowsItsRoom fills a queue with payloads that are much larger than the records, while there is room:
// the selector is asked again before they are more than a batch.
func TestFillKnowsItsRoom(t *testing.T) {
	const budget, payload = 16 << 20, 64 << 10
	s := openTest(t, "store", Options{FS: vfs.NewMem(), MaxBytes: budget})
	appendN(t, s, 1000)
	if _, err := s.EnsureSink("a", FromLogStart); err != nil {
		t.Fatal(err)
	}
	large := noise(payload)
	n, err := s.Fill(t.Context(), "a", func(*Item) (sel Selected, ok bool, err error) {
		if !s.Health().Paused {
			sel.Payload = large
		}
		return sel, true, nil
	})
	if err != nil || n != 1000 {
		t.Fatalf("%d entries, error %v", n, err)
	}
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	if got, most := q.Stats().Bytes, s.limits().pauseBytes()+int64(s.BatchBytes())+payload; got > most {
		t.Errorf("%d bytes are queued, want at most %d", got, most)
	}
}
