package reload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// content is a configuration whose one watch has the name.
func content(name string) string {
	return "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nwatches:\n- name: " + name + "\n  resources: [pods]\n"
}

func compiled(data []byte) (*plan.State, error) {
	c, err := config.Parse("watcherd.yaml", data, nil)
	if err != nil {
		return nil, fmt.Errorf("the file is no good: %w", err)
	}
	return plan.Compile(c)
}

// daemon stands for what runs the configurations. It notes what it was given.
type daemon struct {
	t    *testing.T
	file string

	mu      sync.Mutex
	loads   int
	applied []string // names of the watches
	times   []time.Time
	refuse  error // what Apply answers
	log     testkit.Log

	registry *prometheus.Registry
	watcher  *Watcher
}

// newDaemon makes a folder with a configuration called a, and a watcher of it that
// is told that a runs.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{t: t, file: filepath.Join(t.TempDir(), "watcherd.yaml"), registry: prometheus.NewRegistry()}
	d.write(content("a"))
	running, err := compiled([]byte(content("a")))
	if err != nil {
		t.Fatal(err)
	}
	d.watcher = New(Config{
		Path: d.file, Running: running, Load: d.load, Apply: d.apply,
		Logger:     slog.New(slog.NewTextHandler(&d.log, nil)),
		Registerer: d.registry,
	})
	return d
}

func (d *daemon) load(data []byte) (*plan.State, error) {
	d.mu.Lock()
	d.loads++
	d.mu.Unlock()
	return compiled(data)
}

func (d *daemon) apply(ctx context.Context, s *plan.State) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.times = append(d.times, time.Now())
	d.applied = append(d.applied, s.Watches[0].Name)
	if d.refuse != nil {
		return d.refuse
	}
	return ctx.Err()
}

func (d *daemon) setRefuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

func (d *daemon) got() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.applied)
}

// logged counts the lines of the log that contain the text.
func (d *daemon) logged(text string) int { return len(d.log.Like(text)) }

// run starts the watcher; the function it returns ends it and waits.
func (d *daemon) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.watcher.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Errorf("Run: %v", err)
		}
	})
}

func (d *daemon) write(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) want(names ...string) {
	d.t.Helper()
	if got := d.got(); !slices.Equal(got, names) {
		d.t.Errorf("applied %v, want %v", got, names)
	}
}

// successful is what the gauge says, which must agree with Status.
func (d *daemon) successful() bool {
	d.t.Helper()
	n, ok := testutil.ToFloat64(d.watcher.metrics.successful), d.watcher.Status().LastError == nil
	if ok != (n == 1) {
		d.t.Errorf("the metric says %v, the status %v", n, d.watcher.Status().LastError)
	}
	return ok
}

func (d *daemon) reloads(r result) int {
	return int(testutil.ToFloat64(d.watcher.metrics.reloads.WithLabelValues(string(r))))
}

var errRefused = errors.New("the pipeline refuses")
