package webhook

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	responses *prometheus.CounterVec
	reloads   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	responses, err1 := sinks.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watcherd_webhook_sink_responses_total", Help: "Responses by HTTP status; 0 for no response.",
	}, []string{"code"}))
	reloads, err2 := sinks.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "watcherd_webhook_sink_tls_reloads_total", Help: "Reloads of the TLS files by result.",
	}, []string{"result"}))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	for _, result := range []string{"succeeded", "failed"} {
		reloads.WithLabelValues(result)
	}
	return &metrics{responses: responses, reloads: reloads}, nil
}

func (m *metrics) reload(result string) { m.reloads.WithLabelValues(result).Inc() }

// response counts an answer; a status is a small number, so series are bounded.
func (m *metrics) response(status int) { m.responses.WithLabelValues(strconv.Itoa(status)).Inc() }
