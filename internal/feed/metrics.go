package feed

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
)

type metrics struct {
	observedTotal  *prometheus.CounterVec // by resource, before comparison with the ledger
	committedTotal prometheus.Counter
	filteredTotal  *prometheus.CounterVec // by type: no route wanted it
	gapsTotal      *prometheus.CounterVec // by resource and cause
	repairsTotal   *prometheus.CounterVec // by resource: found by the audit
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		observedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_notifications_observed_total",
			Help: "Informer notifications taken, before they are compared with the ledger.",
		}, []string{"resource"}),
		committedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "watcherd_events_committed_total",
			Help: "Events made durable in the event log.",
		}),
		filteredTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_events_filtered_total",
			Help: "Changes recorded in the ledger that no route asked for.",
		}, []string{"type"}),
		gapsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_gaps_total",
			Help: "Stretches of history that were lost at the API server.",
		}, []string{"resource", "cause"}),
		repairsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "watcherd_audit_repairs_total",
			Help: "Changes that only the periodic audit found.",
		}, []string{"resource"}),
	}
	r.MustRegister(m.observedTotal, m.committedTotal, m.filteredTotal, m.gapsTotal, m.repairsTotal)
	for _, t := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		m.filteredTotal.WithLabelValues(string(t))
	}
	return m
}

func (m *metrics) observed(c *change) {
	m.observedTotal.WithLabelValues(c.src.resource.Resource + "." + c.src.resource.Group).Inc()
}

func (m *metrics) committed(events int)  { m.committedTotal.Add(float64(events)) }
func (m *metrics) filtered(t event.Type) { m.filteredTotal.WithLabelValues(string(t)).Inc() }
func (m *metrics) gap(s *source, cause string) {
	m.gapsTotal.WithLabelValues(s.key.GVR.GroupResource().String(), cause).Inc()
}
