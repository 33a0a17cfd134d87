package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// window is how many watch events of one informer may be on their way between
// the stream and the commit. Behind it the TCP stream of the watch fills up, and
// then the API server's buffer for it.
const window = 2048

// Resolver finds the resources that the cluster serves.
// *dynamicfactory.Resolver implements it.
type Resolver interface {
	// Resolve returns the resources that a kubectl-style name or wildcard means,
	// or an error that says why there are none.
	Resolve(pattern string) ([]dynamicfactory.Resource, error)
	// Changed delivers a value when Resolve's answers may have changed.
	Changed() <-chan struct{}
}

// Config is what a Manager works with.
type Config struct {
	Cluster    string        // the cluster's name in events
	REST       *rest.Config  // how to reach the API server
	Resolver   Resolver      // must be running
	Store      *outbox.Store // must be running
	Logger     *slog.Logger  // never nil
	Registerer prometheus.Registerer
	Stdout     io.Writer // for sinks that write to standard output
	Dir        string    // what relative paths in sinks' configs are relative to
	SpoolDir   string    // for watches that wait for their lists; see dynamicfactory.RawOptions
	// InformerName names the informers in client-go's metrics; "" keeps them out. It
	// must be unique in the process.
	InformerName string
	Drain        time.Duration    // how long deliveries in flight may take at the end
	Now          func() time.Time // nil: time.Now
}

// Manager owns the pipeline. Make one with [New], call [Manager.Run] once, and
// [Manager.Apply] whenever the desired state changes.
type Manager struct {
	cfg        Config
	log        *slog.Logger
	store      *outbox.Store
	factory    *dynamicfactory.Factory
	dicts      *compact.Dictionaries
	codec      *compact.Codec // decodes ledger entries; committer and snapshots
	inflater   *record.Inflater
	namespaces *namespaces
	metrics    *metrics
	redactKey  []byte

	edits          atomic.Pointer[redact.Table] // of the state that is adopted
	editsChanged   atomic.Uint64                // how often edits was replaced
	editsTightened atomic.Uint64                // how often more was hidden than before
	accepted       redact.Accepted              // what edits was made of; the owner's
	scrub          scrubber
	refreshers     map[schema.GroupResource]*compact.Codec // encode again what has a retired dictionary; the committer's

	definitions dynamic.ResourceInterface // of custom resources

	// Owned by the goroutine that applies states.
	resolved  map[string]string    // which resource a pattern of a watch means
	applied   string               // hash of the state that was applied last
	farewells map[string]*farewell // by part of the ledger

	farewellOver chan struct{} // gets a value when one of them is over

	router        atomic.Pointer[route.Router]
	keepUnrouted  atomic.Bool // no sinks are configured: the event log is what users read
	changes       chan change
	steps         chan step     // what to do between two commits
	hurry         chan struct{} // taken by a committer that waits for room, which then does without
	committerDone chan struct{}
	requests      chan request
	calls         chan call
	recent        recent
	quiet         quietGaps
	relabels      map[string]*relabelling // by namespace; the committer's
	resting       []*source               // of resources that are not served, for those changes; the committer's
	relabelsHeld  bool                    // sources are being replaced, or are not known yet; the committer's

	// Owned by the goroutine that applies states.
	undiscovered bool // the cluster's resources are not known yet

	beat  atomic.Int64 // when the committer last turned to its queue, Unix nanoseconds
	fatal chan error   // an error that ends Run; holds one

	// mu guards what is below. It is held for map accesses only.
	mu      sync.Mutex
	state   *plan.State
	sources map[dynamicfactory.Key]*source
	sinks   map[string]*sinkWorker
	missing map[string]missing // watch and pattern → why there is no informer

	ambiguous map[string]ambiguity // by watch and pattern
}

// request asks the owner goroutine to apply a state.
type request struct {
	state *plan.State
	done  chan error
}

// ErrForeignCluster means that the store's contents are of another cluster.
var ErrForeignCluster = errors.New("this store belongs to another cluster")

// New prepares a Manager: it reads what the store remembers and starts nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Manager{
		cfg: cfg, log: cfg.Logger, store: cfg.Store,
		metrics:       newMetrics(cfg.Registerer),
		changes:       make(chan change, maxGroup),
		steps:         make(chan step),
		hurry:         make(chan struct{}),
		committerDone: make(chan struct{}),
		requests:      make(chan request),
		calls:         make(chan call),
		fatal:         make(chan error, 1),
		sources:       map[dynamicfactory.Key]*source{},
		sinks:         map[string]*sinkWorker{},
		missing:       map[string]missing{},
		refreshers:    map[schema.GroupResource]*compact.Codec{},
		farewells:     map[string]*farewell{},
		farewellOver:  make(chan struct{}, 1),
	}
	var err error
	if m.dicts, err = loadDictionaries(cfg.Store); err != nil {
		return nil, err
	}
	if m.redactKey, err = loadRedactKey(cfg.Store); err != nil {
		return nil, err
	}
	if m.resolved, err = loadResolved(cfg.Store); err != nil {
		return nil, err
	}
	applied, _, err := cfg.Store.Meta(appliedMeta)
	if err != nil {
		return nil, fmt.Errorf("load the hash of the applied state: %w", err)
	}
	m.applied = string(applied)
	client, err := dynamic.NewForConfig(cfg.REST)
	if err != nil {
		return nil, err
	}
	m.definitions = client.Resource(definitions)
	if err := m.loadRelabels(); err != nil {
		return nil, err
	}
	m.codec = compact.NewCodec(m.dicts)
	m.inflater = &record.Inflater{Cluster: cfg.Cluster, Dictionaries: m.dicts, Edit: m.editRecord}
	if err := m.loadEdits(); err != nil {
		return nil, err
	}
	if err := m.loadScrub(); err != nil {
		return nil, err
	}
	m.factory, err = dynamicfactory.NewForConfig(cfg.REST,
		dynamicfactory.WithName(cfg.InformerName),
		dynamicfactory.WithCompactStore(),
		dynamicfactory.WithRaw(dynamicfactory.RawOptions{
			Dictionaries: m.dicts,
			Edit:         m.editFor,
			Snapshot:     m.snapshotFor,
			Window:       window,
			SpoolDir:     cfg.SpoolDir,
			OnGap:        m.onGap,
			ClusterUID:   m.checkCluster,
		}))
	if err != nil {
		return nil, fmt.Errorf("informer factory: %w", err)
	}
	m.namespaces = newNamespaces(m.factory)
	cfg.Registerer.MustRegister(collector{m})
	return m, nil
}

// Run runs the pipeline until ctx is done or the store fails, and returns when
// all its goroutines have ended. Call it once.
//
// The order of the end, and why:
//
//  1. The audit and a scrub of the store end, and informers stop and are joined, so nothing new arrives.
//  2. The committer commits what they handed over and how far they had come, so that
//     it need not be read again, and ends. In a full store it ends at once.
//  3. The sinks' workers finish or put back what is in flight. They come last
//     because the backlog is safe in the store, whose owner closes it after Run.
func (m *Manager) Run(ctx context.Context) error {
	ended, end := context.WithCancel(context.WithoutCancel(ctx)) // of the informers
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	committed := make(chan error, 1)
	go func() { committed <- m.commitLoop(ctx, ended) }()
	var audit sync.WaitGroup
	audit.Go(func() { m.auditLoop(ctx) })

	err := m.own(ctx)
	if errors.Is(err, ErrEnded) {
		err = nil // the committer's error says why
	}

	stop()
	m.stopScrub()
	audit.Wait()
	sources := m.sourceList()
	m.closeSources()
	m.namespaces.close()
	m.factory.Shutdown()
	_ = m.between(func(g *group) { g.touchAll(sources) }) // the only error is the committer's end
	end()
	commitErr := <-committed
	m.stopSinks()
	return errors.Join(err, commitErr)
}

// own is the only goroutine that starts and stops sources and sinks.
func (m *Manager) own(ctx context.Context) error {
	forget := time.NewTicker(forgetInterval)
	defer forget.Stop()
	var goneAgain <-chan time.Time // fires when definitions are to be looked for again
	report := func() error {
		again, err := m.reportGone(ctx)
		if goneAgain = nil; again {
			goneAgain = time.After(goneRetry)
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.committerDone:
			return nil // its error is Run's
		case err := <-m.fatal:
			return err
		case r := <-m.requests:
			err := m.apply(ctx, r.state)
			r.done <- err
			if errors.Is(err, ErrStore) {
				return err // half of the state may be in place
			}
			if err == nil {
				if err := report(); err != nil {
					return err
				}
			}
		case c := <-m.calls:
			c.done <- c.run()
		case <-forget.C:
			if err := errors.Join(m.forgetUnwatched(), report()); err != nil {
				return err
			}
		case <-m.farewellOver:
			if err := report(); err != nil {
				return err
			}
		case <-goneAgain:
			if err := report(); err != nil {
				return err
			}
		case <-m.cfg.Resolver.Changed():
			m.reconcile(ctx)
			if err := report(); err != nil {
				return err
			}
		case <-m.namespaces.synced:
			m.reconcile(ctx)
		}
	}
}

// Apply makes the running pipeline match the desired state. Everything that can
// fail is done first: after an error the old state runs on untouched. It may be
// called from any goroutine while Run runs; calls are carried out one by one. When
// ctx ends it returns, but what has begun is carried out all the same.
func (m *Manager) Apply(ctx context.Context, s *plan.State) error {
	r := request{state: s, done: make(chan error, 1)}
	select {
	case m.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-m.committerDone:
		return ErrEnded
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fail ends Run with err; only the first counts.
func (m *Manager) fail(err error) {
	select {
	case m.fatal <- err:
	default:
	}
}

// step is something to do between two commits.
type step struct {
	do   func(*group)
	done chan struct{}
}

func (s step) run(g *group) {
	s.do(g)
	close(s.done)
}

// between has the committer call do between two commits, and returns then: what is
// adopted in one call no change sees a part of. do must not wait for changes. It does
// not wait for room in a full store. If the committer has ended, do is not called, and
// the error is [ErrEnded].
func (m *Manager) between(do func(*group)) error {
	s := step{do, make(chan struct{})}
	select {
	case m.steps <- s:
		<-s.done
		return nil
	case <-m.committerDone:
		return ErrEnded
	}
}

// flush returns when everything sent before it is committed.
//
// It does not wait for room in a full store: a reload or a purge that is to make
// room would wait forever. What is committed in spite of that is little, a queue.
func (m *Manager) flush() {
	done := make(chan struct{})
	queue := m.changes
	for {
		select {
		case queue <- change{kind: barrier, done: done, at: m.cfg.Now()}:
			queue = nil
		case m.hurry <- struct{}{}:
		case <-done:
			return
		case <-m.committerDone:
			return
		}
	}
}
