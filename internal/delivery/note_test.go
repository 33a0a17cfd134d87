package delivery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// countedNotes counts the bytes of notes.
type countedNotes struct {
	*store.Queue
	bytes int
}

func (q *countedNotes) PutNote(b []byte) error {
	q.bytes += len(b)
	return q.Queue.PutNote(b)
}

// TestLongNote: the schedule of many failing objects, which changes all the time, is written about as much as that of few.
func TestLongNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		s.add(numbered(1, upTo(3000)...)...)
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			failed := map[int]error{}
			for i, c := range batch {
				if c.Object%2 == 0 {
					failed[i] = errors.New("503")
				}
			}
			return &sinks.BatchError{Failed: failed}
		})
		q := &countedNotes{Queue: s.queue}
		w := start(t, s, r, func(cfg *Config) { cfg.Queue, cfg.Delivery.MaxEvents = q, 50 })
		defer w.stop()
		for i := range 600 {
			time.Sleep(time.Second)
			s.add(numbered(1, 30_001+2*i)...)
		}
		if failing := w.Status().FailingObjects; failing < noteEvents {
			t.Fatalf("%d objects fail", failing)
		}
		if most := 600 * 2 * notePart; q.bytes > most {
			t.Errorf("%d bytes of notes in ten minutes, want at most %d", q.bytes, most)
		}
	})
}
