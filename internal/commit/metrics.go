package commit

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

type metrics struct {
	observedTotal  *prometheus.CounterVec // by resource, before comparison with the ledger
	watchedTotal   *prometheus.CounterVec // by watch and type: what a watch saw, whether or not a route wanted it
	committedTotal *prometheus.CounterVec // by type
	filteredTotal  *prometheus.CounterVec // by type: no route wanted it
	gapsTotal      *prometheus.CounterVec // by watch, resource and cause
	gapSeconds     *prometheus.CounterVec // by watch, resource and cause
	quietTotal     *prometheus.CounterVec // by resource: nothing was missed in them
	repairsTotal   *prometheus.CounterVec // by resource: found by the consistency check
	staleTotal     *prometheus.CounterVec // by resource: older than what is recorded
	held           *prometheus.CounterVec // by route and sink
	coalesced      *prometheus.CounterVec // by route and sink
	unheld         *prometheus.CounterVec // by reason
	lasted         *prometheus.CounterVec // by route
	waiting        *prometheus.GaugeVec   // by route and sink
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		observedTotal:  prom.CounterVec("watcherd_notifications_observed_total", "Informer notifications received, before the comparison with the ledger.", "resource"),
		watchedTotal:   prom.CounterVec("watcherd_watch_changes_total", "Changes of objects that a watch saw, before routing, by type.", "watch", "type"),
		committedTotal: prom.CounterVec("watcherd_events_committed_total", "Events made durable in the event log, by type.", "type"),
		filteredTotal:  prom.CounterVec("watcherd_events_unrouted_total", "Changes recorded in the ledger that no route matched.", "type"),
		gapsTotal:      prom.CounterVec("watcherd_gaps_total", "Gaps: periods whose changes were not all observed, by cause.", "watch", "resource", "cause"),
		gapSeconds:     prom.CounterVec("watcherd_gap_seconds_total", "Total duration of the gaps.", "watch", "resource", "cause"),
		quietTotal:     prom.CounterVec("watcherd_quiet_gaps_total", "Periods without history after which a list shows no difference: the history alone has a gap, with the cause quiet.", "resource"),
		repairsTotal:   prom.CounterVec("watcherd_consistency_repairs_total", "Changes that the watch missed and the consistency check found.", "resource"),
		staleTotal:     prom.CounterVec("watcherd_stale_states_total", "Object states received that are older than the recorded ones; they are ignored.", "resource"),
		held:           prom.CounterVec("watcherd_throttle_held_total", "Events that a route's throttle held.", "route", "sink"),
		coalesced:      prom.CounterVec("watcherd_throttle_coalesced_total", "Held events that a later event of their object replaced.", "route", "sink"),
		unheld:         prom.CounterVec("watcherd_throttle_dropped_total", "Held events that could not be delivered: their sink was removed, or what was held is damaged.", "reason"),
		lasted:         prom.CounterVec("watcherd_route_lasted_total", "Events made because an object matched a route for as long as its for asks.", "route"),
		waiting:        prom.GaugeVec("watcherd_route_held", "Events that a route's throttle holds now, and, without a sink, matches that have not lasted yet for as long as its for asks.", "route", "sink"),
	}
	for _, t := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.filteredTotal.WithLabelValues(string(t))
		m.committedTotal.WithLabelValues(string(t))
	}
	m.committedTotal.WithLabelValues(string(event.Gap))
	for _, reason := range [...]string{"sink", "unreadable"} {
		m.unheld.WithLabelValues(reason)
	}
	err := prom.NewGroup(r).RegisterAll(
		m.observedTotal, m.watchedTotal, m.committedTotal, m.filteredTotal, m.gapsTotal, m.gapSeconds, m.quietTotal,
		m.repairsTotal, m.staleTotal, m.held, m.coalesced, m.unheld, m.lasted, m.waiting,
	)
	if err != nil {
		return nil, fmt.Errorf("register the committer's metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) observed(s *Feed) prometheus.Counter {
	return m.observedTotal.WithLabelValues(s.groupResource())
}

func (m *metrics) repaired(s *Feed) prometheus.Counter {
	return m.repairsTotal.WithLabelValues(s.groupResource())
}

// gapCauses are those of the factory's gaps, and the committer's.
var gapCauses = [...]string{dynamicfactory.CauseExpired, dynamicfactory.CauseRollback, dynamicfactory.CauseUnreadable, CauseConsistencyCheck, CauseNamespace, CauseRemoved}

func (m *metrics) watched(watch string, t event.Type) {
	m.watchedTotal.WithLabelValues(watch, string(t)).Inc()
}

func (m *metrics) committed(events map[event.Type]int) {
	for t, n := range events {
		m.committedTotal.WithLabelValues(string(t)).Add(float64(n))
	}
}

func (m *metrics) unharmed(s *Feed) {
	m.quietTotal.WithLabelValues(s.groupResource()).Inc()
}

// Feeds notes that a feed feeds a watch. Series begin at zero, so that their
// first increase is one.
func (c *Committer) Feeds(watch string, s *Feed) {
	m, resource := c.metrics, s.groupResource()
	for _, cause := range gapCauses {
		m.gapsTotal.WithLabelValues(watch, resource, cause)
		m.gapSeconds.WithLabelValues(watch, resource, cause)
	}
	m.quietTotal.WithLabelValues(resource)
	m.staleTotal.WithLabelValues(resource)
	for _, t := range [...]event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.watchedTotal.WithLabelValues(watch, string(t))
	}
}

// ForgetWatch ends the series of a watch that is not configured any more.
func (c *Committer) ForgetWatch(watch string) {
	labels := prometheus.Labels{"watch": watch}
	c.metrics.gapsTotal.DeletePartialMatch(labels)
	c.metrics.gapSeconds.DeletePartialMatch(labels)
	c.metrics.watchedTotal.DeletePartialMatch(labels)
}

// forgetTimers ends the series of a route that holds nothing any more.
func (m *metrics) forgetTimers(of timer.Name) {
	if of.Sink == "" {
		m.lasted.DeleteLabelValues(of.Route)
		return
	}
	m.held.DeleteLabelValues(of.Route, of.Sink)
	m.coalesced.DeleteLabelValues(of.Route, of.Sink)
}

// holds notes how much a bucket holds.
func (m *metrics) holds(b *timer.Bucket) {
	if b.Former && b.Held() == 0 {
		m.waiting.DeleteLabelValues(b.Route, b.Sink)
		return
	}
	m.waiting.WithLabelValues(b.Route, b.Sink).Set(float64(b.Held()))
}

// CountGap counts a gap that a watch of a feed has.
func (c *Committer) CountGap(watch string, s *Feed, gap *dynamicfactory.Gap) {
	resource := s.groupResource()
	c.metrics.gapsTotal.WithLabelValues(watch, resource, gap.Cause).Inc()
	if !gap.FromTime.IsZero() {
		c.metrics.gapSeconds.WithLabelValues(watch, resource, gap.Cause).Add(max(0, gap.ToTime.Sub(gap.FromTime).Seconds()))
	}
}

func (s *Feed) groupResource() string { return s.Key.GVR.GroupResource().String() }
