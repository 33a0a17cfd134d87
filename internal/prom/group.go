// Package prom makes Prometheus metrics, and registers collectors in groups, so that the
// owner of a group can unregister all of it at once.
package prom

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Group is a Registerer that remembers what was registered through it. It is safe for
// concurrent use.
type Group struct {
	to prometheus.Registerer

	mu      sync.Mutex
	members []prometheus.Collector
}

var _ prometheus.Registerer = (*Group)(nil)

// NewGroup returns an empty group of collectors of a registerer; nil discards them.
func NewGroup(to prometheus.Registerer) *Group {
	return &Group{to: to}
}

// Register implements prometheus.Registerer.
func (g *Group) Register(c prometheus.Collector) error {
	if g.to == nil {
		return nil
	}
	if key(c) == "" {
		c = newUnchecked(c)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.to.Register(c); err != nil {
		return err
	}
	g.members = append(g.members, c)
	return nil
}

// RegisterAll registers all collectors, or none of them and returns the first error.
func (g *Group) RegisterAll(cs ...prometheus.Collector) error {
	for i, c := range cs {
		if err := g.Register(c); err != nil {
			for _, registered := range cs[:i] {
				g.Unregister(registered)
			}
			return err
		}
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (g *Group) MustRegister(cs ...prometheus.Collector) {
	if err := g.RegisterAll(cs...); err != nil {
		panic(err)
	}
}

// Unregister implements prometheus.Registerer. An unchecked collector ends with the group only.
func (g *Group) Unregister(c prometheus.Collector) bool {
	of := key(c)
	if g.to == nil || of == "" {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = slices.DeleteFunc(g.members, func(member prometheus.Collector) bool { return key(member) == of })
	return g.to.Unregister(c)
}

// Close unregisters every member. A nil group has none.
func (g *Group) Close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.members {
		if u, ok := c.(*unchecked); ok {
			u.of.Store(nil)
		} else {
			g.to.Unregister(c)
		}
	}
	g.members = nil
}

// unchecked is a collector without descriptors. A registry keeps it for good: what it
// collects ends with its group.
type unchecked struct {
	of atomic.Pointer[prometheus.Collector] // nil: the group is closed
}

func newUnchecked(c prometheus.Collector) *unchecked {
	u := &unchecked{}
	u.of.Store(&c)
	return u
}

// Describe implements prometheus.Collector.
func (u *unchecked) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (u *unchecked) Collect(metrics chan<- prometheus.Metric) {
	if c := u.of.Load(); c != nil {
		(*c).Collect(metrics)
	}
}

// key identifies a collector by the first of its descriptors, also where a wrapped registerer
// makes another value of it. A registry has each descriptor once. It is empty for an
// unchecked collector.
func key(c prometheus.Collector) string {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	first := ""
	for d := range descs {
		if first == "" {
			first = d.String()
		}
	}
	return first
}

// Counter makes a counter.
func Counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// CounterVec makes a counter with labels.
func CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Gauge makes a gauge.
func Gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// GaugeVec makes a gauge with labels.
func GaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// Histogram makes a histogram.
func Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

// HistogramVec makes a histogram with labels.
func HistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}
