package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/enrich"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// window is how many watch events of one informer may be pending between
// the stream and the commit. Behind it the TCP stream of the watch fills up, and
// then the API server's buffer for it.
const window = 2048

// Resolver finds the resources that the cluster serves.
// *dynamicfactory.Resolver implements it.
type Resolver interface {
	// Resolve returns the resources that a kubectl-style name or wildcard means,
	// or the reason why there are none.
	Resolve(pattern string) ([]dynamicfactory.Resource, error)
	// Table returns Resolve with answers of one moment.
	Table() func(pattern string) ([]dynamicfactory.Resource, error)
	// Changed delivers a value when Resolve's answers may have changed.
	Changed() <-chan struct{}
}

// Config is what a Manager works with.
type Config struct {
	Cluster    string       // the cluster's name in events
	Feed       string       // the feed's; empty: none
	REST       *rest.Config // how to reach the API server
	Resolver   Resolver     // must be running
	Store      *store.Store // must be running
	Logger     *slog.Logger // never nil
	Registerer prometheus.Registerer
	Stdout     io.Writer // for sinks that write to standard output
	Dir        string    // what relative paths in sinks' configs are relative to
	SpoolDir   string    // for watches that wait for their lists; see dynamicfactory.WithSpoolDir
	// InformerName names the informers in client-go's metrics; "" keeps them out. It
	// must be unique in the process.
	InformerName string
	RedactionKey []byte // nil: the store's own
	// Hold returns nil when a delivery may begin; nil: at any time.
	Hold  func(context.Context) error
	Erase func(context.Context) error // see [scrub.Config]
	Drain time.Duration               // bounds the end of the sinks; half of it is for deliveries in flight
	Now   func() time.Time            // nil: time.Now
}

// Manager owns the pipeline. Make one with [New], call [Manager.Run] once, and
// [Manager.Apply] whenever the desired state changes.
type Manager struct {
	cfg       Config
	log       *slog.Logger
	store     *store.Store
	factory   *dynamicfactory.RESTFactory
	committer *commit.Committer
	ledger    *ledger.Ledger
	dicts     *compact.Dictionaries
	inflater  *record.Inflater
	reader    *query.Reader
	past      *retrace.Reader
	metrics   *metrics
	redactKey []byte

	clusterUID atomic.Pointer[string] // of the namespace kube-system; nil: not known

	client             *dynamic.DynamicClient
	definitions        dynamic.ResourceInterface // of custom resources
	definitionMetadata metadata.Getter

	edits          atomic.Pointer[redact.Table] // of the state that is adopted
	editsChanged   atomic.Uint64                // how often edits was replaced
	unseenEdits    sync.Map                     // route, key and path of edits that matched nothing and are logged
	editsTightened atomic.Uint64                // how often more was hidden than before
	scrub          scrubber

	enricher enrich.Enricher // the committer's, too; only the owner gives it caches

	calls   chan call
	goneDue chan struct{} // gets a value when a look for deleted definitions is due
	started chan struct{} // gets a value when feeds have started
	fatal   chan error    // an error that ends Run; holds one

	absentDue chan struct{} // gets a value when a look for the watched namespaces is due

	// Owned by the goroutine that applies states. What it has done at a barrier of the committer, for which it
	// waits, acts for it.
	namespaces   namespaces
	accepted     redact.Accepted             // what edits was made of
	resolved     map[string]string           // which resource a pattern of a watch means; replaced under mu
	applied      string                      // hash of the state that was applied last
	farewells    map[string]*commit.Farewell // by part of the ledger
	caches       map[cacheKey]*metadataCache // for the enrichment of routes
	undiscovered bool                        // the cluster's resources are not known yet

	// mu guards what is below. It is held for map accesses only.
	mu        sync.Mutex
	state     *plan.State
	informers map[commit.Key]*informer
	starting  []*commit.Feed // whose informers are started one by one
	sinks     map[string]*sinkWorker
	draining  map[string]*sinkWorker     // by sink: stopped, and not ended yet
	leaving   map[string]<-chan struct{} // by sink: Closed of a stopped worker that left a write behind
	missing   map[string]query.Missing   // watch and pattern → why there is no informer
	ambiguous map[string]ambiguity       // by watch and pattern
	absent    map[string][]string        // namespaces that do not exist, and the watches that name them
}

// informer is the owner's half of a running feed: others only load sub.
type informer struct {
	*commit.Feed
	sub     atomic.Pointer[dynamicfactory.DurableSubscription]
	waiting sync.WaitGroup // for the first list
}

// New prepares a Manager: it reads what the store remembers and starts nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Manager{
		cfg: cfg, log: cfg.Logger, store: cfg.Store,
		calls:     make(chan call),
		goneDue:   make(chan struct{}, 1),
		started:   make(chan struct{}, 1),
		fatal:     make(chan error, 1),
		absentDue: make(chan struct{}, 1),
		informers: map[commit.Key]*informer{},
		sinks:     map[string]*sinkWorker{},
		draining:  map[string]*sinkWorker{},
		leaving:   map[string]<-chan struct{}{},
		missing:   map[string]query.Missing{},
		farewells: map[string]*commit.Farewell{},
		caches:    map[cacheKey]*metadataCache{},
	}
	var err error
	if m.metrics, err = newMetrics(cfg.Registerer, &m.enricher); err != nil {
		return nil, err
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	m.committer, err = commit.New(commit.Config{
		Cluster: cfg.Cluster, Store: cfg.Store, Ledger: m.ledger, Dictionaries: m.dicts,
		Logger: cfg.Logger, Registerer: cfg.Registerer, Now: cfg.Now, Running: m.running,
		Enrich: m.enricher.Enrich,
	})
	if err != nil {
		return nil, err
	}
	if err := m.connect(); err != nil {
		return nil, err
	}
	m.past = retrace.New(cfg.Store, m.inflater, m.edits.Load)
	m.reader, err = query.New(query.Config{
		Pipeline: m, Committer: m.committer, Store: cfg.Store, Resolver: cfg.Resolver,
		Inflater: m.inflater, Edits: m.edits.Load, Registerer: cfg.Registerer,
	})
	return m, err
}

// load reads what the store remembers.
func (m *Manager) load() (err error) {
	if m.dicts, err = ledger.LoadDictionaries(m.store); ledger.IgnoreUnreadable(err) != nil {
		return err
	} else if err != nil {
		m.log.Error("dictionaries are damaged, and so is what needs them", "error", err)
	}
	m.ledger = ledger.New(m.store, m.dicts)
	if m.redactKey, err = ledger.LoadRedactKey(m.store, m.cfg.RedactionKey); err != nil {
		return err
	}
	if err = ledger.NoteRedactKey(m.store, redact.KeyID(m.redactKey)); err != nil {
		return err
	}
	if m.resolved, err = loadResolved(m.store); err != nil {
		return err
	}
	applied, _, err := m.store.Meta(appliedMeta)
	if err != nil {
		return fmt.Errorf("load the hash of the applied state: %w", err)
	}
	m.applied = string(applied)
	uid, known, err := m.store.Meta(ledger.ClusterMeta)
	if err != nil {
		return fmt.Errorf("load the cluster's uid: %w", err)
	}
	if known {
		m.setClusterUID(string(uid))
	}
	sets, err := loadRouteSets(m.store)
	if err != nil {
		return err
	}
	m.inflater = &record.Inflater{
		Cluster: m.cfg.Cluster, Feed: m.cfg.Feed, ClusterUID: m.knownClusterUID, Dictionaries: m.dicts, RouteSets: sets,
		Edit: func(r *record.Record, sink string) record.Edit { return m.edits.Load().Edit(r, sink) },
	}
	if err := m.loadEdits(); err != nil {
		return err
	}
	return m.loadScrub()
}

// connect makes the clients of the API server, and the factory of informers. It sends nothing.
func (m *Manager) connect() (err error) {
	if m.client, err = dynamic.NewForConfig(m.cfg.REST); err != nil {
		return err
	}
	m.definitions = m.client.Resource(definitions)
	definitionClient, err := metadata.NewForConfig(m.cfg.REST)
	if err != nil {
		return err
	}
	m.definitionMetadata = definitionClient.Resource(definitions)
	opts := []dynamicfactory.RESTOption{dynamicfactory.WithSpoolDir(m.cfg.SpoolDir), dynamicfactory.WithClusterCheck(m.checkCluster)}
	if r, ok := m.cfg.Resolver.(*dynamicfactory.Resolver); ok {
		opts = append(opts, dynamicfactory.WithResolver(r))
	}
	if m.cfg.InformerName != "" {
		opts = append(opts, dynamicfactory.WithName(m.cfg.InformerName))
	}
	if m.factory, err = dynamicfactory.NewRESTFactory(m.cfg.REST, opts...); err != nil {
		return fmt.Errorf("informer factory: %w", err)
	}
	return nil
}

// Run runs the pipeline until ctx is done or the store fails, and returns when
// all its goroutines have ended. Call it once.
//
// The order of the end, and why:
//
//  1. The consistency check, the looks for definitions and namespaces and a scrub end, and informers stop and are joined, so nothing new arrives.
//  2. The committer commits their last changes and how far they had come, so that
//     it need not be read again, and ends. In a full store it ends at once.
//  3. The sinks' workers finish or requeue what is in flight. They come last
//     because the backlog is safe in the store, whose owner closes it after Run.
func (m *Manager) Run(ctx context.Context) error {
	ended, end := context.WithCancel(context.WithoutCancel(ctx)) // of the informers
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	committed := make(chan error, 1)
	go func() { committed <- m.committer.Run(ctx, ended) }()
	var loops sync.WaitGroup
	loops.Go(func() { m.checkLoop(ctx) })
	loops.Go(func() { m.restoreLoop(ctx) })
	loops.Go(func() { m.followDefinitions(ctx) })
	loops.Go(func() { m.followAbsent(ctx) })

	err := m.own(ctx)
	if errors.Is(err, commit.ErrEnded) {
		err = nil // the committer's error has the cause
	}

	stop()
	m.stopScrub()
	loops.Wait()
	feeds := m.running()
	m.committer.HoldRelabels() // they continue with the next start
	m.closeInformers()
	m.namespaces.close()
	m.factory.Shutdown()
	_ = m.committer.AtBarrier(func(b commit.Barrier) { b.Touch(feeds) }) // the only error is the committer's end
	end()
	commitErr := <-committed
	m.mu.Lock()
	names := slices.Collect(maps.Keys(m.sinks))
	m.mu.Unlock()
	m.stopSinks(names)
	return errors.Join(err, commitErr)
}

// own is the only goroutine that starts and stops feeds and sinks.
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
		var err error
		select {
		case err = <-m.fatal: // before anything else
		case <-m.goneDue:
			err = report()
		default:
			select {
			case <-ctx.Done():
				return nil
			case <-m.committer.Done():
				return nil // its error is Run's
			case err = <-m.fatal:
			case c := <-m.calls:
				c.done <- c.run(ctx)
			case <-forget.C:
				err = errors.Join(m.forgetUnwatched(), report())
			case <-m.goneDue:
				err = report()
			case <-goneAgain:
				err = report()
			case <-m.cfg.Resolver.Changed():
				m.reconcile(ctx)
				err = report()
			case <-m.committer.NamespacesKnown():
				m.reconcile(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
}

// call is something for the owner goroutine to do between two others.
type call struct {
	run  func(context.Context) error
	done chan error
}

// call runs f in the owner goroutine, with Run's context. When ctx ends it returns, but
// what has begun is carried out all the same. [commit.ErrEnded] means that Run ends.
func (m *Manager) call(ctx context.Context, f func(context.Context) error) error {
	c := call{run: f, done: make(chan error, 1)}
	select {
	case m.calls <- c:
	case <-ctx.Done():
		return ctx.Err()
	case <-m.committer.Done():
		return commit.ErrEnded
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Apply makes the running pipeline match the desired state. After an error the old state
// runs on untouched, unless it is [commit.ErrEnded]: then Run ends, with the reason. It may
// be called from any goroutine while Run runs; calls are carried out one by one. When ctx
// ends it returns, but what has begun is carried out all the same.
func (m *Manager) Apply(ctx context.Context, s *plan.State) error {
	return m.call(ctx, func(ctx context.Context) error {
		err := m.apply(ctx, s)
		if err == nil {
			for _, due := range []chan struct{}{m.goneDue, m.absentDue} {
				select {
				case due <- struct{}{}:
				default: // it is due already
				}
			}
		}
		return err
	})
}

// fail ends Run with err; only the first counts.
func (m *Manager) fail(err error) {
	select {
	case m.fatal <- err:
	default:
	}
}

// checkCluster is called at the first contact with the API server. A store must
// never be continued with another cluster: every object would look deleted.
func (m *Manager) checkCluster(ctx context.Context, uid string) error {
	known, ok, err := m.store.Meta(ledger.ClusterMeta)
	if err != nil {
		return err
	}
	switch {
	case uid == "" && ok:
		return m.findKubeSystem(ctx, string(known))
	case uid == "":
		return nil // not allowed to know; the rollback check is all there is
	case !ok:
		if err := ledger.PutMeta(m.store, ledger.ClusterMeta, []byte(uid)); err != nil {
			return err
		}
		m.setClusterUID(uid)
		return nil
	case string(known) == uid:
		return nil
	}
	err = fmt.Errorf("this store belongs to another cluster: it was filled from the cluster whose kube-system namespace has uid %s, this one's has %s; use another store.path, or correct the kubeconfig", known, uid)
	m.fail(err)
	return err
}

// findKubeSystem is checkCluster where the first answer does not have kube-system. The namespaces may
// not be listed: then the rollback check is all there is. Else the API server has a new storage.
func (m *Manager) findKubeSystem(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	now, err := ClusterUID(ctx, m.client)
	var status apierrors.APIStatus
	switch {
	case err == nil && now == "":
		return fmt.Errorf("this store belongs to a cluster whose kube-system namespace has uid %s, this one has none", uid)
	case err == nil:
		return m.checkCluster(ctx, now) // it has been made meanwhile
	case errors.As(err, &status) && status.Status().Code/100 == 4 && !apierrors.IsTooManyRequests(err):
		return nil
	default:
		return fmt.Errorf("cannot look for the namespace kube-system: %w", err)
	}
}

// ClusterUID asks the API server for the uid of the namespace kube-system, which identifies the cluster; "" if there is none.
func ClusterUID(ctx context.Context, client dynamic.Interface) (string, error) {
	list, err := client.Resource(namespaceKey.GVR).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kube-system", Limit: 1})
	if err != nil || len(list.Items) == 0 {
		return "", err
	}
	return string(list.Items[0].GetUID()), nil
}

func (m *Manager) setClusterUID(uid string) { m.clusterUID.Store(&uid) }

// knownClusterUID is the uid that events carry, empty before it is known.
func (m *Manager) knownClusterUID() string {
	if uid := m.clusterUID.Load(); uid != nil {
		return *uid
	}
	return ""
}

func (m *Manager) informerList() []*informer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.informers))
}

func (m *Manager) running() []*commit.Feed {
	var list []*commit.Feed
	for _, s := range m.informerList() {
		list = append(list, s.Feed)
	}
	return list
}

// Reader answers what the pipeline runs and has recorded.
func (m *Manager) Reader() *query.Reader { return m.reader }

// Running implements query.Pipeline.
func (m *Manager) Running() query.Running {
	scrub := m.scrubStatus()
	m.mu.Lock()
	defer m.mu.Unlock()
	r := query.Running{
		State: m.state, Missing: m.missingLocked(), Warnings: map[string][]string{},
		Workers: map[string]*delivery.Worker{}, Scrub: scrub,
	}
	for _, s := range m.informers {
		r.Feeds = append(r.Feeds, query.Feed{Feed: s.Feed, Informer: s.sub.Load()})
	}
	for _, f := range m.starting {
		if _, ok := m.informers[f.Key]; !ok {
			r.Feeds = append(r.Feeds, query.Feed{Feed: f})
		}
	}
	for _, a := range m.ambiguous {
		r.Warnings[a.watch] = append(r.Warnings[a.watch], a.String())
	}
	for _, ns := range slices.Sorted(maps.Keys(m.absent)) {
		for _, watch := range m.absent[ns] {
			r.Warnings[watch] = append(r.Warnings[watch], fmt.Sprintf("namespace %s does not exist: nothing is read from it until it does", ns))
		}
	}
	for _, workers := range []map[string]*sinkWorker{m.draining, m.sinks} {
		for name, w := range workers {
			r.Workers[name] = w.worker
		}
	}
	return r
}

// missingLocked is why patterns have no informer, at this moment.
func (m *Manager) missingLocked() []query.Missing {
	list := slices.Collect(maps.Values(m.missing))
	for i := range list {
		switch x := &list[i]; {
		case errors.Is(x.Err, dynamicfactory.ErrNotReady):
			x.Pending = true
		case errors.Is(x.Err, errNamespacesUnknown):
			x.Pending = true
			if sub := m.namespaces.sub.Load(); sub != nil {
				w := sub.Watch()
				x.Pending = status.Begins(&w, time.Now())
			}
		}
	}
	return list
}

type metrics struct {
	checksTotal    *prometheus.CounterVec // by resource and result
	forgottenTotal prometheus.Counter     // feeds that no watch reads any more
	scrubbedTotal  *prometheus.CounterVec // by result: events and states that a scrub looked at
	scrubbing      prometheus.Gauge       // 1 while there is a scrub to do
	scrubbed       prometheus.Gauge       // when the last one was done
}

func newMetrics(r prometheus.Registerer, enricher *enrich.Enricher) (*metrics, error) {
	m := &metrics{
		checksTotal:    prom.CounterVec("watcherd_consistency_checks_total", "Consistency checks of a resource by result: clean, repaired (a difference caused a relist, which is recorded) or unfinished.", "resource", "result"),
		forgottenTotal: prom.Counter("watcherd_ledger_partitions_deleted_total", "Ledger partitions deleted because no watch had read them for longer than the retention."),
		scrubbedTotal:  prom.CounterVec("watcherd_scrub_items_total", "Recorded events and states by result of the scrub: rewritten to hide what the configuration hides now, or failed.", "result"),
		scrubbing:      prom.Gauge("watcherd_scrub_pending", "1 while recorded events or states contain values that the configuration hides."),
		scrubbed:       prom.Gauge("watcherd_scrub_done_timestamp_seconds", "Time of the last completed scrub."),
	}
	for _, result := range []string{"rewritten", "failed"} {
		m.scrubbedTotal.WithLabelValues(result)
	}
	incomplete := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "watcherd_events_incomplete_total",
		Help: "Events of which a part of what a route's enrich asks for was not cached when they were recorded.",
	}, func() float64 { return float64(enricher.Incomplete()) })
	err := prom.NewGroup(r).RegisterAll(m.checksTotal, m.forgottenTotal, m.scrubbedTotal, m.scrubbing, m.scrubbed, incomplete)
	if err != nil {
		return nil, fmt.Errorf("register the pipeline's metrics: %w", err)
	}
	return m, nil
}

// Results of a consistency check.
const (
	checkClean      = "clean"
	checkRepaired   = "repaired"
	checkUnfinished = "unfinished"
)

func (m *metrics) checked(s *informer, result string) {
	m.checksTotal.WithLabelValues(s.Key.GVR.GroupResource().String(), result).Inc()
}

func (m *metrics) scrubCounted(rewritten, failed int) {
	m.scrubbedTotal.WithLabelValues("rewritten").Add(float64(rewritten))
	m.scrubbedTotal.WithLabelValues("failed").Add(float64(failed))
}

// watches notes that a feed is compared with the cluster. Series begin at zero.
func (m *metrics) watches(s *commit.Feed) {
	for _, result := range [...]string{checkClean, checkRepaired, checkUnfinished} {
		m.checksTotal.WithLabelValues(s.Key.GVR.GroupResource().String(), result)
	}
}
