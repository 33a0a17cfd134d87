package store

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// metrics are the store's own; what concerns a sink's queue is exported by its
// worker from Queue.Stats.
type metrics struct {
	commitSeconds prometheus.Histogram
	groupSize     prometheus.Histogram
	commits       prometheus.Counter
	commitErrors  prometheus.Counter
	unreadable    prometheus.Counter
	deletions     *prometheus.CounterVec
	expired       prometheus.Counter
	repaired      prometheus.Counter
	collectors    []prometheus.Collector
	group         *prom.Group
}

func newMetrics(s *Store) *metrics {
	name := func(n string) string { return prometheus.BuildFQName("watcherd", "store", n) }
	m := &metrics{
		group:         prom.NewGroup(s.opts.Registerer),
		commitSeconds: prom.Histogram(name("commit_duration_seconds"), "Duration of a commit, fsync included.", prometheus.ExponentialBuckets(0.0005, 2, 15)),
		groupSize:     prom.Histogram(name("commit_group_size"), "Records per commit.", prometheus.ExponentialBuckets(1, 2, 11)),
		commits:       prom.Counter(name("commits_total"), "Successful commits."),
		commitErrors:  prom.Counter(name("commit_errors_total"), "Failed commits; the first one ends the process."),
		unreadable:    prom.Counter(name("unreadable_records_total"), "Queue entries whose record is damaged; each becomes a dead letter."),
		deletions:     prom.CounterVec(name("retention_deletions_total"), "Delivered records deleted from the log, by reason.", "reason"),
		expired:       prom.Counter(name("dead_letters_expired_total"), "Dead letters deleted at their maximum age."),
		repaired:      prom.Counter(name("repaired_blocks_total"), "Damaged blocks removed from tables."),
	}
	for _, reason := range []string{deletedAge, deletedBytes, deletedBudget} {
		m.deletions.WithLabelValues(reason)
	}
	gauge := func(n, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name(n), Help: help}, f)
	}
	m.collectors = []prometheus.Collector{
		m.commitSeconds, m.groupSize, m.commits, m.commitErrors, m.unreadable, m.deletions, m.expired, m.repaired,
		heldCollector{s},
		gauge("bytes", "Size of the store on disk.", func() float64 { return float64(s.Health().Bytes) }),
		gauge("free_bytes", "Free space of the store's disk; -1 if unknown.", func() float64 { return float64(s.Health().DiskFree) }),
		gauge("ingest_paused", "1 while ingest is paused by the budget or the disk.", func() float64 {
			if s.Health().Paused {
				return 1
			}
			return 0
		}),
		gauge("log_records", "Records in the event log.", func() float64 { return float64(s.LogStats().Records) }),
		gauge("log_bytes", "Bytes of payload in the event log.", func() float64 { return float64(s.LogStats().Bytes) }),
	}
	return m
}

func (m *metrics) committed(d time.Duration, records int, err error) {
	if err != nil {
		m.commitErrors.Inc()
		return
	}
	m.commits.Inc()
	m.commitSeconds.Observe(d.Seconds())
	if records > 0 {
		m.groupSize.Observe(float64(records))
	}
}

func (m *metrics) deleted(reason string, gone layout.Counter) {
	m.deletions.WithLabelValues(reason).Add(float64(gone.Count))
}

func (s *Store) register() error {
	s.metrics = newMetrics(s)
	if err := s.metrics.group.RegisterAll(s.metrics.collectors...); err != nil {
		return fmt.Errorf("register metrics of the store: %w", err)
	}
	return nil
}

// heldCollector shows what of the log each queue holds back, those of sinks that
// were removed from the configuration included.
type heldCollector struct{ s *Store }

var (
	heldBytesDesc = prometheus.NewDesc("watcherd_store_held_bytes",
		"Bytes of the event log that are kept because of the sink's pending events.", []string{"sink"}, nil)
	heldSinceDesc = prometheus.NewDesc("watcherd_store_held_since_timestamp_seconds",
		"Time of the oldest event that is kept because of the sink; 0 for none.", []string{"sink"}, nil)
)

func (c heldCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- heldBytesDesc
	ch <- heldSinceDesc
}

func (c heldCollector) Collect(ch chan<- prometheus.Metric) {
	for _, q := range c.s.sinks.all() {
		bytes, since := q.holds()
		seconds := 0.0
		if !since.IsZero() {
			seconds = float64(since.UnixMilli()) / 1e3
		}
		ch <- prometheus.MustNewConstMetric(heldBytesDesc, prometheus.GaugeValue, float64(bytes), q.name)
		ch <- prometheus.MustNewConstMetric(heldSinceDesc, prometheus.GaugeValue, seconds, q.name)
	}
}
