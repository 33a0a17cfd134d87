package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestMain(m *testing.M) {
	// Fewer random scenarios than rapid's hundred by default; -rapid.checks
	// asks for more.
	if err := flag.Set("rapid.checks", "40"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// change is what the tests store: the n-th change of an object.
type change struct {
	Object int    `json:"object"`
	N      int    `json:"n"`
	Pad    string `json:"pad,omitempty"`
	Bad    bool   `json:"bad,omitempty"` // cannot be decoded
}

func (c change) String() string { return fmt.Sprintf("%d/%d", c.Object, c.N) }

// changeOf is the inverse of decodeChange.
func changeOf(t testing.TB, e *event.Event) change {
	t.Helper()
	var c change
	if err := json.Unmarshal(e.Object, &c); err != nil {
		t.Errorf("event without a change: %v", err)
	}
	return c
}

func decodeChange(item store.Item) (*event.Event, error) {
	var c change
	if err := json.Unmarshal(item.Payload, &c); err != nil {
		return nil, err
	}
	if c.Bad {
		return nil, errors.New("no such dictionary")
	}
	return &event.Event{
		ID:       c.String(),
		Type:     event.Updated,
		Time:     item.Time,
		Sequence: item.Sequence,
		Cluster:  "test",
		Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Name:     fmt.Sprint(c.Object),
		UID:      fmt.Sprint(c.Object),
		Object:   item.Payload,
	}, nil
}

// storage is a store in memory with one sink's queue.
type storage struct {
	t     testing.TB
	fs    vfs.FS
	store *store.Store
	queue *store.Queue
}

const sinkName = "ops"

func newStorage(t testing.TB) *storage {
	t.Helper()
	s := &storage{t: t, fs: vfs.NewMem()}
	s.open()
	return s
}

// now is the clock of the store, which refuses the year in which bubbles begin.
func now() time.Time { return time.Now().AddDate(30, 0, 0) }

func (s *storage) open() {
	s.t.Helper()
	st, err := store.Open("store", store.Options{FS: s.fs, Now: now})
	if err != nil {
		s.t.Fatal(err)
	}
	s.store = st
	if s.queue, err = st.EnsureSink(sinkName, store.FromNow); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storage) close() {
	s.t.Helper()
	if err := s.store.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *storage) add(changes ...change) {
	s.t.Helper()
	b := s.store.NewBatch()
	defer b.Discard()
	for _, c := range changes {
		payload, err := json.Marshal(c)
		if err != nil {
			s.t.Fatal(err)
		}
		b.Append(store.Record{Time: time.Now(), Lane: uint64(c.Object), Payload: payload}, []store.Route{{Sink: sinkName}})
	}
	if err := s.store.Commit(b); err != nil {
		s.t.Fatal(err)
	}
}

// letters returns the dead letters, oldest first.
func (s *storage) letters() []store.DeadLetter {
	s.t.Helper()
	letters, err := s.queue.DeadLetters(0, 1<<20)
	if err != nil {
		s.t.Fatal(err)
	}
	return letters
}

// receiver is a sink that checks what the contract promises a sink, and keeps
// what it accepted. Each Write is answered by answer, which is called without
// the lock held; nil means that everything is accepted.
type receiver struct {
	t      testing.TB
	answer func(ctx context.Context, batch []change) error
	limits sinks.Limits

	mu       sync.Mutex
	flying   map[int]bool // guarded by mu; objects in a Write now
	accepted []change     // guarded by mu
	writes   []write      // guarded by mu
	events   []*event.Event
	peak     int // guarded by mu; most Writes at once
	now      int // guarded by mu; Writes at once
	opened   int
	closed   int
}

type write struct {
	at    time.Time
	batch []change
	err   error
}

func newReceiver(t testing.TB, answer func(context.Context, []change) error) *receiver {
	return &receiver{t: t, answer: answer, flying: map[int]bool{}}
}

func (r *receiver) Limits() sinks.Limits {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limits
}

func (r *receiver) Write(ctx context.Context, batch []*event.Event) error {
	if len(batch) == 1 && batch[0].Type == event.Heartbeat && batch[0].Object == nil {
		return nil
	}
	changes := make([]change, len(batch))
	for i, e := range batch {
		changes[i] = changeOf(r.t, e)
	}
	r.begin(changes)
	var err error
	defer func() { r.end(batch, changes, err) }()
	err = errors.New("panicked")
	err = r.answer(ctx, changes)
	return err
}

func (r *receiver) begin(changes []change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(changes) == 0 {
		r.t.Error("a Write without events")
	}
	if r.limits.MaxBatch > 0 && len(changes) > r.limits.MaxBatch {
		r.t.Errorf("a Write of %d events; the sink takes %d", len(changes), r.limits.MaxBatch)
	}
	for _, c := range changes {
		if r.flying[c.Object] {
			r.t.Errorf("%v was written while another event of its object was in flight", c)
		}
	}
	for _, c := range changes {
		r.flying[c.Object] = true
	}
	r.now++
	r.peak = max(r.peak, r.now)
}

func (r *receiver) end(batch []*event.Event, changes []change, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now--
	var named *sinks.BatchError
	partly := errors.As(err, &named)
	for i, c := range changes {
		delete(r.flying, c.Object)
		if err == nil || partly && named.Failed[i] == nil {
			r.accepted = append(r.accepted, c)
			r.events = append(r.events, batch[i])
		}
	}
	r.writes = append(r.writes, write{at: time.Now(), batch: changes, err: err})
}

func (r *receiver) Close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
	if r.now > 0 {
		r.t.Error("Close during a Write")
	}
	return nil
}

// open is for Config.Open.
func (r *receiver) open(context.Context) (sinks.Sink, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened++
	return r, nil
}

func (r *receiver) got() []change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.accepted)
}

func (r *receiver) log() []write {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// checkOrder reports events of one object that were accepted out of order or
// more than once.
func (r *receiver) checkOrder() {
	r.t.Helper()
	last := map[int]int{}
	for _, c := range r.got() {
		if before, seen := last[c.Object]; seen && c.N <= before {
			r.t.Errorf("object %d: change %d was accepted after change %d", c.Object, c.N, before)
		}
		last[c.Object] = c.N
	}
}

// accept is an answer.
func accept(context.Context, []change) error { return nil }

// running is a worker with its goroutine.
type running struct {
	*Worker
	t        testing.TB
	cancel   context.CancelFunc
	done     chan error
	registry *prometheus.Registry
}

// start runs a worker over s and r until the test stops it. tune may change the
// configuration.
func start(t testing.TB, s *storage, r *receiver, tune func(*Config)) *running {
	t.Helper()
	registry := prometheus.NewRegistry()
	cfg := Config{
		Name:       sinkName,
		Queue:      s.queue,
		Open:       r.open,
		Decode:     decodeChange,
		Logger:     slog.New(slog.NewTextHandler(t.Output(), nil)),
		Registerer: registry,
	}
	if tune != nil {
		tune(&cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &running{Worker: New(cfg), t: t, cancel: cancel, done: make(chan error, 1), registry: registry}
	go func() { w.done <- w.Run(ctx) }()
	return w
}

// stopsAfter ends the worker, whose sink hangs; its Run must return nil after just so long, in a bubble.
func (w *running) stopsAfter(want time.Duration) {
	w.t.Helper()
	begin := time.Now()
	w.cancel()
	select {
	case err := <-w.done:
		if err != nil {
			w.t.Error(err)
		}
	case <-time.After(time.Minute):
		w.t.Fatal("the worker waits for the sink for good")
	}
	if took := time.Since(begin); took != want {
		w.t.Errorf("stopping took %v, want %v", took, want)
	}
}

// stop ends the worker; its Run must return nil.
func (w *running) stop() {
	w.t.Helper()
	w.cancel()
	if err := <-w.done; err != nil {
		w.t.Errorf("Run: %v", err)
	}
	if got := w.Status().State; got != Stopped {
		w.t.Errorf("state after Run: %s", got)
	}
}

// eventually waits until a condition holds, outside of synctest.
var eventually = waittest.Until

// numbered returns the changes 1 to n of each of these objects, in turns.
func numbered(n int, objects ...int) []change {
	var cs []change
	for i := range n {
		for _, o := range objects {
			cs = append(cs, change{Object: o, N: i + 1})
		}
	}
	return cs
}

func upTo(n int) []int {
	objects := make([]int, n)
	for i := range objects {
		objects[i] = i
	}
	return objects
}
