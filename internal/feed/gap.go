package feed

import (
	"fmt"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// gapFound tells every watch of the source, through the sinks its routes lead to,
// that history was lost.
func (g *group) gapFound(c *change) error {
	s, gap := c.src, c.gap
	s.log.Warn("history was lost: what happened in between was not observed, the final states are delivered",
		"cause", gap.Cause, "fromResourceVersion", gap.From, "toResourceVersion", gap.To)
	g.touched[s] = struct{}{} // the list that makes up for it may have nothing else
	switch gap.Cause {
	case dynamicfactory.CauseRollback:
		s.epoch++ // versions are used again
		s.rewind = true
	case causeAudit:
		s.repair = true
	}
	s.listing(false)
	return g.gap(s, c.at, gap, nil)
}

// gap delivers a gap to every watch of the source; one that concerns an object o, to
// those that cover it.
func (g *group) gap(s *source, at time.Time, gap *dynamicfactory.Gap, o *compact.Object) error {
	namespace, name := gap.Namespace, gap.Name
	if name == "" {
		namespace = s.key.Namespace
	}
	for _, h := range *s.hits.Load() {
		if o != nil && !h.covers(o, g.m.namespaces.labels) {
			continue
		}
		g.m.metrics.gap(h.watch.Name, s, gap.Cause)
		g.routes = g.routes[:0]
		g.stored = g.stored[:0]
		for _, sink := range g.m.router.Load().Sinks(nil, h.watch.Name, s.resource) {
			g.routes = append(g.routes, outbox.Route{Sink: sink})
			g.stored = append(g.stored, record.Target{Sink: sink})
		}
		if len(g.routes) == 0 && !g.m.keepUnrouted.Load() {
			continue
		}
		data := &event.GapData{
			Watch: h.watch.Name, Resource: s.resource.String(),
			FromResourceVersion: gap.From, ToResourceVersion: gap.To, Cause: gap.Cause,
			From: gap.FromTime.UTC(), To: gap.ToTime.UTC(),
		}
		scope := s.idScope() + "/" + h.watch.Name + "/" + gap.Cause
		if name != "" {
			scope += "/" + stateKey(namespace, name)
		}
		r := record.Record{Event: event.Event{
			ID:   event.ID(g.m.cfg.Cluster, event.Gap, s.resource, scope, gap.From, gap.To),
			Type: event.Gap, Time: at, Resource: s.resource, Namespace: namespace, Name: name, Gap: data,
		}, Targets: g.stored}
		if _, err := g.appendRecord(&r); err != nil {
			return fmt.Errorf("record gap of %s: %w", s.id, err)
		}
	}
	return nil
}
