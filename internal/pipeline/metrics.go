package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/prom"
)

type metrics struct {
	auditsTotal    *prometheus.CounterVec // by resource and result
	forgottenTotal prometheus.Counter     // feeds that no watch reads any more
	scrubbedTotal  *prometheus.CounterVec // by result: events and states that a scrub looked at
	scrubbing      prometheus.Gauge       // 1 while there is a scrub to do
	scrubbed       prometheus.Gauge       // when the last one was done
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		auditsTotal:    prom.CounterVec("watcherd_consistency_checks_total", "Consistency checks of a resource by result: clean, repaired (a difference caused a relist) or unfinished.", "resource", "result"),
		forgottenTotal: prom.Counter("watcherd_ledger_partitions_deleted_total", "Ledger partitions deleted because no watch had read them for longer than the retention."),
		scrubbedTotal:  prom.CounterVec("watcherd_scrub_items_total", "Recorded events and states by result of the scrub: rewritten to hide what the configuration hides now, or failed.", "result"),
		scrubbing:      prom.Gauge("watcherd_scrub_pending", "1 while recorded events or states contain values that the configuration hides."),
		scrubbed:       prom.Gauge("watcherd_scrub_done_timestamp_seconds", "Time of the last completed scrub."),
	}
	for _, result := range []string{"rewritten", "failed"} {
		m.scrubbedTotal.WithLabelValues(result)
	}
	r.MustRegister(m.auditsTotal, m.forgottenTotal, m.scrubbedTotal, m.scrubbing, m.scrubbed)
	return m
}

// Results of a consistency check.
const (
	auditClean      = "clean"
	auditRepaired   = "repaired"
	auditUnfinished = "unfinished"
)

func (m *metrics) audited(s *informer, result string) {
	m.auditsTotal.WithLabelValues(s.Key.GVR.GroupResource().String(), result).Inc()
}

func (m *metrics) scrubCounted(rewritten, failed int) {
	m.scrubbedTotal.WithLabelValues("rewritten").Add(float64(rewritten))
	m.scrubbedTotal.WithLabelValues("failed").Add(float64(failed))
}

// watches notes that a feed is compared with the cluster. Series begin at zero.
func (m *metrics) watches(s *commit.Feed) {
	for _, result := range [...]string{auditClean, auditRepaired, auditUnfinished} {
		m.auditsTotal.WithLabelValues(s.Key.GVR.GroupResource().String(), result)
	}
}
