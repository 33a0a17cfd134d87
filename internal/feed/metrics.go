package feed

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
	auditsTotal    *prometheus.CounterVec // by resource and result
	forgottenTotal prometheus.Counter     // feeds that no watch reads any more
	scrubbedTotal  *prometheus.CounterVec // by result: events and states that a scrub looked at
	scrubbing      prometheus.Gauge       // 1 while there is a scrub to do
	scrubbed       prometheus.Gauge       // when the last one was done
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
		auditsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_consistency_checks_total",
			Help: "Consistency checks of a resource by result: clean, repaired (a difference caused a relist) or unfinished.",
		}, []string{"resource", "result"}),
		forgottenTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watcherd_ledger_partitions_deleted_total",
			Help: "Ledger partitions deleted because no watch had read them for longer than the retention.",
		}),
	}
	m.scrubbedTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watcherd_scrub_items_total",
		Help: "Recorded events and states by result of the scrub: rewritten to hide what the configuration hides now, or failed.",
	}, []string{"result"})
	m.scrubbing = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watcherd_scrub_pending",
		Help: "1 while recorded events or states contain values that the configuration hides.",
	})
	m.scrubbed = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watcherd_scrub_done_timestamp_seconds",
		Help: "Time of the last completed scrub.",
	})
	for _, result := range []string{"rewritten", "failed"} {
		m.scrubbedTotal.WithLabelValues(result)
	}
	r.MustRegister(m.scrubbedTotal, m.scrubbing, m.scrubbed)
	r.MustRegister(m.observedTotal, m.watchedTotal, m.committedTotal, m.filteredTotal, m.gapsTotal, m.gapSeconds, m.quietTotal, m.repairsTotal, m.staleTotal, m.auditsTotal, m.forgottenTotal)
	for _, t := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.filteredTotal.WithLabelValues(string(t))
		m.committedTotal.WithLabelValues(string(t))
	}
	m.committedTotal.WithLabelValues(string(event.Gap))
	return m
}

// observed is the counter of a source's notifications.
func (m *metrics) observed(s *source) prometheus.Counter {
	return m.observedTotal.WithLabelValues(s.key.GVR.GroupResource().String())
}

// repaired is the counter of what audits found in a source.
func (m *metrics) repaired(s *source) prometheus.Counter {
	return m.repairsTotal.WithLabelValues(s.key.GVR.GroupResource().String())
}

// stale counts a state that is older than the recorded one.
func (m *metrics) stale(s *source) {
	m.staleTotal.WithLabelValues(s.key.GVR.GroupResource().String()).Inc()
}

// Results of an audit.
const (
	auditClean      = "clean"
	auditRepaired   = "repaired"
	auditUnfinished = "unfinished"
)

func (m *metrics) audited(s *source, result string) {
	m.auditsTotal.WithLabelValues(s.key.GVR.GroupResource().String(), result).Inc()
}

// gapCauses are those of the factory's gaps, and the audit's.
var gapCauses = [...]string{dynamicfactory.CauseExpired, dynamicfactory.CauseRollback, dynamicfactory.CauseUnreadable, causeAudit, causeRemoved}

// feeds notes that a source feeds a watch. Series begin at zero, so that their
// first increase is one.
func (m *metrics) feeds(watch string, s *source) {
	for _, cause := range gapCauses {
		m.gapsTotal.WithLabelValues(watch, s.key.GVR.GroupResource().String(), cause)
		m.gapSeconds.WithLabelValues(watch, s.key.GVR.GroupResource().String(), cause)
	}
	m.quietTotal.WithLabelValues(s.key.GVR.GroupResource().String())
	m.staleTotal.WithLabelValues(s.key.GVR.GroupResource().String())
	for _, result := range [...]string{auditClean, auditRepaired, auditUnfinished} {
		m.auditsTotal.WithLabelValues(s.key.GVR.GroupResource().String(), result)
	}
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

func (m *metrics) gap(watch string, s *source, gap *dynamicfactory.Gap) {
	resource := s.key.GVR.GroupResource().String()
	m.gapsTotal.WithLabelValues(watch, resource, gap.Cause).Inc()
	if !gap.FromTime.IsZero() {
		m.gapSeconds.WithLabelValues(watch, resource, gap.Cause).Add(max(0, gap.ToTime.Sub(gap.FromTime).Seconds()))
	}
}

func (m *metrics) unharmed(s *source) {
	m.quietTotal.WithLabelValues(s.key.GVR.GroupResource().String()).Inc()
}
