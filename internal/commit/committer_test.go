package commit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// pausing is a store that tests pause as one without room, and whose commits they fail.
type pausing struct {
	*store.Store
	mu      sync.Mutex
	room    chan struct{} // closed when there is room; nil: there is
	waited  chan struct{} // closed by the first WaitIngest, until which Health reports no pause; nil: it always does
	broken  error         // of WaitIngest
	refused error         // of Commit
}

func (p *pausing) Health() store.Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.Store.Health()
	h.Paused = p.room != nil && !isClosed(p.room) && (p.waited == nil || isClosed(p.waited))
	return h
}

func (p *pausing) Ingests() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room == nil && p.broken == nil && p.Store.Ingests()
}

func (p *pausing) WaitIngest(ctx context.Context) error {
	p.mu.Lock()
	room, broken := p.room, p.broken
	if p.waited != nil && !isClosed(p.waited) {
		close(p.waited)
	}
	p.mu.Unlock()
	if broken != nil {
		return broken
	}
	if room != nil {
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func (p *pausing) Commit(b *store.Batch) error {
	if p.refused != nil {
		return p.refused
	}
	return p.Store.Commit(b)
}

// loop is a rig whose committer runs.
type loop struct {
	*rig
	store *pausing
	s     *Feed
	stop  func() // the pipeline's context
	end   func() // no more changes come
	done  chan error
}

func newLoop(t *testing.T, store *pausing) *loop {
	t.Helper()
	l := &loop{rig: newRig(t, disk(), committest.PodWatch()), store: store, done: make(chan error, 1)}
	store.Store = l.rig.Store
	l.c.store = store
	l.s = l.feed(pods)
	l.s.Subscribed(nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended, end := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stop, l.end = stop, end
	go func() { l.done <- l.c.Run(ctx, ended) }()
	t.Cleanup(func() { stop(); end(); <-l.c.Done() })
	return l
}

func (l *loop) add(name, version string) {
	l.c.Handler(l.s).OnAdd(l.Object(name, "u", version), false)
}

// TestRun commits what handlers report; a flush returns when it is durable.
func TestRun(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{})
	l.add("a", "1")
	l.c.Flush()
	l.Expect("added a u 1")
	if l.c.LastTurn().IsZero() {
		t.Error("the loop has no last turn")
	}
	l.end()
	if err := <-l.done; err != nil {
		t.Error(err)
	}
	l.c.Flush() // returns although the committer has ended
	if err := l.c.AtBarrier(func(Barrier) { t.Error("called after the end") }); !errors.Is(err, ErrEnded) {
		t.Errorf("a barrier after the end: %v", err)
	}
	l.add("b", "2") // is dropped
}

// TestIngestPause takes nothing while the store has no room, but a flush, and acts at
// barriers all the same.
func TestIngestPause(t *testing.T) {
	t.Parallel()
	room := make(chan struct{})
	l := newLoop(t, &pausing{room: room})
	l.add("a", "1")
	reached := make(chan struct{})
	if err := l.c.AtBarrier(func(Barrier) { close(reached) }); err != nil {
		t.Fatal(err)
	}
	<-reached
	l.Expect()
	l.c.Flush()
	l.Expect("added a u 1")
	l.add("b", "2")
	close(room)
	l.c.Flush()
	l.Expect("added b u 2")
}

// TestPauseDuringAWait has the store without room when the committer waits already, as it does while compactions
// are behind. A barrier and a flush do not wait for room then either.
func TestPauseDuringAWait(t *testing.T) {
	t.Parallel()
	room := make(chan struct{})
	l := newLoop(t, &pausing{room: room, waited: make(chan struct{})})
	l.add("a", "1")
	<-l.store.waited
	reached := make(chan error, 1)
	go func() { reached <- l.c.AtBarrier(func(Barrier) {}) }()
	select {
	case err := <-reached:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the barrier waits for room")
	}
	l.Expect()
	l.c.Flush()
	l.Expect("added a u 1")
	close(room)
}

// counted is a job that is never over.
type counted struct{ steps chan struct{} }

func (j *counted) step(*group) (more bool, err error) {
	select {
	case j.steps <- struct{}{}:
	default: // there is a value
	}
	return true, nil
}

func (*counted) end() {}

// TestJobsWaitForRoom commits what a flush waits for without room, and nothing of a job.
func TestJobsWaitForRoom(t *testing.T) {
	t.Parallel()
	room := make(chan struct{})
	l := newLoop(t, &pausing{room: room})
	j := &counted{make(chan struct{}, 1)}
	if err := l.c.AtBarrier(func(b Barrier) { b.add(j) }); err != nil {
		t.Fatal(err)
	}
	l.add("a", "1")
	l.c.Flush()
	l.Expect("added a u 1")
	if len(j.steps) > 0 {
		t.Error("a part of the job was committed")
	}
	close(room)
	<-j.steps
}

// TestEndWhileIngestIsPaused ends the loop without what it has taken: that is read again.
func TestEndWhileIngestIsPaused(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{room: make(chan struct{})})
	l.add("a", "1")
	l.stop()
	if err := <-l.done; err != nil {
		t.Error(err)
	}
	l.Expect()
}

// TestWaitForRoomFails ends the loop with the store's error.
func TestWaitForRoomFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := newLoop(t, &pausing{broken: broken})
	l.add("a", "1")
	if err := <-l.done; !errors.Is(err, broken) || !errors.Is(err, ledger.ErrStore) {
		t.Errorf("the loop ends with %v", err)
	}
}

// TestCommitFails ends the loop, and acknowledges nothing.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	l := newLoop(t, &pausing{refused: refused})
	second := l.feed(pods)
	i := &informer{}
	second.Subscribed(i)
	l.c.Handler(second).OnAdd(l.Object("a", "u", "1").WithPosition(7), false)
	if err := <-l.done; !errors.Is(err, refused) || !errors.Is(err, ledger.ErrStore) {
		t.Errorf("the loop ends with %v", err)
	}
	if i.acked != 0 {
		t.Errorf("acknowledged up to %d", i.acked)
	}
}

// TestDrain commits what was handed over before the end, unless the store has no room.
func TestDrain(t *testing.T) {
	for name, paused := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			st := &pausing{Store: r.Store}
			if paused {
				st.room = make(chan struct{})
			}
			r.c.store = st
			s := r.feed(pods)
			for i := range 5 {
				r.c.changes <- r.now(addedTo(s, r.Object("a", "u", string(rune('1'+i)))))
			}
			r.group.touched[s] = struct{}{}
			if err := r.c.drain(r.group); err != nil {
				t.Fatal(err)
			}
			events := r.Events()
			if paused && len(events) > 0 || !paused && len(events) != 5 {
				t.Errorf("%d events", len(events))
			}
		})
	}
}

// TestSendAfterStop drops what a stopped feed's informer still reports.
func TestSendAfterStop(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{})
	l.add("a", "1")
	l.s.Stop()
	for range 20 { // there is room in the queue
		l.add("b", "2")
	}
	l.c.Synced(l.s)
	l.c.HistoryLost(l.s, dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback})
	l.c.Flush()
	l.Expect("added a u 1")
	if l.s.synced || l.s.epoch != 0 {
		t.Error("the stopped feed goes on")
	}
}

// TestHandlerOfDeletions reports a deletion that a comparison found as one, and takes objects alone.
func TestHandlerOfDeletions(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{})
	h := l.c.Handler(l.s)
	l.add("a", "1")
	h.OnUpdate(nil, "no object")
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: "no object"})
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: l.Object("a", "u", "1")})
	l.c.Flush()
	if e := l.Expect("added a u 1", "deleted a u 1")[1]; !e.FinalStateUnknown {
		t.Error("the deletion is reported as one that was seen")
	}
}

// TestNamespaceHandler forwards namespaces, and acknowledges them also if its informer is known later.
func TestNamespaceHandler(t *testing.T) {
	t.Parallel()
	l := newLoop(t, &pausing{})
	stopped := make(chan struct{})
	h := l.c.NamespaceHandler(stopped)
	h.OnAdd(l.namespace("1", "dev").WithPosition(3), false)
	i := &informer{}
	h.Subscribed(i)
	if i.acked != 3 {
		t.Errorf("acknowledged up to %d before the informer was known", i.acked)
	}
	h.OnUpdate(nil, l.namespace("2", "prod").WithPosition(5))
	h.OnAdd("no object", false)
	h.Synced()
	l.c.Flush()
	<-l.c.NamespacesKnown()
	if labels, known := l.c.NamespaceLabels("ns"); !known || labels["env"] != "prod" || i.acked != 5 {
		t.Errorf("labels %v, known: %t; acknowledged up to %d", labels, known, i.acked)
	}
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns", Obj: l.namespace("2", "prod").WithPosition(6)})
	l.c.Flush()
	if gone, _ := l.c.namespaces.get("ns"); gone.Gone.IsZero() || i.acked != 6 {
		t.Errorf("a deleted namespace is %+v; acknowledged up to %d", gone, i.acked)
	}
	close(stopped)
	h.OnAdd(l.namespace("7", "test").WithPosition(7), false)
	l.c.Flush()
}

// TestFirstList ends a first list through every branch of feedSynced.process and sweep.
func TestFirstList(t *testing.T) {
	for _, tc := range []struct {
		name   string
		with   func(r *rig, s *Feed)
		want   []string
		synced bool
	}{
		{name: "nothing to sweep", synced: true},
		{
			name: "deletions", synced: true, want: []string{"deleted gone u 1"},
			with: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("gone", "u", "1"))
				s.listed, s.first = map[uint64]struct{}{}, "5"
			},
		},
		{
			name: "recorded after the list", synced: true,
			with: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("new", "u", "9"))
				s.listed, s.first = map[uint64]struct{}{}, "5"
			},
		},
		{
			name: "a list without objects", synced: true, want: []string{"deleted gone u 1"},
			with: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("gone", "u", "1"))
				s.listed = map[uint64]struct{}{}
				s.Subscribed(&informer{checkpoints: map[uint64]string{0: "5"}})
			},
		},
		{
			name: "stopped",
			with: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("gone", "u", "1"))
				s.listed, s.first = map[uint64]struct{}{}, "5"
				s.Stop()
			},
		},
		{
			name: "history that cannot be read", synced: true, want: []string{"gap   "},
			with: func(_ *rig, s *Feed) { s.forgot = true },
		},
		{
			name: "deletions that cannot be read", synced: true, want: []string{"gap   "},
			with: func(r *rig, s *Feed) { r.damaged(s, "gone"); s.listed, s.first = map[uint64]struct{}{}, "5" },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.recordedForm = s.Form
			if tc.with != nil {
				tc.with(r, s)
			}
			r.commit(&feedSynced{feed: s})
			r.Expect(tc.want...)
			if s.synced != tc.synced || tc.synced && (s.listed != nil || s.forgot) {
				t.Errorf("synced %t, listed %v, forgot %t", s.synced, s.listed, s.forgot)
			}
		})
	}
}

// TestSnapshotStep ends and skips in every branch of snapshot.step.
func TestSnapshotStep(t *testing.T) {
	for _, tc := range []struct {
		name string
		with func(r *rig, s *Feed, j *snapshot)
		want []string
		err  error
	}{
		{name: "all", want: []string{"sync a u 1", "sync b u 2"}},
		{name: "delivered meanwhile", with: func(_ *rig, _ *Feed, j *snapshot) { j.delivered = map[string]struct{}{"ns/a": {}} }, want: []string{"sync b u 2"}},
		{name: "covered before", with: func(r *rig, s *Feed, j *snapshot) { w := s.Watches()[0]; j.was = &w }},
		{name: "from the cursor", with: func(_ *rig, _ *Feed, j *snapshot) { j.cursor = "ns/a" }, want: []string{"sync b u 2"}},
		{name: "the feed has stopped", with: func(_ *rig, s *Feed, _ *snapshot) { s.Stop() }, err: errNotWatched},
		{name: "the watch is gone", with: func(_ *rig, s *Feed, _ *snapshot) { s.watches.Store(&[]WatchRef{}) }, err: errNotWatched},
		{
			name: "the caller has given up", err: context.Canceled,
			with: func(_ *rig, _ *Feed, j *snapshot) { quit := make(chan struct{}); close(quit); j.quit = quit },
		},
		{name: "to a sink that no route leads to", with: func(_ *rig, _ *Feed, j *snapshot) { j.forSink("other") }},
		{
			name: "a state cannot be read", want: []string{"sync b u 2"},
			with: func(r *rig, s *Feed, _ *snapshot) { r.damaged(s, "a") },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.recordedForm = s.Form
			r.recorded(s, r.Object("a", "u", "1"))
			r.recorded(s, r.Object("b", "u", "2"))
			j := newSnapshot(s, s.Watches()[0])
			if tc.with != nil {
				tc.with(r, s, j)
			}
			Barrier{r.group}.add(j)
			r.commit()
			r.Expect(tc.want...)
			<-j.done
			if !errors.Is(j.err, tc.err) {
				t.Errorf("the snapshot ends with %v, want %v", j.err, tc.err)
			}
		})
	}
}

// TestGroupsOfLargeObjectsAreSmall: what waited for room comes in parts for which a small budget has room.
func TestGroupsOfLargeObjectsAreSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	s.Subscribed(nil)
	const objects = 100
	for i := range objects {
		o, err := r.Codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"p-%d","uid":"u","resourceVersion":"%d"},"spec":{"a":%q}}`, i, i+1, random(byte(i), 16<<10)), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.c.Handler(s).OnAdd(o, false)
	}
	r.Store.SetLimits(store.Limits{MaxBytes: 16 << 20})
	sizes := map[int]int{} // of groups
	for g := newGroup(r.c); len(r.c.changes) > 0; {
		r.c.fill(g)
		sizes[g.size()]++
		if err := g.commit(false); err != nil {
			t.Fatal(err)
		}
	}
	for size := range sizes {
		if size > 32 { // of 8 KiB once compressed, in the log and in the ledger
			t.Errorf("a group has %d of %d objects", size, objects)
		}
	}
}

// random is hexadecimal text of n bytes, which compression halves.
func random(seed byte, n int) string {
	b := make([]byte, n/2)
	r := rand.NewChaCha8([32]byte{seed})
	_, _ = r.Read(b) // never fails
	return hex.EncodeToString(b)
}

// TestJobsOnLargeObjectsAreInParts: a job adds no more bytes to a group than changes do.
func TestJobsOnLargeObjectsAreInParts(t *testing.T) {
	t.Parallel()
	const objects = 100
	for name, begin := range map[string]func(r *rig, s *Feed) job{
		"snapshot": func(_ *rig, s *Feed) job { return newSnapshot(s, s.Watches()[0]) },
		"farewell": func(r *rig, s *Feed) job { return &Farewell{feed: s, at: r.at, notify: make(chan struct{}, 1)} },
		"sweep": func(r *rig, s *Feed) job {
			s.listed, s.first = map[uint64]struct{}{}, "1000"
			return &sweep{feed: s, at: r.at}
		},
		"relabelled namespace": func(r *rig, s *Feed) job {
			w := committest.PodWatch(committest.ProdPods)
			s.watches.Store(&[]WatchRef{NewWatchRef(&w)})
			r.running = []*Feed{s}
			r.c.relabels["ns"] = &relabelling{Moves: []relabel{{After: map[string]string{"env": "prod"}, Known: true, Version: "7", At: r.at}}}
			return &reselection{namespace: "ns", begun: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, disk(), committest.PodWatch())
			s := r.feed(pods)
			s.recordedForm = s.Form
			for i := range objects {
				o, err := r.Codec.Encode(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"p-%03d","uid":"u","resourceVersion":"%d"},"spec":{"a":%q}}`, i, i+1, random(byte(i), 16<<10)), nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				r.recorded(s, o)
			}
			r.Store.SetLimits(store.Limits{MaxBytes: 16 << 20})
			Barrier{r.group}.add(begin(r, s))
			total := 0
			for i := 0; len(r.group.jobs) > 0 && i < 2*objects; i++ {
				if err := r.group.commit(true); err != nil {
					t.Fatal(err)
				}
				n := int(r.Store.LogStats().Records - int64(total))
				if total += n; n > 64 { // of 8 KiB once compressed
					t.Errorf("a group has %d of %d objects", n, objects)
				}
			}
			if total != objects {
				t.Errorf("%d of %d objects have come", total, objects)
			}
		})
	}
}
