package commit

import (
	"github.com/prometheus/client_golang/prometheus"

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
	repairsTotal   *prometheus.CounterVec // by resource: found by the audit
	staleTotal     *prometheus.CounterVec // by resource: older than what is recorded
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		observedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_notifications_observed_total",
			Help: "Informer notifications received, before the comparison with the ledger.",
		}, []string{"resource"}),
		watchedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_watch_changes_total",
			Help: "Changes of objects that a watch saw, before routing, by type.",
		}, []string{"watch", "type"}),
		committedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_events_committed_total",
			Help: "Events made durable in the event log, by type.",
		}, []string{"type"}),
		filteredTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_events_unrouted_total",
			Help: "Changes recorded in the ledger that no route matched.",
		}, []string{"type"}),
		gapsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_gaps_total",
			Help: "Gaps: periods whose history the API server no longer has.",
		}, []string{"watch", "resource", "cause"}),
		gapSeconds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_gap_seconds_total",
			Help: "Total duration of the gaps.",
		}, []string{"watch", "resource", "cause"}),
		quietTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_quiet_gaps_total",
			Help: "Periods without history in which, by a list, no change was missed; no gap is reported.",
		}, []string{"resource"}),
		repairsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_consistency_repairs_total",
			Help: "Changes that the watch missed and the consistency check found.",
		}, []string{"resource"}),
		staleTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_stale_states_total",
			Help: "Object states received that are older than the recorded ones; they are ignored.",
		}, []string{"resource"}),
	}
	r.MustRegister(m.observedTotal, m.watchedTotal, m.committedTotal, m.filteredTotal, m.gapsTotal, m.gapSeconds, m.quietTotal, m.repairsTotal, m.staleTotal)
	for _, t := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.filteredTotal.WithLabelValues(string(t))
		m.committedTotal.WithLabelValues(string(t))
	}
	m.committedTotal.WithLabelValues(string(event.Gap))
	return m
}

// observed is the counter of a feed's notifications.
func (m *metrics) observed(s *Feed) prometheus.Counter {
	return m.observedTotal.WithLabelValues(s.Key.GVR.GroupResource().String())
}

// repaired is the counter of what audits found in a feed.
func (m *metrics) repaired(s *Feed) prometheus.Counter {
	return m.repairsTotal.WithLabelValues(s.Key.GVR.GroupResource().String())
}

// stale counts a state that is older than the recorded one.
func (m *metrics) stale(s *Feed) {
	m.staleTotal.WithLabelValues(s.Key.GVR.GroupResource().String()).Inc()
}

// gapCauses are those of the factory's gaps, and the audit's.
var gapCauses = [...]string{dynamicfactory.CauseExpired, dynamicfactory.CauseRollback, dynamicfactory.CauseUnreadable, CauseAudit, CauseRemoved}

// feeds notes that a feed feeds a watch. Series begin at zero, so that their
// first increase is one.
func (m *metrics) feeds(watch string, s *Feed) {
	for _, cause := range gapCauses {
		m.gapsTotal.WithLabelValues(watch, s.Key.GVR.GroupResource().String(), cause)
		m.gapSeconds.WithLabelValues(watch, s.Key.GVR.GroupResource().String(), cause)
	}
	m.quietTotal.WithLabelValues(s.Key.GVR.GroupResource().String())
	m.staleTotal.WithLabelValues(s.Key.GVR.GroupResource().String())
	for _, t := range [...]event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.watchedTotal.WithLabelValues(watch, string(t))
	}
}

// forget ends the series of a watch that is not configured any more.
func (m *metrics) forget(watch string) {
	m.gapsTotal.DeletePartialMatch(prometheus.Labels{"watch": watch})
	m.gapSeconds.DeletePartialMatch(prometheus.Labels{"watch": watch})
	m.watchedTotal.DeletePartialMatch(prometheus.Labels{"watch": watch})
}

func (m *metrics) watched(watch string, t event.Type) {
	m.watchedTotal.WithLabelValues(watch, string(t)).Inc()
}

func (m *metrics) committed(events map[event.Type]int) {
	for t, n := range events {
		m.committedTotal.WithLabelValues(string(t)).Add(float64(n))
	}
}

func (m *metrics) filtered(t event.Type) { m.filteredTotal.WithLabelValues(string(t)).Inc() }

func (m *metrics) gap(watch string, s *Feed, gap *dynamicfactory.Gap) {
	resource := s.Key.GVR.GroupResource().String()
	m.gapsTotal.WithLabelValues(watch, resource, gap.Cause).Inc()
	if !gap.FromTime.IsZero() {
		m.gapSeconds.WithLabelValues(watch, resource, gap.Cause).Add(max(0, gap.ToTime.Sub(gap.FromTime).Seconds()))
	}
}

func (m *metrics) unharmed(s *Feed) {
	m.quietTotal.WithLabelValues(s.Key.GVR.GroupResource().String()).Inc()
}

// Feeds notes that a feed feeds a watch.
func (c *Committer) Feeds(watch string, s *Feed) { c.metrics.feeds(watch, s) }

// ForgetWatch ends the series of a watch that is not configured any more.
func (c *Committer) ForgetWatch(watch string) { c.metrics.forget(watch) }

// CountGap counts a gap that a watch of a feed has.
func (c *Committer) CountGap(watch string, s *Feed, gap *dynamicfactory.Gap) {
	c.metrics.gap(watch, s, gap)
}
