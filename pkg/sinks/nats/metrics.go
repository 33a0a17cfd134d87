package nats

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	connected   prometheus.Gauge
	disconnects prometheus.Counter
	duplicates  prometheus.Counter
	unexpected  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	connected, err1 := sinks.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watcherd_nats_sink_connected", Help: "Whether the sink is connected to a server.",
	}))
	disconnects, err2 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_nats_sink_disconnects_total", Help: "Connections that were lost.",
	}))
	duplicates, err3 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_nats_sink_duplicates_total", Help: "Events that the stream had stored already.",
	}))
	unexpected, err4 := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "watcherd_nats_sink_unexpected_duplicates_total", Help: "Events that the stream had stored already although this sink had not published them before.",
	}))
	return &metrics{connected: connected, disconnects: disconnects, duplicates: duplicates, unexpected: unexpected}, errors.Join(err1, err2, err3, err4)
}
