package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/store"
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

// BenchmarkBacklogBehindFailures delivers a backlog of 1 KiB events that stand
// behind a failed event of their object each, as after a long outage: 50,000 events
// at a time, read before the outage ends.
func BenchmarkBacklogBehindFailures(b *testing.B) {
	for _, objects := range []int{1, 500, 5000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			const most = 50_000
			for left := b.N; left > 0; left -= most {
				deliverAfterFailures(b, min(left, most), objects)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// flaky fails all events of a batch but the first until it is mended.
type flaky struct {
	lines

	mended atomic.Bool
}

func (f *flaky) Write(ctx context.Context, batch []*event.Event) error {
	if f.mended.Load() {
		return f.lines.Write(ctx, batch)
	}
	if len(batch) == 1 {
		return errors.New("500")
	}
	failed := map[int]error{}
	for i := range batch[1:] {
		failed[i+1] = errors.New("500")
	}
	return &sinks.BatchError{Failed: failed}
}

func deliverAfterFailures(b *testing.B, events, objects int) {
	b.Helper()
	b.StopTimer()
	st, err := store.Open(filepath.Join(b.TempDir(), "store"), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	queue, err := st.EnsureSink(sinkName, store.FromNow)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, st, events, objects)
	f, err := os.Create(filepath.Join(b.TempDir(), "events.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	sink := &flaky{lines: lines{f: f}}
	w := New(Config{
		Name: sinkName, Queue: queue, Delivery: sinks.Delivery{MaxEvents: 500},
		Retry:  Retry{Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond},
		Open:   func(context.Context) (sinks.Sink, error) { return sink, nil },
		Decode: decodeBench,
	})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	eventually(b, "nearly everything stands behind a failed event", func() bool {
		st := w.Status()
		return 20*st.Blocked >= 19*int(st.Queue.Length)
	})
	b.StartTimer()
	sink.mended.Store(true)
	w.Resume()
	eventually(b, "the backlog is delivered", func() bool { return queue.Stats().Length == 0 })
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func deliverBacklog(b *testing.B, d sinks.Delivery, objects int, sync bool) {
	b.Helper()
	st, err := store.Open(filepath.Join(b.TempDir(), "store"), store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	queue, err := st.EnsureSink(sinkName, store.FromNow)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, st, b.N, objects)
	f, err := os.Create(filepath.Join(b.TempDir(), "events.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	w := New(Config{
		Name: sinkName, Queue: queue, Delivery: d,
		Open:   func(context.Context) (sinks.Sink, error) { return &lines{f: f, sync: sync}, nil },
		Decode: decodeBench,
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

func decodeBench(item store.Item) (*event.Event, error) {
	return &event.Event{
		ID: "0123456789abcdef0123456789abcdef", Type: event.Updated, Time: item.Time, Sequence: item.Sequence, Cluster: "bench",
		Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespace: "default", Name: "a-pod", UID: "a-uid",
		Object: item.Payload,
	}, nil
}

// fill commits events of that many objects, in turns.
func fill(b *testing.B, st *store.Store, events, objects int) {
	b.Helper()
	payload := bytes.Repeat([]byte("x"), 1024)
	for n := 0; n < events; {
		batch := st.NewBatch()
		for end := min(n+1000, events); n < end; n++ {
			batch.Append(store.Record{Lane: uint64(n % objects), Payload: payload}, []store.Route{{Sink: sinkName}})
		}
		if err := st.Commit(batch); err != nil {
			b.Fatal(err)
		}
	}
}
