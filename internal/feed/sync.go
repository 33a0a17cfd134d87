package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// sourceSynced handles the end of a source's initial list: every object of the
// list is before this in the queue.
func (g *group) sourceSynced(c *change) error {
	s := c.src
	g.touched[s] = struct{}{}
	if !s.warm {
		if err := g.sweep(c); err != nil {
			return err
		}
	}
	s.synced, s.handed = true, nil
	s.log.Info("watch synced", "objects", s.objects(), "fromLedger", s.warm)
	return nil
}

// sweep finds the deletions that an informer which started from nothing cannot
// see: objects that the ledger has in the source's scope and the cluster has not.
// An informer that started from the ledger finds them itself.
func (g *group) sweep(c *change) error {
	s := c.src
	sub := s.sub.Load()
	if sub == nil {
		return nil
	}
	exists := sub.Informer().GetStore()
	var missing []*compact.Object
	err := g.m.scan(s, func(o *compact.Object) error {
		key := strings.TrimPrefix(stateKey(o.GetNamespace(), o.GetName()), "/")
		_, found, err := exists.GetByKey(key)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, o)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range missing {
		gone := change{src: s, kind: objectDeleted, obj: o, unknown: true, at: c.at}
		if err := g.gone(&gone); err != nil {
			return err
		}
	}
	return nil
}

// scan calls fn for every committed ledger entry in the source's scope.
func (m *Manager) scan(s *source, fn func(*compact.Object) error) error {
	return m.scanPrefix(s, s.statePrefix(), fn)
}

// statePrefix begins the keys of the ledger entries in the source's scope.
func (s *source) statePrefix() string {
	if s.key.Namespace == "" {
		return ""
	}
	return stateKey(s.key.Namespace, "")
}

// recordsNothing reports whether the source's scope has no committed ledger entry.
func (m *Manager) recordsNothing(s *source) (bool, error) {
	errFound := errors.New("found one")
	err := m.store.ScanState(s.partition, s.statePrefix(), func(string, []byte) error { return errFound })
	if errors.Is(err, errFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: scan %s: %w", ErrStore, s.partition, err)
	}
	return true, nil
}

// scanPrefix is scan of the entries whose keys begin with prefix.
func (m *Manager) scanPrefix(s *source, prefix string, fn func(*compact.Object) error) error {
	err := m.store.ScanState(s.partition, prefix, func(key string, value []byte) error {
		o, err := m.codec.Decode(value)
		if err != nil {
			return fmt.Errorf("ledger entry %s: %w", key, err)
		}
		return fn(o)
	})
	if err != nil {
		return fmt.Errorf("%w: scan %s: %w", ErrStore, s.partition, err)
	}
	return nil
}

// causeRollback is the cause of a gap after which versions are used again.
const causeRollback = "rollback"

// gapFound tells every watch of the source, through the sinks its routes lead to,
// that history was lost.
func (g *group) gapFound(c *change) error {
	s, gap := c.src, c.gap
	s.log.Warn("history was lost: what happened in between was not observed, the final states are delivered",
		"cause", gap.Cause, "fromResourceVersion", gap.From, "toResourceVersion", gap.To)
	g.touched[s] = struct{}{} // the list that makes up for it may have nothing else
	switch gap.Cause {
	case causeRollback:
		s.epoch++
	case causeAudit:
		s.repair = true
	}
	for _, h := range *s.hits.Load() {
		g.m.metrics.gap(h.watch.Name, s, gap.Cause)
		g.routes = g.routes[:0]
		g.stored = g.stored[:0]
		for _, sink := range g.m.router.Load().Sinks(nil, h.watch.Name, s.resource) {
			g.routes = append(g.routes, outbox.Route{Sink: sink})
			g.stored = append(g.stored, record.Target{Sink: sink})
		}
		if len(g.routes) == 0 {
			continue
		}
		data := &event.GapData{
			Watch: h.watch.Name, Resource: s.resource.String(),
			FromResourceVersion: gap.From, ToResourceVersion: gap.To, Cause: gap.Cause,
			From: gap.FromTime.UTC(), To: gap.ToTime.UTC(),
		}
		id := event.ID(g.m.cfg.Cluster, event.Gap, s.resource, s.idScope()+"/"+h.watch.Name+"/"+gap.Cause, gap.From, gap.To)
		r := record.Record{Event: event.Event{
			ID: id, Type: event.Gap, Time: c.at, Resource: s.resource, Namespace: s.key.Namespace, Gap: data,
		}, Targets: g.stored}
		if _, err := g.appendRecord(&r, laneOf(s.id)); err != nil {
			return fmt.Errorf("record gap of %s: %w", s.id, err)
		}
	}
	return nil
}

// snapshotItem asks for the recorded state of one object as a Sync event, for one
// watch, to some sinks.
type snapshotItem struct {
	hit  hit
	was  *hit                   // leave out what the watch covered by these rules; nil: nothing
	only func(sink string) bool // nil: every sink the watch leads to
	seen func()                 // called for each object sent; nil: nobody wants to know
}

// snapshotObject delivers the object's recorded state. It is read again here: the
// object may have changed or gone since the snapshot was asked for, and then the
// event must not be older than what was already delivered.
func (g *group) snapshotObject(c *change) error {
	now, err := g.recorded(c.src, c.obj)
	if err != nil || now == nil {
		return err
	}
	if g.m.knew(c.snap, now) {
		return nil
	}
	s, ok := c.snap.hit.selection(event.Sync, nil, now, g.m.namespaces.labels)
	if !ok {
		return nil
	}
	hits := []route.Hit{{Watch: c.snap.hit.watch.Name, Selection: s}}
	return g.deliver(c.src, c.at, occurrence{t: event.Sync, after: now}, hits, c.snap.only)
}

// knew reports whether a watch has been given the object before its definition
// changed, so that the item leaves it out.
func (m *Manager) knew(item *snapshotItem, o *compact.Object) bool {
	return item.was != nil && item.was.covers(o, m.namespaces.labels)
}

// snapshot sends the recorded state of every object that the watch sees through
// the source to the committer, as Sync events. It returns the number of objects
// sent, early when ctx is done.
func (m *Manager) snapshot(ctx context.Context, s *source, item snapshotItem) (int, error) {
	n := 0
	err := m.scan(s, func(o *compact.Object) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if item.was != nil && (m.knew(&item, o) || !item.hit.covers(o, m.namespaces.labels)) {
			return nil
		}
		n++
		m.send(change{src: s, kind: snapshotObject, obj: o, snap: &item})
		if item.seen != nil {
			item.seen()
		}
		return nil
	})
	return n, err
}

// objects is the number of objects in the source's cache.
func (s *source) objects() int {
	sub := s.sub.Load()
	if sub == nil {
		return 0
	}
	return len(sub.Informer().GetStore().ListKeys())
}
