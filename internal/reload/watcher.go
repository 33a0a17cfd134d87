package reload

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
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

// Config is what a Watcher needs. All but First, Running and Interval is required.
type Config struct {
	// Path of the configuration file.
	Path string
	// Running is the state that runs when Run is called; nil: none, so what the
	// file holds is applied.
	Running *plan.State
	// First is the state whose keys are in force that take effect at a restart; nil: Running.
	First *plan.State
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
	Running     *plan.State // nil before the first
	Hash        string      // of the configuration that runs; "" before the first
	LastSuccess time.Time   // when the file last was what runs, freshly applied or found so
	LastAttempt time.Time   // when the file was last read with an outcome
	LastError   error       // why the file is not what runs; nil if it is

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
		cfg: cfg, log: cfg.Logger.With("config", cfg.Path), metrics: newMetrics(), timing: timing,
		trigger: make(chan struct{}, 1), watchDir: watchFolder,
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

// Status returns the state of the file as of the last look at it, and of what runs.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Read reads the file, at most config.MaxSize+1 bytes.
func (w *Watcher) Read() ([]byte, error) {
	content := read(w.cfg.Path)
	return content.data, content.err
}

func (w *Watcher) setStatus(change func(s *Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}

// follower is the state of one Run; one goroutine owns it.
type follower struct {
	*Watcher

	first   *plan.State // what ran at the start, whose fixed keys are in force
	running *plan.State

	handled    fileContent // the content whose outcome is known
	hasHandled bool
	inForce    fileContent // the content that runs, once it was read
	hasInForce bool

	forced   bool // Trigger was called
	retry    bool // the last apply failed, and nothing has changed since
	retryNow bool // the poll is due for another attempt

	pending   fileContent // content that has to prove stable
	settling  bool        // settle will fire
	settle    *time.Timer // for pending
	nextApply time.Time
}

// Run follows the file until ctx is done, and returns nil. Call it once.
func (w *Watcher) Run(ctx context.Context) error {
	unregister, err := w.metrics.register(w.cfg.Registerer)
	if err != nil {
		return err
	}
	defer unregister()

	f := &follower{Watcher: w, settle: time.NewTimer(time.Hour)}
	f.settle.Stop()
	defer f.settle.Stop()
	if w.cfg.Running != nil {
		f.first = cmp.Or(w.cfg.First, w.cfg.Running)
		f.succeeded(w.cfg.Running)
		f.warn(w.cfg.Running)
		f.warnOfRestart(nil)
	}
	if ownMount(w.cfg.Path) {
		w.log.Warn("config file is a mount point: its replacement outside is not detected; mount its folder instead")
	}
	folder, err := w.watchDir(filepath.Dir(w.cfg.Path))
	if err != nil {
		w.log.Warn("no notifications for the config file; polling", "every", w.timing.poll, "error", err)
	}
	defer folder.close()
	return f.loop(ctx, folder)
}

func (f *follower) loop(ctx context.Context, folder *folder) error {
	poll := time.NewTicker(f.timing.poll)
	defer poll.Stop()
	f.look()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-folder.events():
			if ok && concerns(e.Name, f.cfg.Path) {
				f.look()
			}
		case err := <-folder.losses():
			f.log.Debug("notifications for the config file lost; reading it", "error", err)
			f.look()
		case <-poll.C:
			folder.renew()
			f.retryNow = f.retry
			f.look()
		case <-f.trigger:
			f.forced = true
			f.look()
		case <-f.settle.C:
			f.settling = false
			f.settled(ctx)
		}
	}
}

// look starts to settle content whose outcome is not known.
func (f *follower) look() {
	if f.settling {
		return // it will be read then
	}
	now := read(f.cfg.Path)
	if f.hasHandled && now.same(f.handled) && !f.forced && !f.retryNow {
		return
	}
	f.await(now, f.settleTime(now))
}

// settleTime is how long content must stay the same. What does not end with a line break may be a half of the file, which may be valid:
// without the last items of a list.
func (f *follower) settleTime(s fileContent) time.Duration {
	if n := len(s.data); n > 0 && s.data[n-1] != '\n' {
		return 10 * f.timing.settle
	}
	return f.timing.settle
}

func (f *follower) await(s fileContent, d time.Duration) {
	f.pending, f.settling = s, true
	f.settle.Reset(d)
}

// settled takes the content as complete if it has stayed the same.
func (f *follower) settled(ctx context.Context) {
	now := read(f.cfg.Path)
	if !now.same(f.pending) {
		f.await(now, f.settleTime(now))
		return
	}
	if wait := time.Until(f.nextApply); wait > 0 {
		f.await(now, wait)
		return
	}
	forced := f.forced
	f.forced, f.retryNow = false, false
	f.handled, f.hasHandled = now, true
	f.handle(ctx, now, forced)
}

// handle decides what stable content means.
func (f *follower) handle(ctx context.Context, s fileContent, forced bool) {
	if s.err != nil {
		f.rejected(resultUnreadable, s.err)
		return
	}
	if f.hasInForce && s.same(f.inForce) && !forced && !f.retry {
		f.restored()
		return
	}
	next, err := f.cfg.Load(s.data)
	if err != nil {
		f.retry = false
		f.rejected(resultInvalid, err)
		return
	}
	if f.running != nil && next.Hash == f.running.Hash && !forced && !f.retry {
		f.inForce, f.hasInForce = s, true
		f.restored()
		return
	}
	f.apply(ctx, s, next)
}

func (f *follower) apply(ctx context.Context, s fileContent, next *plan.State) {
	diff := plan.Diff(f.running, next)
	f.nextApply = time.Now().Add(f.timing.apply)
	if err := f.cfg.Apply(ctx, next); err != nil {
		if ctx.Err() != nil {
			return // the end, not an outcome
		}
		f.retry = true
		f.rejected(resultFailed, err)
		return
	}
	f.retry = false
	f.inForce, f.hasInForce = s, true
	if f.first == nil {
		f.first = next
	}
	f.metrics.count(resultSuccess)
	known := f.Status().NeedsRestart
	f.succeeded(next)
	f.log.Info("configuration applied", "hash", next.Hash, "plan", diff.Line())
	f.warn(next)
	f.warnOfRestart(known)
}

// warnOfRestart logs the keys that take effect at a restart, unless they are known.
func (f *follower) warnOfRestart(known []string) {
	if keys := f.Status().NeedsRestart; len(keys) > 0 && !slices.Equal(keys, known) {
		f.log.Warn("some changes take effect at a restart", "keys", keys)
	}
}

// warn logs what the state allows and looks like a mistake, and the secrets that cannot be
// read. The status has only the former: a sink that needs a secret reports it there.
func (f *follower) warn(s *plan.State) {
	for _, warning := range slices.Concat(s.Warnings, s.Unavailable) {
		f.log.Warn("configuration warning", "problem", warning)
	}
}
