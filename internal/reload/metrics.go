package reload

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/prom"
)

// result is the outcome of a reload, as the metric's label has it.
type result string

const (
	resultSuccess    result = "success"
	resultInvalid    result = "invalid"    // the content is refused
	resultUnreadable result = "unreadable" // there is no content
	resultFailed     result = "failed"     // the content is fine and could not be applied
)

type metrics struct {
	successful prometheus.Gauge
	successAt  prometheus.Gauge
	hash       *prometheus.GaugeVec
	reloads    *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		successful: prom.Gauge("watcherd_config_last_reload_successful", "1 if the last reload succeeded, 0 if it failed."),
		successAt:  prom.Gauge("watcherd_config_last_reload_success_timestamp_seconds", "Time of the last successful reload."),
		hash:       prom.GaugeVec("watcherd_config_hash", "1 for the hash of the active configuration.", "hash"),
		reloads:    prom.CounterVec("watcherd_config_reloads_total", "Reloads of the configuration file by outcome.", "result"),
	}
	for _, r := range []result{resultSuccess, resultInvalid, resultUnreadable, resultFailed} {
		m.reloads.WithLabelValues(string(r))
	}
	return m
}

func (m *metrics) count(r result) { m.reloads.WithLabelValues(string(r)).Inc() }

// register registers the metrics; unregister removes them.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	group := prom.NewGroup(r)
	return group.Close, group.RegisterAll(m.successful, m.successAt, m.hash, m.reloads)
}

func (m *metrics) succeeded(hash string, at time.Time) {
	m.successful.Set(1)
	m.successAt.Set(float64(at.UnixMilli()) / 1000)
	m.hash.Reset()
	m.hash.WithLabelValues(hash).Set(1)
}
