package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/pipeline"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// disk is a file system that forgets what was not synced when the power is cut, that
// other programs fill, and that fails.
type disk struct {
	vfs.FS
	mem  *vfs.MemFS
	full atomic.Bool
	fail atomic.Bool

	mu     sync.Mutex
	left   int // guarded by mu; syncs until onSync is called; 0: it is not
	onSync func()
}

// atSync has the n-th sync from now on call f; none does if n is 0. A call that has begun
// is over when it returns.
func (d *disk) atSync(n int, f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.onSync = n, f
}

// counting reports whether a sync is to call something.
func (d *disk) counting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left > 0
}

func (d *disk) synced() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left > 0 {
		if d.left--; d.left == 0 {
			d.onSync()
		}
	}
}

func newDisk(mem *vfs.MemFS) *disk {
	d := &disk{mem: mem}
	d.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink { // of a backup
			time.Sleep(100 * time.Millisecond)
		}
		if op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData && op.Kind != errorfs.OpFileSyncTo {
			return nil
		}
		if d.fail.Load() {
			return syscall.EIO
		}
		d.synced()
		return nil
	}))
	return d
}

// GetDiskUsage implements vfs.FS.
func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	free := uint64(1 << 40)
	if d.full.Load() {
		free = 1 << 20
	}
	return vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 41, UsedBytes: 1<<41 - free}, nil
}

// resolver is discovery: what the cluster serves, as the history says.
type resolver struct {
	changed chan struct{}

	mu  sync.Mutex
	now discovery // guarded by mu
}

// discovery is what it has found.
type discovery struct {
	widgets bool
	beta    bool // the older version of widgets is the preferred one
	routes  bool // of the aggregated API
	away    bool // discovery has not succeeded in this life
}

var (
	pods    = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}
	nodes   = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Kind: "Node"}
	jobs    = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, Kind: "Job", Namespaced: true}
	routes  = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "api.test", Version: "v1", Resource: "routes"}, Kind: "Route"}
	widgets = dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Kind: "Widget", Namespaced: true}
)

func (r *resolver) Changed() <-chan struct{} { return r.changed }

func (r *resolver) Resolve(pattern string) ([]dynamicfactory.Resource, error) {
	return r.Table()(pattern)
}

func (r *resolver) Table() func(string) ([]dynamicfactory.Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.resolve
}

func (r discovery) resolve(pattern string) ([]dynamicfactory.Resource, error) {
	switch {
	case r.away:
		return nil, dynamicfactory.ErrNotReady
	case pattern == "pods":
		return []dynamicfactory.Resource{pods}, nil
	case pattern == "jobs.batch":
		return []dynamicfactory.Resource{jobs}, nil
	case pattern == "nodes":
		return []dynamicfactory.Resource{nodes}, nil
	case pattern == "routes.api.test" && r.routes:
		return []dynamicfactory.Resource{routes}, nil
	case pattern == "widgets.v1beta1.example.com" && r.widgets:
		w := widgets
		w.GVR.Version = "v1beta1"
		return []dynamicfactory.Resource{w}, nil
	case (pattern == "widgets.example.com" || pattern == "*.example.com") && r.widgets:
		w := widgets
		if r.beta {
			w.GVR.Version = "v1beta1"
		}
		return []dynamicfactory.Resource{w}, nil
	}
	return nil, fmt.Errorf("%s: %w", pattern, dynamicfactory.ErrNotServed)
}

// set changes what is served.
func (r *resolver) set(change func()) {
	r.mu.Lock()
	change()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// life is one process of the daemon, from the opening of its store to its end.
type life struct {
	world   *world
	store   *store.Store
	manager *pipeline.Manager
	killed  bool       // guarded by the receivers' locks, all of them
	over    bool       // guarded by them, too; the process has ended by itself
	after   *vfs.MemFS // what the disk held when it was killed

	stop      context.CancelFunc
	stopStore context.CancelFunc
	ended     chan error
	kept      chan error
}

// begin starts a process on the disk. At times it is cut off before it follows the configuration, and
// starts again.
func (w *world) begin() error {
	w.replace(false) // else it ends
	for !slices.Contains(w.without, "kill at start") && w.starts.IntN(4) == 0 {
		n, seed := 1+w.starts.IntN(20), w.starts.Uint64()
		if err := w.start(n, seed); err != nil {
			return err
		}
		w.disk.atSync(0, nil)
		if !w.isKilled() {
			return nil
		}
		w.say("killed at start")
		w.life.kill(w.starts)
	}
	return w.start(0, 0)
}

// start is begin once. It has the process cut off by the n-th sync of the disk; 0: by none.
func (w *world) start(n int, seed uint64) error {
	l := &life{world: w, ended: make(chan error, 1), kept: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(account, nil))
	var err error
	if l.store, err = store.Open("store", store.Options{FS: w.disk, Logger: log, MinFree: minFree}); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	l.manager, err = pipeline.New(pipeline.Config{
		Cluster: "sim", REST: w.cluster.Config(), Resolver: w.resolver, Store: l.store,
		Logger: log, Registerer: prometheus.NewRegistry(), Drain: 2 * time.Second,
	})
	if err != nil {
		return errors.Join(err, l.store.Close())
	}
	w.life = l
	if n > 0 {
		l.killAt(n, seed)
	}
	ctx, stop := context.WithCancel(context.Background())
	storeCtx, stopStore := context.WithCancel(context.Background())
	l.stop, l.stopStore = stop, stopStore
	go func() { l.kept <- l.store.Run(storeCtx) }()
	go func() { l.ended <- l.manager.Run(ctx) }()
	return w.apply()
}

const minFree = 64 << 20

// end stops the process and waits for it.
func (l *life) end() error {
	l.stop()
	err := <-l.ended
	l.lockReceivers()
	l.over = true
	l.unlockReceivers()
	l.stopStore()
	err = errors.Join(err, <-l.kept, l.store.Close())
	l.world.life = nil
	return err
}

func (l *life) lockReceivers() {
	for _, name := range slices.Sorted(maps.Keys(l.world.receivers)) { // in order, as two may be at it
		l.world.receivers[name].mu.Lock()
	}
}

func (l *life) unlockReceivers() {
	for _, r := range l.world.receivers {
		r.mu.Unlock()
	}
}

// cut is the moment of a kill -9 or a power cut. A share of what was not synced
// survives. What the process still does is seen by nobody.
func (l *life) cut(r *rand.Rand) {
	w := l.world
	l.lockReceivers()
	defer l.unlockReceivers()
	if l.killed {
		return
	}
	l.killed = true
	l.after = w.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r})
}

// kill cuts the process off, unless that has happened, and buries it.
func (l *life) kill(r *rand.Rand) {
	w := l.world
	w.disk.atSync(0, nil)
	l.cut(r)
	w.disk.full.Store(false) // lets the dead process come to its end
	_ = l.end()
	w.disk = newDisk(l.after)
}

// killAt has the process cut off by the n-th sync of the disk from now on.
func (l *life) killAt(n int, seed uint64) {
	l.world.disk.atSync(n, func() { l.cut(rand.New(rand.NewPCG(seed, 2))) })
}

// apply has the process follow the present configuration.
func (w *world) apply() error {
	state, err := w.compile()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := w.life.manager.Apply(ctx, state); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	return nil
}

// compile returns the state of the present configuration, which is compiled once.
func (w *world) compile() (*plan.State, error) {
	text := w.config.yaml()
	if state := w.states[text]; state != nil {
		return state, nil
	}
	c, err := config.Parse("sim.yaml", []byte(text), config.Kinds{"sim": func() any { return &sinkConfig{w} }})
	if err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, text)
	}
	w.states[text], err = plan.Compile(c)
	return w.states[text], err
}
