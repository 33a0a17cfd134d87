package sinks

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics makes and registers the metrics of a kind. One that is registered already
// continues: a sink that is opened again continues its series.
//
// A kind never unregisters. The program deletes the series of a sink that is removed
// or changed.
type Metrics struct {
	reg    prometheus.Registerer
	prefix string
	err    error
}

// NewMetrics returns the metrics of a kind; their names begin with watcherd_<kind>_sink_.
func NewMetrics(reg prometheus.Registerer, kind string) *Metrics {
	return &Metrics{reg: reg, prefix: "watcherd_" + kind + "_sink_"}
}

// Counter registers a counter.
func (m *Metrics) Counter(name, help string) prometheus.Counter {
	return register(m, prometheus.NewCounter(prometheus.CounterOpts{Name: m.prefix + name, Help: help}))
}

// CounterVec registers a counter with a label.
func (m *Metrics) CounterVec(name, help, label string) *prometheus.CounterVec {
	return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, []string{label}))
}

// Gauge registers a gauge.
func (m *Metrics) Gauge(name, help string) prometheus.Gauge {
	return register(m, prometheus.NewGauge(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}))
}

// Err returns every error of the registrations, joined.
func (m *Metrics) Err() error { return m.err }

func register[C prometheus.Collector](m *Metrics, c C) C {
	err := m.reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("register metric: %w", err))
	}
	return c
}
