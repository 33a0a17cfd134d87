package dynamicfactory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/spool"
)

var (
	// ErrShutdown reports that the factory has been shut down.
	ErrShutdown = errors.New("dynamicfactory: the factory is shut down")
	// ErrNoClient reports that the factory was made without a client.
	ErrNoClient = errors.New("dynamicfactory: no client")
	// ErrNoHandler reports a subscription without a handler.
	ErrNoHandler = errors.New("dynamicfactory: no handler")
	// ErrStopped reports that the informer of a subscription has stopped.
	ErrStopped = rawwatch.ErrStopped
	// ErrForeignCluster reports that the API server belongs to another cluster than the
	// recorded state. Informers then neither list nor resume, and keep retrying.
	ErrForeignCluster = apiclient.ErrForeign
)

// Factory makes shared informers. It is safe for concurrent use.
type Factory struct {
	client       dynamic.Interface
	opts         *options
	dictionaries *compact.Dictionaries
	bookmarks    *bookmarks
	rest         *restAccess // nil: New made the factory

	running sync.WaitGroup // informers, and goroutines that wait for their stop channels

	mu           sync.Mutex // guards the fields below
	informers    map[Key]*informer
	custom       map[schema.GroupVersionResource]*informer                     // by InformerFor
	names        map[schema.GroupVersionResource]cache.InformerNameAndResource // that no informer has; zero: one has it
	subs         map[*Subscription]struct{}
	shuttingDown bool
}

// restAccess is shared by all sources of a RESTFactory.
type restAccess struct {
	client *apiclient.Client
	prober *apiclient.Prober
	spool  *spool.Pool

	outages *rawwatch.Outages
}

// RESTFactory is a Factory that sends its own list and watch requests and reads raw
// JSON. It also makes durable subscriptions.
type RESTFactory struct {
	*Factory
}

var (
	_ dynamicinformer.DynamicSharedInformerFactory = (*Factory)(nil)
	_ dynamicinformer.DynamicSharedInformerFactory = (*RESTFactory)(nil)
)

// Guarded returns a copy of cfg whose clients keep its credentials between them and the server:
// they refuse redirects to another server, and read error responses without credentials that
// these repeat. A user and a password in Host are moved to Username and Password. The factories and resolvers that are made of a rest.Config do so anyway.
func Guarded(cfg *rest.Config) *rest.Config { return apiclient.Guarded(cfg) }

// New makes a factory that lists and watches through client, as client-go's dynamic
// informers do. Subscriptions fail with ErrNoClient if client is nil. It starts nothing.
func New(client dynamic.Interface, opts ...Option) *Factory {
	f := newFactory(newOptions(opts))
	f.client = client
	return f
}

// NewForConfig makes the Factory of a RESTFactory, for programs that need none of what
// only that has. It starts nothing and sends nothing.
func NewForConfig(cfg *rest.Config, opts ...Option) (*Factory, error) {
	return newRESTFactory(cfg, opts)
}

// NewRESTFactory makes a factory for the API server of cfg. It starts nothing and sends
// nothing.
func NewRESTFactory(cfg *rest.Config, opts ...RESTOption) (*RESTFactory, error) {
	f, err := newRESTFactory(cfg, opts)
	if err != nil {
		return nil, err
	}
	return &RESTFactory{f}, nil
}

// CheckCluster asks the API server which cluster it belongs to. The error wraps
// ErrForeignCluster if it is another one than that of the first contact, or WithClusterCheck
// rejects it; any other error is a failure to reach the server. nil does not prove that it is
// the same one where the client may not list namespaces.
func (f *RESTFactory) CheckCluster(ctx context.Context) error {
	_, err := f.rest.prober.Version(ctx, time.Now())
	return err
}

func newRESTFactory[O RESTOption](cfg *rest.Config, opts []O) (*Factory, error) {
	if cfg == nil {
		return nil, ErrNoClient
	}
	cfg = Guarded(cfg)
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	o := newOptions(opts)
	requests, err := apiclient.NewClient(cfg, o.concurrentLists)
	if err != nil {
		o.name.Release()
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	f := newFactory(o)
	f.client = client
	f.rest = &restAccess{requests, apiclient.NewProber(requests, o.checkCluster), spool.NewPool(o.spoolDir), cmp.Or(o.outages, rawwatch.NewOutages())}
	return f, nil
}

func newFactory(o *options) *Factory {
	return &Factory{
		opts: o, dictionaries: compact.NewDictionaries(nil), bookmarks: &bookmarks{codec: compact.NewCodec(compact.NewDictionaries(nil))},
		informers: map[Key]*informer{},
		custom:    map[schema.GroupVersionResource]*informer{},
		names:     map[schema.GroupVersionResource]cache.InformerNameAndResource{},
		subs:      map[*Subscription]struct{}{},
	}
}

// ForResource returns the informer of a resource in the factory's namespace and with its
// options: always the same one. Start starts it.
func (f *Factory) ForResource(gvr schema.GroupVersionResource) informers.GenericInformer {
	return f.informer(Key{GVR: gvr, Namespace: f.opts.namespace}, false, func(i *informer) { i.pinned = true })
}

// informer returns the informer of a key, and makes it if necessary; fresh: also in place
// of one that has ended. own is called with mu held.
func (f *Factory) informer(k Key, fresh bool, own func(*informer)) *informer {
	usable := func(i *informer) bool { return i != nil && (!i.ended || !fresh) }
	f.mu.Lock()
	if i := f.informers[k]; usable(i) {
		own(i)
		f.mu.Unlock()
		return i
	}
	f.mu.Unlock()
	made := f.newInformer(k, nil) // without mu: it calls functions of the options
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.informers[k]
	if usable(i) {
		f.unnameLocked(made)
	} else {
		i = made
		f.informers[k] = i
	}
	own(i)
	return i
}

// NewInformerFunc makes an informer for InformerFor, without a start.
type NewInformerFunc func(client dynamic.Interface, resync time.Duration) cache.SharedIndexInformer

// InformerFor returns the informer that newInformer makes for a resource, always the same
// one, with the resource's transform. Start starts it. ForResource returns another one.
func (f *Factory) InformerFor(gvr schema.GroupVersionResource, newInformer NewInformerFunc) cache.SharedIndexInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, ok := f.custom[gvr]
	if !ok {
		i = &informer{key: Key{GVR: gvr}, pinned: true, shared: newInformer(f.client, f.opts.resync.of(gvr))}
		if transform := f.opts.transform.of(gvr); transform != nil {
			_ = i.shared.SetTransform(transform) // fails only after the start
		}
		f.custom[gvr] = i
	}
	return i.shared
}

// Start starts the informers that ForResource and InformerFor have returned and that do
// not run. They run until stopCh is closed. It does not block, and may be called again for
// further informers.
func (f *Factory) Start(stopCh <-chan struct{}) {
	f.StartWithContext(wait.ContextForChannel(stopCh))
}

// StartWithContext is Start with a context instead of the channel.
func (f *Factory) StartWithContext(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return
	}
	for _, i := range f.pinnedLocked(false) {
		i.started = true
		i.owners++
		f.runLocked(ctx, i)
		f.running.Go(func() {
			<-ctx.Done()
			f.mu.Lock()
			f.releaseLocked(i)
			f.mu.Unlock()
		})
	}
}

// pinnedLocked returns what ForResource and InformerFor have returned and Start has
// started, or has not.
func (f *Factory) pinnedLocked(started bool) []*informer {
	list := slices.AppendSeq(slices.Collect(maps.Values(f.informers)), maps.Values(f.custom))
	return slices.DeleteFunc(list, func(i *informer) bool { return !i.pinned || i.started != started })
}

// WaitForCacheSync blocks until the informers that Start has started have their first
// list, or stopCh is closed. It reports which have.
func (f *Factory) WaitForCacheSync(stopCh <-chan struct{}) map[schema.GroupVersionResource]bool {
	return f.WaitForCacheSyncWithContext(wait.ContextForChannel(stopCh)).Synced
}

// SyncResult is the result of WaitForCacheSyncWithContext.
type SyncResult struct {
	Err    error // the cause of an incomplete result; nil if all have synced
	Synced map[schema.GroupVersionResource]bool
}

// AsError returns an error with the resources that have not synced, nil if all have.
func (r SyncResult) AsError() error {
	if r.Err == nil {
		return nil
	}
	var missing []string
	for gvr, synced := range r.Synced {
		if !synced {
			missing = append(missing, gvr.String())
		}
	}
	slices.Sort(missing)
	return fmt.Errorf("dynamicfactory: not synced: %s: %w", strings.Join(missing, "; "), r.Err)
}

// WaitForCacheSyncWithContext is WaitForCacheSync with a context instead of the channel.
func (f *Factory) WaitForCacheSyncWithContext(ctx context.Context) SyncResult {
	f.mu.Lock()
	started := f.pinnedLocked(true)
	f.mu.Unlock()
	checkers := make([]cache.DoneChecker, len(started))
	for n, i := range started {
		checkers[n] = i.shared.HasSyncedChecker()
	}
	cache.WaitFor(ctx, "", checkers...)
	r := SyncResult{Synced: make(map[schema.GroupVersionResource]bool, len(started))}
	for _, i := range started {
		synced := i.shared.HasSynced()
		if known, ok := r.Synced[i.key.GVR]; ok {
			synced = synced && known // ForResource's and InformerFor's
		}
		if r.Synced[i.key.GVR] = synced; !synced {
			r.Err = context.Cause(ctx)
		}
	}
	return r
}

// Shutdown prevents further starts, closes all subscriptions, and returns when every
// goroutine of the factory has ended. The caller closes the stop channels of Start before
// or during the call. It may be called several times, also concurrently.
func (f *Factory) Shutdown() {
	f.mu.Lock()
	f.shuttingDown = true
	subs := slices.Collect(maps.Keys(f.subs))
	for _, i := range f.informers {
		if i.pinned && !i.started && i.owners == 0 && i.cancel != nil {
			i.cancel() // a subscription had started it
		}
	}
	f.mu.Unlock()
	for _, s := range subs {
		s.Close()
	}
	f.running.Wait()
	f.opts.name.Release()
}

// nameOf takes the name of a resource in client-go's metrics, zero if another informer has it.
func (f *Factory) nameOf(gvr schema.GroupVersionResource) cache.InformerNameAndResource {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, known := f.names[gvr]
	if !known {
		name = f.opts.name.WithResource(gvr)
	}
	f.names[gvr] = cache.InformerNameAndResource{}
	return name
}

// unnameLocked returns the name of an informer that has ended, or does not begin.
func (f *Factory) unnameLocked(i *informer) {
	if i.name.Reserved() {
		f.names[i.key.GVR] = i.name
	}
}
