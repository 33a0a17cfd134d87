package commit

import (
	"github.com/prometheus/client_golang/prometheus"

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

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	m := &metrics{
		observedTotal:  counter("watcherd_notifications_observed_total", "Informer notifications received, before the comparison with the ledger.", "resource"),
		watchedTotal:   counter("watcherd_watch_changes_total", "Changes of objects that a watch saw, before routing, by type.", "watch", "type"),
		committedTotal: counter("watcherd_events_committed_total", "Events made durable in the event log, by type.", "type"),
		filteredTotal:  counter("watcherd_events_unrouted_total", "Changes recorded in the ledger that no route matched.", "type"),
		gapsTotal:      counter("watcherd_gaps_total", "Gaps: periods whose history the API server no longer has.", "watch", "resource", "cause"),
		gapSeconds:     counter("watcherd_gap_seconds_total", "Total duration of the gaps.", "watch", "resource", "cause"),
		quietTotal:     counter("watcherd_quiet_gaps_total", "Periods without history after which a list shows no difference: the history alone has a gap, with the cause quiet.", "resource"),
		repairsTotal:   counter("watcherd_consistency_repairs_total", "Changes that the watch missed and the consistency check found.", "resource"),
		staleTotal:     counter("watcherd_stale_states_total", "Object states received that are older than the recorded ones; they are ignored.", "resource"),
		held:           counter("watcherd_throttle_held_total", "Events that a route's throttle held.", "route", "sink"),
		coalesced:      counter("watcherd_throttle_coalesced_total", "Held events that a later event of their object replaced.", "route", "sink"),
		unheld:         counter("watcherd_throttle_dropped_total", "Held events that could not be delivered: their sink was removed, or what was held is damaged.", "reason"),
		lasted:         counter("watcherd_route_lasted_total", "Events made because an object matched a route for as long as its for asks.", "route"),
	}
	m.waiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "watcherd_route_held",
		Help: "Events that a route's throttle holds now, and, without a sink, matches that have not lasted yet for as long as its for asks.",
	}, []string{"route", "sink"})
	r.MustRegister(m.waiting)
	for _, t := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.filteredTotal.WithLabelValues(string(t))
		m.committedTotal.WithLabelValues(string(t))
	}
	m.committedTotal.WithLabelValues(string(event.Gap))
	for _, reason := range [...]string{"sink", "unreadable"} {
		m.unheld.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) observed(s *Feed) prometheus.Counter {
	return m.observedTotal.WithLabelValues(s.groupResource())
}

func (m *metrics) repaired(s *Feed) prometheus.Counter {
	return m.repairsTotal.WithLabelValues(s.groupResource())
}

// gapCauses are those of the factory's gaps, and the committer's.
var gapCauses = [...]string{dynamicfactory.CauseExpired, dynamicfactory.CauseRollback, dynamicfactory.CauseUnreadable, CauseAudit, CauseRemoved, CauseNamespace}

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
