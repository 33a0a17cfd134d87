package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

const (
	// maxGroup bounds how many changes share a commit, and with the size of
	// objects how much memory a group takes.
	maxGroup = 512

	// checkpointInterval is how often an idle source's checkpoint is written.
	// Bookmarks come about once a minute.
	checkpointInterval = 10 * time.Second
)

// commitLoop takes changes until none can come any more: it ends when ended is done
// and the queue is empty, or with the store's error. It is the only writer of
// ledger, log and checkpoints.
//
// While the store is full it takes nothing, which slows the watches, except for a
// barrier of the owner. If ctx, the pipeline's, ends then, so does the loop: what was
// not committed is read again after the next start.
func (m *Manager) commitLoop(ctx, ended context.Context) error {
	defer close(m.committerDone)
	tick := time.NewTicker(checkpointInterval)
	defer tick.Stop()
	g := newGroup(m)
	for {
		m.beat.Store(time.Now().UnixNano())
		if len(g.jobs) == 0 {
			select {
			case c := <-m.changes:
				g.add(c)
			case st := <-m.steps:
				st.run(g)
				continue
			case <-tick.C:
				g.touchAll(m.sourceList())
			case <-ended.Done():
				return m.drain(g)
			}
		} else {
			select {
			case st := <-m.steps:
				st.run(g)
			case <-tick.C:
				g.touchAll(m.sourceList())
			case <-ended.Done():
				g.jobs = nil // they are begun again with the next start
				return m.drain(g)
			default:
			}
		}
		m.fill(g)
		forced, err := m.waitIngest(ctx, g)
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("%w: %w", ErrStore, err)
		case err != nil && m.store.Health().Paused:
			m.log.Warn("stopping while the store is full: the last changes are read again after the next start", "changes", g.size())
			return nil
		}
		if err := g.commit(!forced); err != nil {
			return err
		}
	}
}

// waitIngest returns when the store takes more, or with forced if the owner waits
// for a barrier. What is done between two commits does not wait.
func (m *Manager) waitIngest(ctx context.Context, g *group) (forced bool, err error) {
	if !m.store.Health().Paused {
		return false, m.store.WaitIngest(ctx)
	}
	wait, cancel := context.WithCancel(ctx)
	room := make(chan error, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() { room <- m.store.WaitIngest(wait) })
	defer waiting.Wait()
	defer cancel()
	for {
		select {
		case err := <-room:
			return false, err
		case <-m.hurry:
			return true, nil
		case st := <-m.steps:
			st.run(g)
		}
	}
}

// fill adds what is waiting, without blocking, up to the group's limit.
func (m *Manager) fill(g *group) {
	for g.size() < maxGroup {
		select {
		case c := <-m.changes:
			g.add(c)
		default:
			return
		}
	}
}

// drain commits what the informers handed over before they stopped. A store that
// is over its budget is given no more: those changes are read again.
func (m *Manager) drain(g *group) error {
	for {
		m.fill(g)
		if g.size() == 0 && !g.dirty() {
			return nil
		}
		if m.store.Health().Paused {
			m.log.Warn("stopping while the store is full: the last changes are read again after the next start", "changes", g.size())
			return nil
		}
		if err := g.commit(false); err != nil {
			return err
		}
	}
}

// group is one commit in the making.
type group struct {
	m       *Manager
	changes []change
	touched map[*source]struct{} // sources whose checkpoint may have moved
	waiters []chan<- struct{}

	jobs     []job // work of many objects, in turns; they outlive the group
	finished []job // those that end with this group

	overlay map[stateID]*compact.Object // the ledger as this group will leave it; nil: deleted
	batch   *outbox.Batch
	events  map[event.Type]int

	// Scratch, reused between changes.
	targets []route.Target
	routes  []outbox.Route
	stored  []record.Target
	buf     []byte
}

// stateID is an object's place in the ledger.
type stateID struct{ partition, key string }

func newGroup(m *Manager) *group {
	return &group{m: m, touched: map[*source]struct{}{}, overlay: map[stateID]*compact.Object{}, events: map[event.Type]int{}}
}

func (g *group) size() int   { return len(g.changes) }
func (g *group) dirty() bool { return len(g.touched) > 0 }

func (g *group) add(c change) { g.changes = append(g.changes, c) }

func (g *group) touchAll(sources []*source) {
	g.m.quiet.log(g.m.log)
	for _, s := range sources {
		if s.begun.Load() {
			g.touched[s] = struct{}{}
		}
	}
}

// job is work of many objects. The committer does a part of it with each group, so
// that other changes pass and no commit is large.
type job interface {
	// step adds a part to the group, and reports whether more is left.
	step(g *group) (more bool, err error)
	// end is called once the last part is durable.
	end()
}

// commit turns the collected changes, and a part of the next job if there is one and
// work is set, into one atomic batch, makes it durable, and only then opens the
// informers' windows. Afterwards the group is empty.
func (g *group) commit(work bool) error {
	g.batch = g.m.store.NewBatch()
	defer g.batch.Discard()
	for i := range g.changes {
		if err := g.process(&g.changes[i]); err != nil {
			return err
		}
	}
	if work {
		if err := g.work(); err != nil {
			return err
		}
	}
	if err := g.putCheckpoints(); err != nil {
		return err
	}
	if err := g.m.store.Commit(g.batch); err != nil {
		return fmt.Errorf("%w: commit %d changes: %w", ErrStore, len(g.changes), err)
	}
	for s := range g.touched {
		if sub := s.sub.Load(); sub != nil {
			sub.Ack(s.position)
		}
		complete := s.saved.ResourceVersion
		s.complete.Store(&complete)
	}
	g.m.metrics.committed(g.events)
	for _, j := range g.finished {
		j.end()
	}
	for _, w := range g.waiters {
		close(w)
	}
	clear(g.changes)
	g.changes = g.changes[:0]
	clear(g.finished)
	g.finished = g.finished[:0]
	g.waiters = g.waiters[:0]
	clear(g.touched)
	clear(g.overlay)
	clear(g.events)
	return nil
}

// work does a part of the next job.
func (g *group) work() error {
	if len(g.jobs) == 0 {
		return nil
	}
	j := g.jobs[0]
	g.jobs = slices.Delete(g.jobs, 0, 1)
	more, err := j.step(g)
	if more {
		g.jobs = append(g.jobs, j)
	} else {
		g.finished = append(g.finished, j)
	}
	return err
}

// putCheckpoints adds the versions from which the touched sources can resume once
// this group is durable. A source that found nothing has no version yet; that it
// has looked is remembered all the same.
func (g *group) putCheckpoints() error {
	for s := range g.touched {
		sub := s.sub.Load()
		if sub == nil {
			continue
		}
		if next, ok := sub.EmptyAfter(s.position); ok && len(g.overlay) == 0 {
			empty, err := g.m.recordsNothing(s)
			if err != nil {
				return err
			}
			if empty {
				s.position = next
			}
		}
		if err := g.settle(s); err != nil {
			return err
		}
		if s.position >= s.list.end {
			s.list = list{}
		}
		version := sub.Checkpoint(s.position)
		if s.ahead != nil && version != "" && s.caughtUp(version) {
			s.ahead = nil // its list has been taken in as well
		}
		if version == "" {
			version = s.saved.ResourceVersion
		}
		now := checkpoint{ResourceVersion: version, Synced: s.synced, Epoch: s.epoch, Form: s.recordedForm, Sweeping: s.listed != nil, Gap: s.open, Listing: s.list.mark, Ahead: s.ahead, Forgot: s.forgot}
		now.Recorded = s.recorded(version)
		if now.same(s.saved) {
			continue
		}
		now.Time = g.m.cfg.Now()
		s.saved = now
		g.batch.PutMeta(checkpointMeta(s.id), encodeCheckpoint(s.saved))
	}
	return nil
}

// ErrStore marks an error of the durable store: nothing more can be promised and
// the process has to end.
var ErrStore = errors.New("the store failed")
