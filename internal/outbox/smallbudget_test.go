package outbox

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestSmallestBudget fills and drains a store whose budget is hardly more than
// the engine's own buffers, several times over. Each time ingest goes on again.
func TestSmallestBudget(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{MaxBytes: 16 << 20})
	running(t, s)
	q := ensure(t, s, "a")
	payload := noise(4 << 10)
	after := uint64(0)
	for round := range 5 {
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			err := s.WaitIngest(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			b := s.NewBatch()
			for range 16 {
				b.Append(Record{Time: time.Now(), Payload: payload}, []Route{{Sink: "a"}})
			}
			if err := s.Commit(b); err != nil {
				t.Fatal(err)
			}
		}
		for q.Stats().Length > 0 {
			var positions []uint64
			for _, item := range read(t, q, after, 1000) {
				positions = append(positions, item.Position)
			}
			after = positions[len(positions)-1]
			if err := q.Ack(positions...); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := s.WaitIngest(ctx)
		cancel()
		if err != nil {
			t.Fatalf("round %d: everything is delivered and ingest still waits: %v, %+v", round, err, s.Health())
		}
	}
}
