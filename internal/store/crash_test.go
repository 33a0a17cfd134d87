package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/watcherd/watcherd/internal/store/inspect"
)

// facts are what the script was told, or asked for, up to some moment.
type facts struct {
	ensured  int             // sinks whose creation returned
	started  int             // commits begun
	acked    int             // commits that returned nil
	taken    map[string]bool // "sink/payload" acked or set aside, or about to be
	letters  map[string]bool // "sink/payload" about to be set aside
	replayed bool            // Replay returned
	deleted  bool            // retention was begun
}

// script drives a store through all it can do. Two commits are at one time, four minutes
// after those before, so that they are a segment of the log, whose headlines can be joined.
type script struct {
	fs vfs.FS

	mu sync.Mutex
	facts
}

func newScript(fs vfs.FS) *script {
	return &script{fs: fs, facts: facts{taken: map[string]bool{}, letters: map[string]bool{}}}
}

func (c *script) snapshot() facts {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.facts
	f.taken, f.letters = maps.Clone(f.taken), maps.Clone(f.letters)
	return f
}

func (c *script) note(f func(*facts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.facts)
}

const perCommit = 3

func payloadOf(commit, i int) string { return fmt.Sprintf("commit %d record %d", commit, i) }

func (c *script) commit(s *Store) error {
	j := c.snapshot().started + 1
	b := s.NewBatch()
	defer b.Discard()
	var block []byte
	for i := range perCommit {
		block = binary.BigEndian.AppendUint64(block, b.Append(Record{
			Time:    testEpoch.Add(time.Duration(j/2) * 4 * time.Minute),
			Payload: []byte(payloadOf(j, i)),
		}, []Route{{Sink: "a"}, {Sink: "b"}}))
	}
	b.PutHeadlines(block)
	b.PutState("objects", fmt.Sprint(j%4), fmt.Append(nil, j))
	b.PutMeta("checkpoint", fmt.Append(nil, j))
	c.note(func(f *facts) { f.started = j })
	if err := s.Commit(b); err != nil {
		return err
	}
	c.note(func(f *facts) { f.acked = j })
	return nil
}

func (c *script) take(q *Queue, set bool, items ...Item) error {
	for _, item := range items {
		c.note(func(f *facts) {
			f.taken[q.name+"/"+string(item.Payload)] = true
			if set {
				f.letters[q.name+"/"+string(item.Payload)] = true
			}
		})
		remove := func() error { return q.Ack(item.Position) }
		if set {
			remove = func() error { return q.DeadLetter(item.Position, Letter{Reason: "test", Time: testEpoch}) }
		}
		if err := remove(); err != nil {
			return err
		}
	}
	return nil
}

// run returns the first error. The store is opened twice, and closed at the end.
func (c *script) run() error {
	if err := c.open(c.steps); err != nil {
		return err
	}
	return c.open(c.moreSteps)
}

func (c *script) open(steps func(*Store) error) (err error) {
	s, err := Open("store", Options{firstSequence: 1, FS: c.fs})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotOpened, err)
	}
	defer func() { err = errors.Join(err, s.Close(), s.Err()) }()
	return steps(s)
}

var errNotOpened = errors.New("not opened")

// moreSteps follow when the store is opened again.
func (c *script) moreSteps(s *Store) error {
	q, err := s.EnsureSink("a", FromNow)
	if err != nil {
		return err
	}
	if err := c.commit(s); err != nil {
		return err
	}
	items, err := q.Read(0, 3, 1<<20)
	if err != nil {
		return err
	}
	if err := c.take(q, false, items...); err != nil {
		return err
	}
	return c.commit(s)
}

func (c *script) steps(s *Store) error {
	var queues []*Queue
	for _, name := range []string{"a", "b"} {
		q, err := s.EnsureSink(name, FromNow)
		if err != nil {
			return err
		}
		c.note(func(f *facts) { f.ensured++ })
		queues = append(queues, q)
	}
	a, b := queues[0], queues[1]
	commits := func(n int) error {
		for range n {
			if err := c.commit(s); err != nil {
				return err
			}
		}
		return nil
	}
	if err := commits(3); err != nil {
		return err
	}
	items, err := a.Read(0, 100, 1<<20)
	if err != nil {
		return err
	}
	if err := c.take(a, false, items[0], items[4], items[1]); err != nil {
		return err
	}
	if err := commits(1); err != nil {
		return err
	}
	if err := flush(s); err != nil {
		return err
	}
	if err := c.take(a, true, items[2], items[5]); err != nil {
		return err
	}
	if err := commits(1); err != nil {
		return err
	}
	if err := joinAll(s); err != nil {
		return err
	}
	if _, err := a.RetryDeadLetters(0, items[5].Position); err != nil {
		return err
	}
	if items, err = b.Read(0, 7, 1<<20); err != nil {
		return err
	}
	if err := c.take(b, false, items...); err != nil {
		return err
	}
	if _, err := s.Replay(context.Background(), "b", ReplayRange{FromSequence: 4, ToSequence: 6}, always(99)); err != nil {
		return err
	}
	c.note(func(f *facts) { f.replayed = true })
	if err := a.PutNote([]byte("note")); err != nil {
		return err
	}
	if err := commits(1); err != nil {
		return err
	}
	if items, err = a.Read(0, 7, 1<<20); err != nil {
		return err
	}
	if err := c.take(a, false, items...); err != nil {
		return err
	}
	c.note(func(f *facts) { f.deleted = true })
	if _, err := s.retain(testEpoch, Limits{}, 1<<30); err != nil {
		return err
	}
	// A full disk stops a compaction, not the store.
	if err := reclaim(s, 1, s.LogStats().First); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	if err := commits(2); err != nil {
		return err
	}
	return joinAll(s)
}

// joinAll joins the headlines of all segments that are complete, as Run does one by one.
func joinAll(s *Store) error {
	for range s.log.marks {
		if err := s.joinHeadlines(); err != nil {
			return err
		}
	}
	return s.syncLazy()
}

// verifyHeadlines wants the headlines of the records of the log, and no others.
func verifyHeadlines(t *testing.T, s *Store) {
	t.Helper()
	stats := s.LogStats()
	var want []uint64
	items, err := s.ReadLog(stats.First-1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		want = append(want, items[i].Sequence)
	}
	for range 2 {
		for _, newestFirst := range []bool{false, true} {
			got, _ := headlines(t, s, stats.First, stats.Last, newestFirst)
			if newestFirst {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the headlines are of %v, the records %v (newest first: %t)", got, want, newestFirst)
			}
		}
		s.log.joined = 0 // and joined again, they are the same
		if err := joinAll(s); err != nil {
			t.Fatal(err)
		}
	}
}

// flush rotates the write-ahead log and writes a table.
func flush(s *Store) error { return reclaim(s, 0, 0) }

// reclaim gives up when the store fails, as Run does.
func reclaim(s *Store, from, to uint64) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-s.Failed():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := s.reclaim(ctx, from, reclaimable{log: to})
	cancel()
	<-done
	return err
}

// verify opens the store and holds it against the facts.
func verify(t *testing.T, fs *vfs.MemFS, f facts) {
	t.Helper()
	s, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatalf("does not open: %v", err)
	}
	failed := true
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if failed {
			return
		}
		report, err := inspect.CheckFS(fs, "store")
		if err != nil || !report.OK() {
			t.Errorf("check: %v %v", err, report.Problems)
		}
	}()

	last := 0
	if v, ok, err := s.Meta("checkpoint"); err != nil {
		t.Fatal(err)
	} else if ok {
		last = number(t, v)
	}
	if last < f.acked || last > f.started {
		t.Fatalf("the last commit is %d; %d were acknowledged, %d begun", last, f.acked, f.started)
	}
	verifyState(t, s, last)
	verifyRecords(t, s, last, f)
	verifyHeadlines(t, s)
	if len(s.Sinks()) < f.ensured {
		t.Fatalf("sinks %v, %d were ensured", s.Sinks(), f.ensured)
	}
	for _, sink := range s.Sinks() {
		verifyQueue(t, s, sink, last, f)
	}
	failed = t.Failed()
	// And it works.
	b := s.NewBatch()
	b.PutMeta("after", nil)
	if err := s.Commit(b); err != nil {
		t.Errorf("commit after recovery: %v", err)
	}
}

func number(t *testing.T, v []byte) int {
	t.Helper()
	n, err := strconv.Atoi(string(v))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func verifyState(t *testing.T, s *Store, last int) {
	t.Helper()
	for k := range 4 {
		want := 0
		for j := 1; j <= last; j++ {
			if j%4 == k {
				want = j
			}
		}
		got := 0
		v, ok, err := s.State("objects", fmt.Sprint(k), nil)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			got = number(t, v)
		}
		if got != want {
			t.Errorf("ledger entry %d is %d, want %d: the last commit is %d", k, got, want, last)
		}
	}
}

// verifyRecords wants every record of every commit, but for a deleted beginning.
func verifyRecords(t *testing.T, s *Store, last int, f facts) {
	t.Helper()
	items, err := s.ReadLog(0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for j := 1; j <= last; j++ {
		for i := range perCommit {
			want = append(want, payloadOf(j, i))
		}
	}
	var got []string
	for _, item := range items {
		got = append(got, string(item.Payload))
	}
	if len(got) > len(want) || !slices.Equal(got, want[len(want)-len(got):]) {
		t.Fatalf("the log has %q", got)
	}
	if len(got) < len(want) && !f.deleted {
		t.Fatalf("the log begins with %q", got[0])
	}
}

func verifyQueue(t *testing.T, s *Store, sink string, last int, f facts) {
	t.Helper()
	q, err := s.Queue(sink)
	if err != nil {
		t.Fatal(err)
	}
	items, err := q.Read(0, 1000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); st.Length != int64(len(items)) {
		t.Errorf("queue %s: length %d, %d read", sink, st.Length, len(items))
	}
	there := make(map[string]int)
	replays := 0
	for _, item := range items {
		if item.Flags == 99 {
			replays++
			continue
		}
		there[string(item.Payload)]++
	}
	letters, err := q.DeadLetters(0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		if l.Reason != "test" || !f.letters[sink+"/"+string(l.Payload)] {
			t.Errorf("queue %s: unexpected dead letter %+v", sink, l)
		}
		there[string(l.Payload)]++
	}
	for j := 1; j <= last; j++ {
		for i := range perCommit {
			p := payloadOf(j, i)
			n := there[p]
			delete(there, p)
			taken, letter := f.taken[sink+"/"+p], f.letters[sink+"/"+p]
			if n > 1 || n == 0 && (!taken || letter && !f.deleted) {
				t.Errorf("queue %s: %q is there %d times (taken %v, letter %v)", sink, p, n, taken, letter)
			}
		}
	}
	if len(there) > 0 {
		t.Errorf("queue %s: entries of a commit that is not there: %v", sink, there)
	}
	if sink == "b" && f.replayed && replays != 3 {
		t.Errorf("%d replayed entries, want 3", replays)
	}
}

// TestCrashAtEveryWrite cuts the power before every operation that changes the
// filesystem, with none, some or all of the unsynced data surviving.
func TestCrashAtEveryWrite(t *testing.T) {
	type crash struct {
		op    errorfs.Op
		fs    *vfs.MemFS
		facts facts
	}
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	var crashes []crash
	rng := rand.New(rand.NewPCG(1, 2))
	var c *script
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, percent := range []int{0, 50, 100} {
			// The facts first: what is promised later may not be in the clone.
			f := c.snapshot()
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			// What was begun meanwhile may be in it.
			later := c.snapshot()
			f.started, f.taken, f.letters, f.deleted = later.started, later.taken, later.letters, later.deleted
			crashes = append(crashes, crash{op, clone, f})
		}
		return nil
	}))
	c = newScript(fs)
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if c.acked != 10 {
		t.Fatalf("%d commits", c.acked)
	}
	t.Logf("%d crash points", len(crashes))
	for i, crash := range crashes {
		if raceEnabled && i%7 != 0 {
			continue // all of them without -race
		}
		if ok := t.Run(fmt.Sprintf("%d", i), func(t *testing.T) { verify(t, crash.fs, crash.facts) }); !ok {
			t.Fatalf("crash %d before %v of %s: facts %+v", i, crash.op.Kind, crash.op.Path, crash.facts)
		}
	}
}

// TestErrorAtEveryOperation lets every operation that changes the filesystem fail in turn, once
// with an I/O error and once with a full disk, and every one that reads it, for want of file
// descriptors.
func TestErrorAtEveryOperation(t *testing.T) {
	for _, tc := range []struct {
		kind  errorfs.OpReadWrite
		errno syscall.Errno
	}{{errorfs.OpIsWrite, syscall.EIO}, {errorfs.OpIsWrite, syscall.ENOSPC}, {errorfs.OpIsRead, syscall.EMFILE}} {
		t.Run(tc.errno.Error(), func(t *testing.T) {
			failures := 0
			step := 1
			if raceEnabled {
				step = 7 // all of them without -race
			}
			for i := 0; ; i += step {
				mem := vfs.NewCrashableMem()
				var mu sync.Mutex
				n, hit := 0, errorfs.Op{}
				fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind.ReadOrWrite() != tc.kind {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					n++
					if n-1 != i {
						return nil
					}
					hit = op
					return tc.errno
				}))
				c := newScript(fs)
				err := c.run()
				mu.Lock()
				reached := n > i
				mu.Unlock()
				if err != nil {
					failures++
				}
				// An open store says that it failed, or what it cannot read; one that does not
				// open is not called damaged.
				unread := tc.kind == errorfs.OpIsRead && errors.Is(err, tc.errno) && !errors.Is(err, ErrDamaged)
				if err != nil && !unread && !errors.Is(err, ErrFailed) && (!errors.Is(err, errNotOpened) || errors.Is(err, ErrDamaged)) {
					t.Errorf("error at %v of %s: %v", hit.Kind, hit.Path, err)
				}
				lost := mem.CrashClone(vfs.CrashCloneCfg{})
				if !t.Run(fmt.Sprintf("%d/process", i), func(t *testing.T) { verify(t, mem, c.snapshot()) }) ||
					!t.Run(fmt.Sprintf("%d/power", i), func(t *testing.T) { verify(t, lost, c.snapshot()) }) {
					t.Fatalf("error at %d, %v of %s: %v; facts %+v", i, hit.Kind, hit.Path, err, c.snapshot())
				}
				if !reached {
					t.Logf("%d operations, %d runs failed", i, failures)
					break
				}
			}
		})
	}
}
