package file

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	open          prometheus.Gauge
	rotations     prometheus.Counter
	repairs       prometheus.Counter
	rollbacks     prometheus.Counter
	archiveErrors prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	var errs []error
	counter := func(name, help string) prometheus.Counter {
		c, err := sinks.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "watcherd_file_sink_" + name, Help: help}))
		errs = append(errs, err)
		return c
	}
	open, err := sinks.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "watcherd_file_sink_open_files", Help: "Files the sink holds open.",
	}))
	errs = append(errs, err)
	m := &metrics{
		open:          open,
		rotations:     counter("rotations_total", "Files rotated by size or age."),
		repairs:       counter("repairs_total", "Files whose incomplete last line was cut off when they were opened."),
		rollbacks:     counter("rollbacks_total", "Batches rolled back because a write or sync failed."),
		archiveErrors: counter("archive_errors_total", "Failures to compress or delete rotated files."),
	}
	return m, errors.Join(errs...)
}
