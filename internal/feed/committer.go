package feed

import (
	"context"
	"errors"
	"fmt"
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

// commitLoop takes changes until none can come any more: it ends when ctx is done
// and the queue is empty, or with the store's error. It is the only writer of
// ledger, log and checkpoints.
//
// ctx must outlive the informers, or their last notifications would find nobody.
func (m *Manager) commitLoop(ctx context.Context) error {
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
		case <-ctx.Done():
			return m.drain(g)
		}
		m.fill(g)
		if err := m.store.WaitIngest(ctx); err != nil {
			if ctx.Err() != nil {
				return m.drain(g)
			}
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
		if err := g.commit(); err != nil {
			return err
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
			m.log.Warn("stopping while the store is full: the last changes will be read again after the next start", "changes", g.size())
			return nil
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
	g.putCheckpoints()
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
func (g *group) putCheckpoints() {
	for s := range g.touched {
		sub := s.sub.Load()
		if sub == nil {
			continue
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
}

// ErrStore marks an error of the durable store: nothing more can be promised and
// the process has to end.
var ErrStore = errors.New("the store failed")
