package delivery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// metrics are one worker's series. The sink's name is a constant label, so workers can
// share a registry.
type metrics struct {
	group *prom.Group

	types      map[event.Type]prometheus.Counter
	delivery   prometheus.Histogram
	batch      prometheus.Histogram
	errors     *prometheus.CounterVec
	letters    *prometheus.CounterVec
	retries    prometheus.Counter
	truncated  prometheus.Counter
	leftOut    prometheus.Counter
	states     *prometheus.GaugeVec
	blocked    prometheus.Gauge
	stalled    prometheus.Gauge
	limited    prometheus.Counter
	heartbeats prometheus.Counter
	onRequest  prometheus.Gauge

	state State // the one with value 1
}

var eventTypes = [...]event.Type{event.Added, event.Updated, event.Deleted, event.Sync, event.Gap}

// The classes of failed writes beyond those of sinks.Class.
const (
	classPanic = "panic"
	classOpen  = "open"
)

func newMetrics(cfg *Config) (*metrics, error) {
	m := &metrics{
		group:      prom.NewGroup(prometheus.WrapRegistererWith(prometheus.Labels{"sink": cfg.Name}, cfg.Registerer)),
		types:      map[event.Type]prometheus.Counter{},
		delivery:   prom.Histogram("watcherd_sink_delivery_duration_seconds", "Duration of one write, failed ones included.", prometheus.ExponentialBuckets(0.0005, 4, 9)),
		batch:      prom.Histogram("watcherd_sink_batch_events", "Events in one write.", prometheus.ExponentialBuckets(1, 4, 7)),
		errors:     prom.CounterVec("watcherd_sink_errors_total", "Failed or partly failed writes by class: retry, poison, pause, panic, open (the sink could not be opened).", "class"),
		letters:    prom.CounterVec("watcherd_sink_dead_letters_total", "Events that became dead letters, by reason.", "reason"),
		retries:    prom.Counter("watcherd_sink_retries_total", "Events requeued after a failed write."),
		truncated:  prom.Counter("watcherd_sink_truncated_events_total", "Events truncated to the sink's size limit."),
		leftOut:    prom.Counter("watcherd_sink_left_out_events_total", "Events that the sink's body expression leaves out: its value is null."),
		states:     prom.GaugeVec("watcherd_sink_state", "1 for the current state of the sink.", "state"),
		blocked:    prom.Gauge("watcherd_sink_blocked_events", "Events that wait for a retry, or behind an event of the same object that does."),
		stalled:    prom.Gauge("watcherd_sink_stalled", "1 while reading is stopped because too many events wait behind failing objects."),
		limited:    prom.Counter("watcherd_sink_rate_limit_waits_total", "Times that pending events began to wait for the sink's rateLimit."),
		heartbeats: prom.Counter("watcherd_sink_heartbeats_total", "Heartbeats that the sink accepted."),
		onRequest:  prom.Gauge("watcherd_sink_paused_on_request", "1 while the sink is paused by 'watcherd sinks pause'."),
	}
	delivered := prom.CounterVec("watcherd_sink_events_delivered_total", "Events that the sink accepted, by type.", "type")
	for _, t := range eventTypes {
		m.types[t] = delivered.WithLabelValues(string(t))
	}
	for _, class := range [...]string{
		sinks.ClassRetry.String(), sinks.ClassPoison.String(), sinks.ClassPause.String(), classPanic, classOpen,
	} {
		m.errors.WithLabelValues(class)
	}
	for _, reason := range letterReasons {
		m.letters.WithLabelValues(reason)
	}
	for _, s := range states {
		m.states.WithLabelValues(string(s))
	}
	return m, m.group.RegisterAll(
		delivered, m.delivery, m.batch, m.errors, m.letters, m.retries, m.truncated, m.leftOut, m.states, m.blocked, m.stalled, m.limited, m.heartbeats, m.onRequest,
		&queueCollector{
			queue:  cfg.Queue,
			length: prometheus.NewDesc("watcherd_sink_queue_length", "Pending events of the sink.", nil, nil),
			bytes:  prometheus.NewDesc("watcherd_sink_queue_bytes", "Stored bytes of the sink's pending events.", nil, nil),
			oldest: prometheus.NewDesc("watcherd_sink_queue_oldest_age_seconds",
				"Age of the oldest pending event of the sink; 0 for none.", nil, nil),
		},
	)
}

func (m *metrics) written(b *batch) {
	m.delivery.Observe(b.took.Seconds())
	m.batch.Observe(float64(len(b.entries)))
}

func (m *metrics) delivered(t event.Type) {
	if c, ok := m.types[t]; ok {
		c.Inc()
	}
}

// failed counts a write by each class of failure it met.
func (m *metrics) failed(v *verdict) {
	for _, err := range [...]error{v.retryErr, v.refuseErr, v.pauseErr} {
		if err != nil {
			m.errors.WithLabelValues(errorClass(err)).Inc()
		}
	}
}

func errorClass(err error) string {
	if isPanic(err) {
		return classPanic
	}
	class, _ := sinks.Classify(err)
	return class.String()
}

func (m *metrics) setState(s State) {
	if m.state == s {
		return
	}
	if m.state != "" {
		m.states.WithLabelValues(string(m.state)).Set(0)
	}
	m.state = s
	m.states.WithLabelValues(string(s)).Set(1)
}

func set(g prometheus.Gauge, on bool) {
	if on {
		g.Set(1)
	} else {
		g.Set(0)
	}
}

// queueCollector reads the queue's figures at each scrape.
type queueCollector struct {
	queue                 Queue
	length, bytes, oldest *prometheus.Desc
}

func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.length
	ch <- c.bytes
	ch <- c.oldest
}

func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.queue.Stats()
	var age float64
	if !s.OldestTime.IsZero() {
		age = max(time.Since(s.OldestTime).Seconds(), 0)
	}
	ch <- prometheus.MustNewConstMetric(c.length, prometheus.GaugeValue, float64(s.Length))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(s.Bytes))
	ch <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, age)
}
