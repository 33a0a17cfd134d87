package feed

import (
	"fmt"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/record"
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
		if _, err := g.appendRecord(&r); err != nil {
			return fmt.Errorf("record gap of %s: %w", s.id, err)
		}
	}
	return nil
}
