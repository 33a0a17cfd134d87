package reload

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/prom"
)

func (f *follower) succeeded(next *plan.State) {
	f.running = next
	f.metrics.succeeded(next.Hash, time.Now())
	now := time.Now()
	status := Status{Running: next, Hash: next.Hash, LastSuccess: now, LastAttempt: now, NeedsRestart: plan.Diff(f.first, next).NeedsRestart}
	for _, warning := range next.Warnings {
		status.Warnings = append(status.Warnings, warning.Error())
	}
	f.setStatus(func(s *Status) { *s = status })
}

// restored records that the file equals the active configuration again.
func (f *follower) restored() {
	f.retry = false
	if f.Status().LastError != nil {
		f.log.Info("config file matches the active configuration again")
	}
	f.succeeded(f.running)
}

// rejected records that the file could not be applied, and logs it unless it was the
// last thing said.
func (f *follower) rejected(r result, err error) {
	f.metrics.count(r)
	f.metrics.successful.Set(0)
	if before := f.Status().LastError; before == nil || before.Error() != err.Error() {
		f.complain(r, err)
	}
	f.setStatus(func(s *Status) { s.LastAttempt, s.LastError = time.Now(), err })
}

// complain logs why the file is not what runs: in one line, or in one for each
// problem if there are several.
func (f *follower) complain(r result, err error) {
	switch r {
	case resultUnreadable:
		f.log.Error("config file not readable; the active configuration stays", "error", err)
	case resultFailed:
		f.log.Error("configuration could not be applied; the previous one stays active", "error", err, "retry", f.timing.poll)
	default:
		problems, ok := errors.AsType[*config.Errors](err)
		if !ok {
			f.log.Error("config file is not valid; the active configuration stays", "error", err)
			return
		}
		if len(problems.List) == 1 {
			f.log.Error("config file is not valid; the active configuration stays", "problem", problems.List[0])
			return
		}
		f.log.Error("config file is not valid; the active configuration stays", "problems", len(problems.List))
		for _, p := range problems.List {
			f.log.Error("config file", "problem", p)
		}
	}
}

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
	hash       activeHash
	reloads    *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		successful: prom.Gauge("watcherd_config_last_reload_successful", "1 if the last reload succeeded, 0 if it failed."),
		successAt:  prom.Gauge("watcherd_config_last_reload_success_timestamp_seconds", "Time of the last successful reload."),
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
	return group.Close, group.RegisterAll(m.successful, m.successAt, &m.hash, m.reloads)
}

func (m *metrics) succeeded(hash string, at time.Time) {
	m.successful.Set(1)
	m.successAt.Set(float64(at.UnixMilli()) / 1000)
	m.hash.Store(&hash)
}

// activeHash is watcherd_config_hash: one series in every scrape once a
// configuration runs, which a GaugeVec that is reset and set again isn't.
type activeHash struct{ atomic.Pointer[string] }

var hashDesc = prometheus.NewDesc("watcherd_config_hash", "1 for the hash of the active configuration.", []string{"hash"}, nil)

func (h *activeHash) Describe(ch chan<- *prometheus.Desc) { ch <- hashDesc }

func (h *activeHash) Collect(ch chan<- prometheus.Metric) {
	if hash := h.Load(); hash != nil {
		ch <- prometheus.MustNewConstMetric(hashDesc, prometheus.GaugeValue, 1, *hash)
	}
}
