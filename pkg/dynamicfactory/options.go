package dynamicfactory

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

// Option configures the informers of a factory that New or NewForConfig makes.
type Option interface {
	RESTOption
	anyFactory()
}

// RESTOption configures a factory that NewRESTFactory makes.
type RESTOption interface {
	apply(*options)
}

type option func(*options)

func (o option) apply(opts *options) { o(opts) }
func (option) anyFactory()           {}

type restOption func(*options)

func (o restOption) apply(opts *options) { o(opts) }

type options struct {
	namespace        string
	resync           byResource[time.Duration]
	tweak            byResource[dynamicinformer.TweakListOptionsFunc]
	transform        byResource[cache.TransformFunc]
	indexers         cache.Indexers
	indexersOf       map[schema.GroupVersionResource]cache.Indexers // in addition to indexers
	noNamespaceIndex bool
	name             *cache.InformerName // nil: none
	compact          bool

	// Of a RESTFactory.
	edit            EditFunc
	concurrentLists int
	spoolDir        string
	checkCluster    func(ctx context.Context, uid string) error
	outages         *rawwatch.Outages
}

// byResource is an option with values of single resources.
type byResource[T any] struct {
	all T
	own map[schema.GroupVersionResource]T
}

func (b *byResource[T]) set(gvr schema.GroupVersionResource, v T) {
	if b.own == nil {
		b.own = map[schema.GroupVersionResource]T{}
	}
	b.own[gvr] = v
}

// of returns a resource's own value, or that of all.
func (b *byResource[T]) of(gvr schema.GroupVersionResource) T {
	if v, ok := b.own[gvr]; ok {
		return v
	}
	return b.all
}

// defaultConcurrentLists is the default of WithListConcurrency.
const defaultConcurrentLists = 4

func newOptions[O RESTOption](opts []O) *options {
	o := &options{
		indexers:        cache.Indexers{},
		indexersOf:      map[schema.GroupVersionResource]cache.Indexers{},
		concurrentLists: defaultConcurrentLists,
	}
	for _, opt := range opts {
		opt.apply(o)
	}
	if !o.noNamespaceIndex {
		o.indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
	}
	return o
}

// indexersFor returns the indexers of a resource's informers. They belong to the
// caller.
func (o *options) indexersFor(gvr schema.GroupVersionResource) cache.Indexers {
	ix := maps.Clone(o.indexers)
	maps.Copy(ix, o.indexersOf[gvr])
	return ix
}

// WithDefaultResync sets the period after which handlers receive every cached object
// again. The default is 0: never. Durable subscriptions ignore it.
func WithDefaultResync(d time.Duration) Option {
	return option(func(o *options) { o.resync.all = d })
}

// WithResync sets the resync period of one resource, instead of the default.
func WithResync(gvr schema.GroupVersionResource, d time.Duration) Option {
	return option(func(o *options) { o.resync.set(gvr, d) })
}

// WithNamespace sets the namespace of informers whose Key has none.
func WithNamespace(ns string) Option {
	return option(func(o *options) { o.namespace = ns })
}

// WithTweakListOptions calls f to change the options of every list and watch. A
// RESTFactory uses the selectors and TimeoutSeconds, and sets the other options itself.
func WithTweakListOptions(f dynamicinformer.TweakListOptionsFunc) Option {
	return option(func(o *options) { o.tweak.all = f })
}

// WithTweakListOptionsFor is WithTweakListOptions for one resource, instead of the function
// for all. nil leaves the resource's options unchanged.
func WithTweakListOptionsFor(gvr schema.GroupVersionResource, f dynamicinformer.TweakListOptionsFunc) Option {
	return option(func(o *options) { o.tweak.set(gvr, f) })
}

// WithTransform calls f to change every object before it is cached. f receives an
// *unstructured.Unstructured, also with WithCompactStore, which requires one as the result.
// See cache.TransformFunc.
func WithTransform(f cache.TransformFunc) Option {
	return option(func(o *options) { o.transform.all = f })
}

// WithTransformFor is WithTransform for one resource, instead of the function for all. nil
// leaves the resource's objects unchanged.
func WithTransformFor(gvr schema.GroupVersionResource, f cache.TransformFunc) Option {
	return option(func(o *options) { o.transform.set(gvr, f) })
}

// WithResolver makes the informers log the outages of their API server together with those
// of r, which must be of the same server: one line for all.
func WithResolver(r *Resolver) RESTOption {
	return restOption(func(o *options) { o.outages = r.outages })
}

// WithIndexers adds indexes to every informer, in addition to the namespace index.
func WithIndexers(ix cache.Indexers) Option {
	return option(func(o *options) { maps.Copy(o.indexers, ix) })
}

// WithIndexersFor adds indexes to the informers of one resource, in addition to those of
// all. It replaces an index of the same name.
func WithIndexersFor(gvr schema.GroupVersionResource, ix cache.Indexers) Option {
	return option(func(o *options) {
		if o.indexersOf[gvr] == nil {
			o.indexersOf[gvr] = cache.Indexers{}
		}
		maps.Copy(o.indexersOf[gvr], ix)
	})
}

// WithoutNamespaceIndex removes the index by namespace, which costs about 70 bytes an
// object. Listers of one namespace then visit all objects.
func WithoutNamespaceIndex() Option {
	return option(func(o *options) { o.noNamespaceIndex = true })
}

// WithName names the factory's informers in client-go's metrics; of several that run for one
// resource, the first. Shutdown releases the name. While another factory of the process has
// it, the informers have none, and an error is logged (see cache.NewInformerName).
func WithName(name string) Option {
	return option(func(o *options) {
		n, err := cache.NewInformerName(name)
		if err != nil {
			klog.Background().Error(err, "Informers have no name in metrics", "name", name)
			return
		}
		o.name = n
	})
}

// WithCompactStore makes the caches hold *compact.Object, which needs a fraction of the
// memory. Handlers and index functions receive these objects. Listers return inflated
// objects, as without the option.
func WithCompactStore() Option {
	return option(func(o *options) { o.compact = true })
}

// WithEdit edits the JSON of every object before anything else sees it, with less work
// than a transform.
func WithEdit(f EditFunc) RESTOption {
	return restOption(func(o *options) { o.edit = f })
}

// WithListConcurrency limits the pages of lists that the factory reads at the same time,
// over all informers. The default is 4.
func WithListConcurrency(n int) RESTOption {
	return restOption(func(o *options) { o.concurrentLists = n })
}

// WithSpoolDir sets the folder for events that arrive while their resource is being
// listed, once they exceed the limit in memory (64 MiB over all informers). The default
// is the system's folder for temporary files. The files are encrypted, and have no names
// where the system allows that. Elsewhere, files of a killed process may be deleted.
func WithSpoolDir(dir string) RESTOption {
	return restOption(func(o *options) { o.spoolDir = dir })
}

// WithClusterCheck calls check at the first contact, before any list or resumption, with
// the uid of the namespace kube-system, "" if the client may not read it or there is none,
// and again once it has one. An error rejects the cluster (ErrForeignCluster). Every list, and
// every watch that follows another, is then preceded by a request for the uid, which informers
// share for five seconds.
func WithClusterCheck(check func(ctx context.Context, uid string) error) RESTOption {
	return restOption(func(o *options) { o.checkCluster = check })
}
