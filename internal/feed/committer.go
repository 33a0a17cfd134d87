package feed

import (
	"context"
	"errors"
	"fmt"
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
// While the store is full it takes nothing, which slows the watches. When ctx, the
// pipeline's, is done it must go on taking, because the informers have to hand over
// their last notifications before they end, and end before ended is done.
func (m *Manager) commitLoop(ctx, ended context.Context) error {
	defer close(m.committerDone)
	tick := time.NewTicker(checkpointInterval)
	defer tick.Stop()
	g := newGroup(m)
	for {
		m.beat.Store(time.Now().UnixNano())
		select {
		case c := <-m.changes:
			g.add(c)
		case <-tick.C:
			g.touchAll(m.sourceList())
		case <-ended.Done():
			return m.drain(ended, g)
		}
		m.fill(g)
		err := m.waitIngest(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("%w: %w", ErrStore, err)
		case err != nil && m.store.Health().Paused:
			return m.discard(ended, g)
		}
		if err := g.commit(); err != nil {
			return err
		}
	}
}

// waitIngest returns when the store takes more, or somebody is in a hurry.
func (m *Manager) waitIngest(ctx context.Context) error {
	if !m.store.Health().Paused {
		return m.store.WaitIngest(ctx)
	}
	wait, cancel := context.WithCancel(ctx)
	var hurry sync.WaitGroup
	hurry.Go(func() {
		select {
		case <-m.hurry:
			cancel()
		case <-wait.Done():
		}
	})
	err := m.store.WaitIngest(wait)
	cancel()
	hurry.Wait()
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// discard takes changes and forgets them until none can come any more. All of
// them: a later change that was committed would move the checkpoint past an
// earlier one that was not.
func (m *Manager) discard(ended context.Context, g *group) error {
	m.log.Warn("stopping while the store is full: the last changes will be read again after the next start", "changes", g.size())
	for {
		for i := range g.changes {
			if c := &g.changes[i]; c.kind == barrier {
				close(c.done)
			}
		}
		g.changes = g.changes[:0]
		select {
		case c := <-m.changes:
			g.add(c)
		case <-ended.Done():
			return nil
		}
	}
}

// fill adds what is waiting, without blocking, up to the group's limit.
func (m *Manager) fill(g *group) {
	for g.size() < maxGroup && !g.closed() {
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
func (m *Manager) drain(ended context.Context, g *group) error {
	for {
		m.fill(g)
		if g.size() == 0 && !g.dirty() {
			return nil
		}
		if m.store.Health().Paused {
			return m.discard(ended, g)
		}
		if err := g.commit(); err != nil {
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
	then    func() // of the barrier that ends the group; nil: none

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

// closed reports whether the group ends in a barrier that has something done
// between it and the next.
func (g *group) closed() bool {
	return len(g.changes) > 0 && g.changes[len(g.changes)-1].then != nil
}

func (g *group) touchAll(sources []*source) {
	for _, s := range sources {
		g.touched[s] = struct{}{}
	}
}

// commit turns the collected changes into one atomic batch, makes it durable,
// and only then opens the informers' windows. Afterwards the group is empty.
func (g *group) commit() error {
	g.batch = g.m.store.NewBatch()
	defer g.batch.Discard()
	for i := range g.changes {
		if err := g.process(&g.changes[i]); err != nil {
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
	if g.then != nil {
		g.then()
		g.then = nil
	}
	for _, w := range g.waiters {
		close(w)
	}
	clear(g.changes)
	g.changes = g.changes[:0]
	g.waiters = g.waiters[:0]
	clear(g.touched)
	clear(g.overlay)
	clear(g.events)
	return nil
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
		version := sub.Checkpoint(s.position)
		if version == "" {
			version = s.saved.ResourceVersion
		}
		if version == s.saved.ResourceVersion && s.synced == s.saved.Synced && s.epoch == s.saved.Epoch {
			continue
		}
		s.saved = checkpoint{ResourceVersion: version, Synced: s.synced, Epoch: s.epoch, Time: g.m.cfg.Now()}
		g.batch.PutMeta(checkpointMeta(s.id), encodeCheckpoint(s.saved))
	}
	return nil
}

// ErrStore marks an error of the durable store: nothing more can be promised and
// the process has to end.
var ErrStore = errors.New("the store failed")
