package kafka

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	connections prometheus.Gauge
	disconnects prometheus.Counter
	superseded  prometheus.Counter
	gaps        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	connections, err1 := sinks.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watcherd_kafka_sink_connections", Help: "Open connections to brokers.",
	}))
	disconnects, err2 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_kafka_sink_disconnects_total", Help: "Connections to brokers that ended.",
	}))
	superseded, err3 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_kafka_sink_superseded_total", Help: "Events that mode state did not write, since the topic has a later state of their object.",
	}))
	gaps, err4 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_kafka_sink_gaps_skipped_total", Help: "Gap records, which mode state does not write.",
	}))
	return &metrics{connections: connections, disconnects: disconnects, superseded: superseded, gaps: gaps}, errors.Join(err1, err2, err3, err4)
}
