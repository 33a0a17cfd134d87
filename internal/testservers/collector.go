package testservers

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// CollectorSpec is what a Collector is started with.
type CollectorSpec struct {
	Dir  string // of what it accepts; "": one of the test
	Port int    // 0: any
	Cert string // PEM; TLS if not empty
	Key  string
}

// Collector is the OTLP receiver of the OpenTelemetry Collector, over HTTP. Its methods may be called from any goroutine, one at a time.
type Collector struct {
	*process
	dir string
}

// LogRecord is a record that a Collector has accepted.
type LogRecord struct {
	Resource, Attributes map[string]any
	EventName, Severity  string
	Time, Observed       int64
	Body                 any
}

// StartCollector starts a receiver that is killed at the end of the test.
func StartCollector(t testing.TB, spec CollectorSpec) *Collector {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	return &Collector{dir: spec.Dir, process: run(t, playground.Collector(), func(port int) any {
		if spec.Port == 0 {
			spec.Port = port
		}
		return spec
	})}
}

// Accepted are the records so far, in their order.
func (c *Collector) Accepted() []LogRecord { return accepted[LogRecord](c.t, c.dir) }

// Refuse makes it refuse every request with a record that holds the text; "" ends that.
func (c *Collector) Refuse(text string) { refuse(c.t, c.dir, text) }
