package watcherd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/atapi"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/pipeline"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/reload"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// contactTimeout is how long the first state waits for the API server to say what it
// serves. After that the daemon starts without: sinks deliver what is stored, and
// watches start when discovery succeeds.
const contactTimeout = 5 * time.Second

// Options are the inputs of Run in addition to the configuration file.
type Options struct {
	// ConfigFile is the path of the configuration, which is watched for changes; required.
	ConfigFile string
	// Policy bounds what the configuration may ask for, at the start and at every reload.
	Policy config.Policy
	// State is the result of [LoadWithin] for ConfigFile and Policy, which is for one Run; if
	// nil, Run loads the file.
	State *State
	// REST is the connection to the API server. Its rate limits are replaced by the
	// configuration's. Required.
	REST *rest.Config
	// ClusterName is the name of the cluster if the configuration gives none;
	// the kubeconfig's name for it, as a rule.
	ClusterName string
	// Kinds are the kinds of sinks; required. kinds.Builtin has those of the program.
	Kinds sinks.Kinds
	// Journal keeps the journal of a configuration with store.journal, which is not valid without.
	Journal Journal
	// FirstReplica is the host of the replica that begins a journal where neither the stream nor its store has anything;
	// "" for any. One whose store has records begins it in any case.
	FirstReplica string
	// Logger takes the daemon's log; required.
	Logger *slog.Logger
	// Registerer takes the daemon's metrics until Run returns; a new registry if nil. Two Runs at a time share one if their
	// configurations have feeds of different names; the metrics of the process then end with the Run that began first.
	Registerer prometheus.Registerer
	// Gatherer is what /metrics serves; Registerer if nil, which must then be a
	// prometheus.Gatherer too, as a registry is.
	Gatherer prometheus.Gatherer
	// Stdout is where stdout sinks write; required if there are any.
	Stdout io.Writer
	// ShutdownTimeout bounds the end of the sinks once ctx is done; 20 s if 0. Deliveries in
	// flight have half of it to finish, and are then cancelled and requeued.
	ShutdownTimeout time.Duration
	// InformerName names the daemon's informers in the metrics of [ExportClientGo];
	// unique in the process, "" for none.
	InformerName string
	// Version is the daemon's version in its status and metrics.
	Version string
	// ReloadInterval is the least time from one reload to the next; 5 s if 0.
	ReloadInterval time.Duration
	// Reload, if not nil, asks for a reload with each value, as SIGHUP does.
	Reload <-chan struct{}
	// Foreground, if not nil, runs in a goroutine of Run's once the store is open. When it
	// returns, Run ends as if ctx was done; its error is Run's.
	Foreground func(ctx context.Context, d Local) error
}

// Local is the daemon for a part of its own process.
type Local struct {
	// API answers what the admin listener answers, at http://localhost, whether there is a
	// listener or not.
	API http.RoundTripper
	// CatchUp returns when every change is recorded that the API server has made, of the
	// resources whose first list is recorded or under way. It waits for watches that have not started yet, and for those that
	// are down.
	CatchUp func(context.Context) error
}

func (o *Options) setDefaults() error {
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Gatherer == nil {
		var ok bool
		if o.Gatherer, ok = o.Registerer.(prometheus.Gatherer); !ok {
			return errors.New("options: Gatherer is required with a Registerer that is not a Gatherer")
		}
	}
	switch {
	case o.ConfigFile == "":
		return errors.New("options: ConfigFile is required")
	case o.REST == nil:
		return errors.New("options: REST is required")
	case o.Kinds == nil:
		return errors.New("options: Kinds is required, for example kinds.Builtin() of pkg/watcherd/kinds")
	case o.Logger == nil:
		return errors.New("options: Logger is required, for example slog.Default()")
	}
	o.ShutdownTimeout = cmp.Or(o.ShutdownTimeout, 20*time.Second)
	return nil
}

// Run runs the daemon until ctx is done, which is a clean end and returns nil, or
// until it cannot keep its promises any more. [ErrConfig], [ErrStoreOpen] and
// [ErrStore] distinguish the causes that need different actions. Any other error is that of
// Options.Foreground, or one that a person must correct: a port is taken, or the API server is
// another cluster than the store's, which may also show later. An unavailable API server is not an error.
func Run(ctx context.Context, o Options) error { return run(ctx, o, openStore) }

// opener opens a store without a journal.
type opener func(*plan.State, Options) (*store.Store, error)

// run is Run with a way to open the store.
func run(ctx context.Context, o Options, open opener) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	group := prom.NewGroup(o.Registerer)
	defer group.Close()
	st := o.State
	if st == nil {
		var err error
		if st, err = LoadWithin(o.ConfigFile, o.Kinds, o.Policy); err != nil {
			return err
		}
	}
	o.Registerer = group
	if st.Feed != "" {
		o.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"feed": st.Feed}, group)
	}
	cluster := cmp.Or(st.Cluster, o.ClusterName)
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	o.REST = dynamicfactory.Guarded(o.REST)
	d := &daemon{
		Options: o, cluster: cluster, feed: st.Feed, process: group, dir: dir, open: open, log: o.Logger,
		spool: filepath.Join(st.Store.Path, spoolDir),
	}
	err = d.run(ctx, st)
	if d.member != nil {
		defer d.member.Close()
	}
	if d.store == nil {
		return err
	}
	if cerr := d.store.Close(); cerr != nil && !errors.Is(err, ErrStore) {
		err = errors.Join(err, fmt.Errorf("%w: close: %w", ErrStore, cerr))
	}
	if err == nil {
		d.log.Info("watcherd stopped")
	}
	return err
}

// storeOptions are those of the store.
func storeOptions(st *plan.State, o Options) store.Options {
	return store.Options{
		MaxBytes: st.Store.MaxBytes, MinFree: st.Store.MinFree,
		RetentionMaxAge: st.Store.RetentionMaxAge, RetentionMaxBytes: st.Store.RetentionMaxBytes,
		DeadLetterMaxAge: st.Store.DeadLetterMaxAge, DeadLetterMaxBytes: st.Store.DeadLetterMaxBytes,
		Logger: o.Logger, Registerer: o.Registerer,
	}
}

func openStore(st *plan.State, o Options) (*store.Store, error) {
	if err := makePrivate(st.Store.Path, o.Logger); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	opened, err := store.Open(st.Store.Path, storeOptions(st, o))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	return opened, nil
}

// redactionKey reads the configured key of the hashes, nil if there is none.
func redactionKey(from sinks.Secret) ([]byte, error) {
	if from.IsZero() {
		return nil, nil
	}
	key, err := from.Value()
	if err == nil && len(key) < redact.MinKey {
		err = fmt.Errorf("it has %d bytes, the minimum is %d", len(key), redact.MinKey)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: store.redactionKey: %w", ErrConfig, err)
	}
	return []byte(key), nil
}

// makePrivate takes the rights of others away from a folder that exists: the store makes its
// own with mode 0700, and holds states and the key of the redaction hashes.
func makePrivate(path string, log *slog.Logger) error {
	const others = 0o077
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if !info.IsDir() || mode&others == 0 {
		return nil
	}
	if err := os.Chmod(path, mode&^others); err != nil {
		return fmt.Errorf("others may use the folder %s, whose mode is %04o: change it to 0700, or set store.path to a new folder below it: %w", path, mode, err)
	}
	log.Info("the folder of the store was open to others; it is private now", "path", path, "mode", fmt.Sprintf("%04o", mode))
	return nil
}

// spoolDir is the folder, below the store's path, of what watches bring while their
// lists are read.
const spoolDir = "spool"

// emptyDir makes a folder that has nothing of an earlier process in it.
func emptyDir(path string) error {
	err := os.RemoveAll(path)
	if err == nil {
		err = os.Mkdir(path, 0o700)
	}
	if err != nil {
		return fmt.Errorf("%w: empty the spool folder: %w", ErrStoreOpen, err)
	}
	return nil
}

type daemon struct {
	Options
	cluster string
	feed    string
	process prometheus.Registerer // without the feed's label
	dir     string
	spool   string
	open    opener
	store   *store.Store   // nil until it is open
	member  replica.Member // nil without a journal
	// following watches the configuration file of a replica that follows, or did; nil before.
	following atomic.Pointer[reload.Watcher]
	uid       atomic.Pointer[string] // of the cluster; nil until findCluster knows it
	local     *admin.Local           // for Foreground; nil without one
	log       *slog.Logger
}

// run starts the parts in the order in which they need each other and waits for
// all of them. The first that fails ends the others. The admin listener is the first: a
// store is checked when it is opened, which takes a while after a crash.
//
// The order of the end: with ctx, the reload watcher and the resolver stop, and the
// admin listener ends its event streams and commands and is no longer ready; the
// pipeline stops its informers, commits what they delivered and drains its sinks
// (see pipeline.Manager.Run); the admin listener, which shows all that, and the store's
// upkeep continue until then, and the store is closed last.
func (d *daemon) run(ctx context.Context, st *plan.State) error {
	if err := registerProcess(d.process, d.Version); err != nil {
		return err
	}
	requests, err := newRequestMetrics(d.Registerer)
	if err != nil {
		return err
	}
	kube := rest.CopyConfig(d.REST)
	kube.QPS, kube.Burst, kube.RateLimiter = st.KubeAPI.QPS, st.KubeAPI.Burst, nil
	kube.Wrap(requests.wrap)

	group, gctx := errgroup.WithContext(ctx)
	if d.Foreground != nil {
		d.local = admin.NewLocal()
	}
	if st.Store.Journal != nil {
		if d.member, err = d.newMember(st); err != nil {
			return err
		}
	}
	p := &parts{d: d, st: st, started: time.Now(), stopping: gctx.Done(), opened: make(chan struct{})}
	server, err := d.listenAdmin(ctx, p)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // it ended during the lookup of a name
		}
		return err
	}
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	keepers, kctx := errgroup.WithContext(background)
	keepers.Go(func() error { return server.Run(kctx) })

	if st, err = d.openOrFollow(ctx, st); err == nil {
		err = emptyDir(d.spool)
	}
	if err == nil {
		err = d.build(p, kube, st)
	}
	if err != nil {
		stopBackground()
		err = errors.Join(err, keepers.Wait())
		if d.member != nil && errors.Is(err, context.Canceled) && ctx.Err() != nil {
			d.log.Info("watcherd stopped")
			return nil // it followed until then
		}
		return err
	}
	close(p.opened)
	keepers.Go(func() error { return d.store.Run(kctx) })
	if d.member != nil {
		keepers.Go(func() error { return d.member.Run(kctx) })
	}
	ended, end := context.WithCancel(context.WithoutCancel(ctx))
	var bound sync.WaitGroup
	bound.Go(func() { d.boundTheEnd(gctx, ended) })
	if d.Foreground != nil {
		group.Go(func() error {
			if err := d.Foreground(gctx, Local{d.local.Transport(), p.manager.CatchUp}); err != nil {
				return err
			}
			return errForeground
		})
	}

	group.Go(func() error { return p.resolver.Run(gctx) })
	group.Go(func() error { return p.manager.Run(gctx) })
	group.Go(func() error {
		if err := d.start(gctx, p.resolver, p.manager, st); err != nil {
			return err
		}
		return p.watcher.Run(gctx)
	})
	group.Go(func() error { return d.forwardReloads(gctx, p.watcher) })
	group.Go(func() error {
		select {
		case <-gctx.Done():
			return nil
		case <-kctx.Done():
			return context.Cause(kctx) // a keeper has failed
		}
	})
	err = group.Wait()
	stopBackground()
	err = errors.Join(err, keepers.Wait())
	end()
	bound.Wait()
	return d.verdict(ctx, err)
}

// afterDrain is how long the store has at the end for what deliveries have left.
const afterDrain = 2 * time.Second

// boundTheEnd stops waiting for a journal that does not answer, and for a disk that has no room, when the daemon ends: what they
// have not taken is read and delivered again.
func (d *daemon) boundTheEnd(ending, ended context.Context) {
	select {
	case <-ending.Done():
	case <-ended.Done():
		return
	}
	timer := time.NewTimer(d.ShutdownTimeout + afterDrain)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-timer.C:
			if d.member != nil && first {
				d.log.Warn("the daemon does not wait for the journal any longer; what that has not taken is read and delivered again")
			}
			d.store.StopAppends()
			timer.Reset(afterDrain) // for writes that begin to wait later
		case <-ended.Done():
			return
		}
	}
}

// openOrFollow opens the store. With a journal, it returns when this replica leads, with the configuration as it is
// then.
func (d *daemon) openOrFollow(ctx context.Context, st *plan.State) (_ *plan.State, err error) {
	if d.member == nil {
		d.store, err = d.open(st, d.Options)
		return st, err
	}
	valid := st // the last configuration that was: what the leader runs
	w := d.watchConfig(st, st, func(_ context.Context, next *plan.State) error { valid = next; return nil })
	d.following.Store(w)
	group, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group.Go(func() error { return w.Run(ctx) })
	group.Go(func() error { return d.forwardReloads(ctx, w) })
	group.Go(func() error { return d.findCluster(ctx) })
	d.store, err = d.member.Lead(ctx)
	stop()
	if err = errors.Join(err, group.Wait()); err != nil {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrStoreOpen) {
			err = fmt.Errorf("%w: %w", ErrStoreOpen, err)
		}
		return st, err
	}
	now, err := LoadWithin(d.ConfigFile, d.Kinds, d.Policy)
	if err != nil {
		d.log.Warn("the configuration was changed and is not valid; the last valid one is used", "error", err)
		return valid, nil
	}
	return now, nil
}

// watchConfig makes what follows the configuration file; running is the state that runs, first the one of the start.
func (d *daemon) watchConfig(running, first *plan.State, apply func(context.Context, *plan.State) error) *reload.Watcher {
	return reload.New(reload.Config{
		Path: d.ConfigFile, Running: running, First: first,
		Load:     func(data []byte) (*plan.State, error) { return parse(d.ConfigFile, data, d.Kinds, d.Policy) },
		Apply:    apply,
		Interval: d.ReloadInterval,
		Logger:   d.log, Registerer: d.Registerer,
	})
}

// findCluster asks the API server which cluster it is, until it answers or ctx is done. It may not be allowed to.
func (d *daemon) findCluster(ctx context.Context) error {
	const pause = 10 * time.Second
	client, err := dynamic.NewForConfig(d.REST)
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	ask := func() {
		ctx, cancel := context.WithTimeout(ctx, contactTimeout)
		defer cancel()
		uid, err := pipeline.ClusterUID(ctx, client)
		if err != nil {
			d.log.Debug("it is not known whether the journal is of this cluster", "error", err)
		} else if uid != "" {
			d.uid.Store(&uid)
		}
	}
	for ended := false; !ended && d.uid.Load() == nil; {
		ask()
		ended = wait.For(ctx, pause) != nil
	}
	return nil
}

// accept is a [replica.Accept]. A leader whose store is of another cluster ends, too, but only after its sinks have begun to
// deliver what that has recorded.
func (d *daemon) accept(meta func(string) ([]byte, bool, error)) error {
	uid := d.uid.Load()
	if uid == nil {
		return nil
	}
	known, ok, err := meta(ledger.ClusterMeta)
	if err != nil || !ok || string(known) == *uid {
		return nil //nolint:nilerr // a leader meets the damage
	}
	return fmt.Errorf("%w: its store was filled from the cluster whose kube-system namespace has uid %s, this one's has %s; "+
		"give each cluster a stream of its own (store.journal.stream), and remove the store of this replica, or correct the kubeconfig", replica.ErrForeign, known, *uid)
}

func (d *daemon) newMember(st *plan.State) (replica.Member, error) {
	if d.Journal == nil {
		return nil, fmt.Errorf("%w: store.journal: this program keeps no journal; it must set watcherd.Options.Journal", ErrConfig)
	}
	if err := makePrivate(st.Store.Path, d.log); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	m, err := d.Journal(replica.Config{
		Journal: *st.Store.Journal, First: d.FirstReplica, Dir: d.dir, Path: st.Store.Path, Options: storeOptions(st, d.Options), Accept: d.accept,
		Log: d.log, Registerer: d.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return m, nil
}

// build makes the parts that the admin listener shows. It starts nothing.
func (d *daemon) build(p *parts, kube *rest.Config, st *plan.State) error {
	var err error
	if p.resolver, err = dynamicfactory.NewResolver(kube); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	key, err := redactionKey(p.st.Store.RedactionKey) // as what else takes effect at a restart
	if err != nil {
		return err
	}
	var hold, erase func(context.Context) error
	if d.member != nil {
		hold, erase = d.member.Hold, d.member.Erase
	}
	p.manager, err = pipeline.New(pipeline.Config{
		Hold:    hold,
		Erase:   erase,
		Cluster: d.cluster, Feed: d.feed, REST: kube, Resolver: p.resolver, Store: d.store,
		Logger: d.log, Registerer: d.Registerer, Stdout: d.Stdout, Dir: d.dir, SpoolDir: d.spool,
		RedactionKey: key, Drain: d.ShutdownTimeout, InformerName: d.InformerName,
	})
	if err != nil {
		return d.damaged(st, err)
	}
	p.reader = p.manager.Reader()
	p.Reader = p.reader.History()
	p.past = &atapi.Server{History: p.Reader, Resources: p.reader.Recorded, Parse: admin.ParseSince}
	p.watcher = d.watchConfig(st, p.st, func(ctx context.Context, next *plan.State) error { return apply(ctx, p.manager, next) })
	return nil
}

// start applies the first state, if possible once the API server has said what it
// serves.
func (d *daemon) start(ctx context.Context, resolver *dynamicfactory.Resolver, manager *pipeline.Manager, st *plan.State) error {
	contact := time.NewTimer(contactTimeout)
	defer contact.Stop()
	select {
	case <-resolver.Tried():
	case <-contact.C:
	case <-ctx.Done():
		return nil
	}
	if err := apply(ctx, manager, st); err != nil {
		return fmt.Errorf("start: %w", d.damaged(st, err))
	}
	d.log.Info("watcherd is running", "cluster", d.cluster, "config", d.ConfigFile,
		"watches", len(st.Watches), "sinks", len(st.Sinks), "store", st.Store.Path)
	return nil
}

// damaged makes an error of reading what a start cannot do without, such as the accepted edits, one of opening the store. A replica
// is seeded at its next start.
func (d *daemon) damaged(st *plan.State, err error) error {
	if !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	err = fmt.Errorf("%w: %w", ErrStoreOpen, store.DamageError(st.Store.Path, err))
	if d.member != nil {
		err = errors.Join(err, d.store.NoteLoss())
	}
	return err
}

// apply has the pipeline run a state. If the pipeline ends instead, the reason is its own
// error, which ends the others.
func apply(ctx context.Context, manager *pipeline.Manager, st *plan.State) error {
	err := manager.Apply(ctx, st)
	if errors.Is(err, commit.ErrEnded) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (d *daemon) forwardReloads(ctx context.Context, w *reload.Watcher) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-d.Reload:
			if !ok {
				<-ctx.Done()
				return nil
			}
			w.Trigger()
		}
	}
}

// verdict turns the parts' errors into Run's: what follows from ctx being done is
// no error.
func (d *daemon) verdict(ctx context.Context, err error) error {
	switch gaveUp := errors.Is(d.store.Err(), context.Canceled); { // see boundTheEnd
	case gaveUp && ctx.Err() != nil:
		return nil //nolint:nilerr // the end was requested, and waited for
	case !gaveUp && d.store.Err() != nil:
		return d.store.Err() // it is an ErrStore
	}
	if errors.Is(err, ledger.ErrStore) {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) || errors.Is(err, errForeground) {
		return nil
	}
	return err
}

// errForeground ends the parts when Options.Foreground has returned.
var errForeground = errors.New("the foreground has ended")

// The errors that callers distinguish; the command turns each into an exit code.
var (
	// ErrConfig: the configuration is not valid. No watch and no sink was started.
	ErrConfig = errors.New("configuration is not valid")
	// ErrStoreOpen: the store cannot be opened. It was left as it is.
	ErrStoreOpen = errors.New("the store cannot be opened")
	// ErrStore: the store failed while running. What was acknowledged is safe;
	// the rest is read again after a restart.
	ErrStore = store.ErrFailed
)
