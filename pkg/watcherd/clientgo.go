package watcherd

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/prom"
)

// ExportClientGo registers the metrics that client-go keeps of informers (what waits
// in their queues, how long handlers take, the version of their stores) and has
// client-go fill them. The hook is process-wide and counts once, for informers made
// afterwards: a program calls this at its start if nothing else of it does so.
//
// client-go's metrics of requests are exported by Run itself. Its reflectors no
// longer report any, and no work queues of its are used.
func ExportClientGo(r prometheus.Registerer) error {
	labels := []string{"name", "group", "version", "resource"}
	p := &informerMetrics{
		queued:  prom.GaugeVec("informer_queued_items", "Pending changes in an informer's queue.", labels...),
		latency: prom.HistogramVec("informer_processing_latency_seconds", "Time an informer took to store a change and notify its listeners.", prometheus.ExponentialBuckets(0.00001, 10, 7), labels...),
		version: prom.GaugeVec("informer_store_resource_version", "Newest resourceVersion in an informer's store, rounded to a float.", labels...),
	}
	for _, c := range []prometheus.Collector{p.queued, p.latency, p.version} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register client-go's metrics: %w", err)
		}
	}
	cache.SetInformerMetricsProvider(p)
	return nil
}

// informerMetrics implements cache.InformerMetricsProvider.
type informerMetrics struct {
	queued, version *prometheus.GaugeVec
	latency         *prometheus.HistogramVec
}

func labelsOf(id cache.InformerNameAndResource) []string {
	r := id.GroupVersionResource()
	return []string{id.Name(), r.Group, r.Version, r.Resource}
}

// NewQueuedItemMetric implements cache.InformerMetricsProvider.
func (p *informerMetrics) NewQueuedItemMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	return reservedGauge{id, p.queued.WithLabelValues(labelsOf(id)...)}
}

// NewProcessingLatencyMetric implements cache.InformerMetricsProvider.
func (p *informerMetrics) NewProcessingLatencyMetric(id cache.InformerNameAndResource) cache.HistogramMetric {
	return reservedHistogram{id, p.latency.WithLabelValues(labelsOf(id)...)}
}

// NewStoreResourceVersionMetric implements cache.InformerMetricsProvider.
func (p *informerMetrics) NewStoreResourceVersionMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	return reservedGauge{id, p.version.WithLabelValues(labelsOf(id)...)}
}

// reservedGauge and reservedHistogram stop counting for an informer that has
// stopped, as client-go asks of them.
type reservedGauge struct {
	id    cache.InformerNameAndResource
	gauge prometheus.Gauge
}

func (g reservedGauge) Set(v float64) {
	if g.id.Reserved() {
		g.gauge.Set(v)
	}
}

type reservedHistogram struct {
	id        cache.InformerNameAndResource
	histogram prometheus.Observer
}

func (h reservedHistogram) Observe(v float64) {
	if h.id.Reserved() {
		h.histogram.Observe(v)
	}
}
