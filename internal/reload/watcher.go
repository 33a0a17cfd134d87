package reload

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/plan"
)

// timing is how soon a Watcher acts.
type timing struct {
	settle time.Duration // how long a file must stay the same to be taken as complete
	poll   time.Duration // how often the file is looked at without being notified
	apply  time.Duration // the least time from one apply to the next
}

// usual is the timing of every Watcher outside of tests.
func usual() timing {
	return timing{settle: 400 * time.Millisecond, poll: 30 * time.Second, apply: 5 * time.Second}
}

// Config is what a Watcher needs. All but Running is required.
type Config struct {
	// Path of the configuration file.
	Path string
	// Running is the state that runs when Run is called; nil: none, so what the
	// file holds is applied.
	Running *plan.State
	// Load reads and compiles a file's content, at most config.MaxSize+1 bytes. It
	// touches nothing.
	Load func(data []byte) (*plan.State, error)
	// Apply makes the daemon run the state. After an error the old one still runs, or
	// ctx is done. It is called by one goroutine, and repeatedly after an error.
	Apply func(ctx context.Context, next *plan.State) error
	// Interval is the least time from one apply to the next; 5 s if 0.
	Interval time.Duration

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Watcher follows one configuration file. Its methods are safe for concurrent use.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	timing  timing
	trigger chan struct{}

	// watchDir starts the notifications for a folder.
	watchDir func(dir string) (*folder, error)

	mu     sync.Mutex // guards status
	status Status
}

// Status is the state of the configuration file. Its slices are shared: read only.
type Status struct {
	Hash        string    // of the configuration that runs; "" before the first
	LastSuccess time.Time // when the file last was what runs, freshly applied or found so
	LastAttempt time.Time // when the file was last read with an outcome
	LastError   error     // why the file is not what runs; nil if it is

	// NeedsRestart are key paths whose new values take effect at a restart.
	NeedsRestart []string
	// Warnings are what runs, is allowed, and looks like a mistake.
	Warnings []string
}

// New makes a Watcher that does nothing until Run.
func New(cfg Config) *Watcher {
	timing := usual()
	if cfg.Interval > 0 {
		timing.apply = cfg.Interval
	}
	return &Watcher{
		cfg:      cfg,
		log:      cfg.Logger.With("config", cfg.Path),
		metrics:  newMetrics(),
		timing:   timing,
		trigger:  make(chan struct{}, 1),
		watchDir: watchFolder,
	}
}

// Trigger asks for the file to be read and applied soon even if it looks
// unchanged. It does not block.
func (w *Watcher) Trigger() {
	select {
	case w.trigger <- struct{}{}:
	default: // one is asked for already
	}
}

// Status compares the file with the active configuration.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

func (w *Watcher) setStatus(change func(s *Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}
