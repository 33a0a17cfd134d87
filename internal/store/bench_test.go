package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
)

func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.TempDir(), Options{firstSequence: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// noise is bytes that do not compress, as payloads are compressed already.
var noise = testkit.Noise

// BenchmarkCommit commits groups of events with 1 KB of log and 0.5 KB of
// ledger each, fsync included, routed to one sink, over 20,000 objects.
func BenchmarkCommit(b *testing.B) {
	for _, group := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(group), func(b *testing.B) {
			s := benchStore(b)
			if _, err := s.EnsureSink("a", FromNow); err != nil {
				b.Fatal(err)
			}
			payload, state := noise(1<<10), noise(512)
			routes := []Route{{Sink: "a"}}
			keys := make([]string, 20000)
			for i := range keys {
				keys[i] = fmt.Sprintf("namespace-%d/object-%d", i%50, i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			n := 0
			for b.Loop() {
				batch := s.NewBatch()
				for range group {
					batch.Append(Record{Time: time.Now(), Payload: payload}, routes)
					batch.PutState("pods", keys[n*7919%len(keys)], state)
					n++
				}
				if err := s.Commit(batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkState(b *testing.B) {
	s := benchStore(b)
	state := noise(512)
	const objects = 50000
	keys := make([]string, objects)
	for i := 0; i < objects; i += 500 {
		batch := s.NewBatch()
		for j := i; j < i+500; j++ {
			keys[j] = fmt.Sprintf("namespace-%d/object-%d", j%50, j)
			batch.PutState("pods", keys[j], state)
		}
		if err := s.Commit(batch); err != nil {
			b.Fatal(err)
		}
	}
	var buf []byte
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	for b.Loop() {
		var ok bool
		var err error
		if buf, ok, err = s.State("pods", keys[n*7919%objects], buf[:0]); !ok || err != nil {
			b.Fatal(ok, err)
		}
		n++
	}
}

// BenchmarkReadAck reads batches of 100 from a backlog and acknowledges them.
func BenchmarkReadAck(b *testing.B) {
	s := benchStore(b)
	q, err := s.EnsureSink("a", FromNow)
	if err != nil {
		b.Fatal(err)
	}
	payload := noise(1 << 10)
	fill := func(n int) {
		for range n / 500 {
			batch := s.NewBatch()
			for range 500 {
				batch.Append(Record{Time: time.Now(), Payload: payload}, []Route{{Sink: "a"}})
			}
			if err := s.Commit(batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	positions := make([]uint64, 0, 100)
	b.ReportAllocs()
	after, n := uint64(0), 0
	for b.Loop() {
		if q.Stats().Length < 100 {
			b.StopTimer()
			fill(50000)
			b.StartTimer()
		}
		items, err := q.Read(after, 100, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		positions = positions[:0]
		for i := range items {
			positions = append(positions, items[i].Position)
		}
		after = positions[len(positions)-1]
		if err := q.Ack(positions...); err != nil {
			b.Fatal(err)
		}
		n += len(items)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
