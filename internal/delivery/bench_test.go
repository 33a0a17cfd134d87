package delivery

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// lines is a sink that appends a line an event to a file: one write a batch, and
// one fsync if asked for.
type lines struct {
	f    *os.File
	sync bool
	buf  []byte
}

func (l *lines) Write(_ context.Context, batch []*event.Event) error {
	l.buf = l.buf[:0]
	for _, e := range batch {
		l.buf = append(event.AppendCloudEvent(l.buf, e), '\n')
	}
	if _, err := l.f.Write(l.buf); err != nil || !l.sync {
		return err
	}
	return l.f.Sync()
}

func (l *lines) Close(context.Context) error { return l.f.Close() }

// BenchmarkBacklog delivers a backlog of 1 KiB events of 5,000 objects from a
// store on disk to a file.
func BenchmarkBacklog(b *testing.B) {
	for _, d := range []sinks.Delivery{
		{MaxEvents: 500, Concurrency: 1},
		{MaxEvents: 100, Concurrency: 4},
		{MaxEvents: 1, Concurrency: 1},
	} {
		b.Run(fmt.Sprintf("batch=%d,lanes=%d", d.MaxEvents, d.Concurrency), func(b *testing.B) {
			deliverBacklog(b, d, 5000, false)
		})
	}
}

// BenchmarkHotObject delivers a backlog of 1 KiB events of one object to a file
// that is synced after each write.
func BenchmarkHotObject(b *testing.B) {
	deliverBacklog(b, sinks.Delivery{MaxEvents: 500}, 1, true)
}

func deliverBacklog(b *testing.B, d sinks.Delivery, objects int, sync bool) {
	b.Helper()
	store, err := outbox.Open(filepath.Join(b.TempDir(), "store"), outbox.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	queue, err := store.EnsureSink(sinkName, outbox.FromNow)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, store, objects)
	f, err := os.Create(filepath.Join(b.TempDir(), "events.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	w := New(Config{
		Name: sinkName, Queue: queue, Delivery: d,
		Open: func(context.Context) (sinks.Sink, error) { return &lines{f: f, sync: sync}, nil },
		Decode: func(item outbox.Item) (*event.Event, error) {
			return &event.Event{
				ID: "0123456789abcdef0123456789abcdef", Type: event.Updated, Time: item.Time, Sequence: item.Sequence, Cluster: "bench",
				Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "default", Name: "a-pod", UID: "a-uid",
				Object: item.Payload,
			}, nil
		},
	})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	b.ReportAllocs()
	b.ResetTimer()
	go func() { done <- w.Run(ctx) }()
	eventually(b, "the backlog is delivered", func() bool { return queue.Stats().Length == 0 })
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// fill commits b.N events of that many objects, in turns.
func fill(b *testing.B, store *outbox.Store, objects int) {
	b.Helper()
	payload := bytes.Repeat([]byte("x"), 1024)
	for n := 0; n < b.N; {
		batch := store.NewBatch()
		for end := min(n+1000, b.N); n < end; n++ {
			batch.Append(outbox.Record{Lane: uint64(n % objects), Payload: payload}, []outbox.Route{{Sink: sinkName}})
		}
		if err := store.Commit(batch); err != nil {
			b.Fatal(err)
		}
	}
}
