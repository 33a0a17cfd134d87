package watcherd

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/prom"
)

// registerProcess registers the build information and the collectors of the Go runtime
// and the process, unless the caller has registered them.
func registerProcess(r prometheus.Registerer, version string) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "watcherd_build_info",
		Help:        "1, with the versions of watcherd and Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	info.Set(1)
	// Two of the memory statistics that the Go collector has by default share a name
	// under OpenMetrics; the runtime's own metrics do not, and reading them stops nothing.
	goRuntime := collectors.NewGoCollector(
		collectors.WithGoCollectorMemStatsMetricsDisabled(),
		collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsGC, collectors.MetricsMemory))
	for _, c := range []prometheus.Collector{
		goRuntime, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info,
	} {
		var known prometheus.AlreadyRegisteredError
		if err := r.Register(c); err != nil && !errors.As(err, &known) {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// requestMetrics counts the requests to the API server under the names that
// Kubernetes' own components use. It sits in the transport, so that it sees
// discovery by client-go as well as the lists and watches that are made here, and
// needs none of client-go's process-wide hooks.
type requestMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newRequestMetrics(r prometheus.Registerer) (*requestMetrics, error) {
	m := &requestMetrics{
		requests: prom.CounterVec("rest_client_requests_total", "Requests to the API server, by status code, method and host.", "code", "method", "host"),
		duration: prom.HistogramVec("rest_client_request_duration_seconds", "Time to the response headers of the API server, by verb and host.", prometheus.ExponentialBuckets(0.002, 4, 8), "verb", "host"),
	}
	if err := prom.NewGroup(r).RegisterAll(m.requests, m.duration); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func (m *requestMetrics) wrap(next http.RoundTripper) http.RoundTripper {
	return &countingTransport{m, next}
}

type countingTransport struct {
	metrics *requestMetrics
	next    http.RoundTripper
}

func (t *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	resp, err := t.next.RoundTrip(r)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.metrics.requests.WithLabelValues(code, r.Method, r.URL.Host).Inc()
	t.metrics.duration.WithLabelValues(verbOf(r), r.URL.Host).Observe(time.Since(begin).Seconds())
	return resp, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *countingTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func verbOf(r *http.Request) string {
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet:
		return strings.ToLower(r.Method)
	case query.Has("watch"):
		return "watch"
	case query.Has("limit"), query.Has("resourceVersion"):
		return "list"
	default:
		return "get"
	}
}

// ExportClientGo registers the metrics that client-go keeps of informers (what waits
// in their queues, how long handlers take, the version of their stores) and has
// client-go fill them. The hook is process-wide and counts once, for informers made
// afterwards: a program calls this at its start if nothing else of it does so.
//
// Run itself exports the metrics of requests. client-go has none of reflectors, and the daemon
// uses none of its work queues.
func ExportClientGo(r prometheus.Registerer) error {
	labels := []string{"name", "group", "version", "resource"}
	p := &informerMetrics{
		queued:  prom.GaugeVec("informer_queued_items", "Pending changes in an informer's queue.", labels...),
		latency: prom.HistogramVec("informer_processing_latency_seconds", "Time an informer took to store a change and notify its listeners.", prometheus.ExponentialBuckets(0.00001, 10, 7), labels...),
		version: prom.GaugeVec("informer_store_resource_version", "Newest resourceVersion in an informer's store, rounded to a float.", labels...),
	}
	if err := prom.NewGroup(r).RegisterAll(p.queued, p.latency, p.version); err != nil {
		return fmt.Errorf("register client-go's metrics: %w", err)
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

func (p *informerMetrics) NewQueuedItemMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	return reserved{id, p.queued.WithLabelValues(labelsOf(id)...).Set}
}

func (p *informerMetrics) NewProcessingLatencyMetric(id cache.InformerNameAndResource) cache.HistogramMetric {
	return reserved{id, p.latency.WithLabelValues(labelsOf(id)...).Observe}
}

func (p *informerMetrics) NewStoreResourceVersionMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	return reserved{id, p.version.WithLabelValues(labelsOf(id)...).Set}
}

// reserved is a gauge or a histogram that stops counting for informers whose factory has
// shut down, as client-go asks of them.
type reserved struct {
	id  cache.InformerNameAndResource
	put func(float64)
}

func (r reserved) Set(v float64) {
	if r.id.Reserved() {
		r.put(v)
	}
}

func (r reserved) Observe(v float64) { r.Set(v) }
