package dynamicfactory

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Option configures the informers of a factory that New or NewForConfig makes.
type Option interface {
	RESTOption
	anyFactory()
}

// RESTOption configures a factory that NewForConfig makes.
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
	indexersOf       map[schema.GroupVersionResource]cache.Indexers // on top of indexers
	noNamespaceIndex bool
	name             *cache.InformerName // nil: none
	compact          bool

	// Of a RESTFactory.
	edit            EditFunc
	concurrentLists int
	spoolDir        string
	checkCluster    func(ctx context.Context, uid string) error
}

// byResource is an option that a resource may have to itself.
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

// of returns a resource's own value, or else that of all.
func (b *byResource[T]) of(gvr schema.GroupVersionResource) T {
	if v, ok := b.own[gvr]; ok {
		return v
	}
	return b.all
}

// defaultConcurrentLists is how many pages of lists a factory reads at once.
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

// WithDefaultResync sets how often handlers are given every cached object again;
// 0, the default, is never.
func WithDefaultResync(d time.Duration) Option {
	return option(func(o *options) { o.resync.all = d })
}

// WithResync sets the resync period of one resource, in place of the default.
func WithResync(gvr schema.GroupVersionResource, d time.Duration) Option {
	return option(func(o *options) { o.resync.set(gvr, d) })
}

// WithNamespace limits the factory's informers to a namespace. A Key may name
// another one.
func WithNamespace(ns string) Option {
	return option(func(o *options) { o.namespace = ns })
}

// WithTweakListOptions has f change the options of every list and watch. In a
// factory made by NewForConfig its selectors and TimeoutSeconds count, the rest is
// the factory's own business.
func WithTweakListOptions(f dynamicinformer.TweakListOptionsFunc) Option {
	return option(func(o *options) { o.tweak.all = f })
}

// WithTweakListOptionsFor is WithTweakListOptions for one resource, in place of what
// was set for all. nil changes nothing of that resource's options.
func WithTweakListOptionsFor(gvr schema.GroupVersionResource, f dynamicinformer.TweakListOptionsFunc) Option {
	return option(func(o *options) { o.tweak.set(gvr, f) })
}

// WithTransform has f change every object before it is cached. It is given an
// *unstructured.Unstructured, also with WithCompactStore, where it has to return one
// too. See cache.TransformFunc.
func WithTransform(f cache.TransformFunc) Option {
	return option(func(o *options) { o.transform.all = f })
}

// WithTransformFor is WithTransform for one resource, in place of what was set for
// all. nil leaves that resource's objects as they are.
func WithTransformFor(gvr schema.GroupVersionResource, f cache.TransformFunc) Option {
	return option(func(o *options) { o.transform.set(gvr, f) })
}

// WithIndexers adds indexes to every informer. The namespace index exists anyway.
func WithIndexers(ix cache.Indexers) Option {
	return option(func(o *options) { maps.Copy(o.indexers, ix) })
}

// WithIndexersFor adds indexes to the informers of one resource, beside those of
// all; one of the same name takes that one's place.
func WithIndexersFor(gvr schema.GroupVersionResource, ix cache.Indexers) Option {
	return option(func(o *options) {
		if o.indexersOf[gvr] == nil {
			o.indexersOf[gvr] = cache.Indexers{}
		}
		maps.Copy(o.indexersOf[gvr], ix)
	})
}

// WithoutNamespaceIndex does without the index by namespace, which costs some 70
// bytes for each object. Listers then find a namespace's objects by looking at all.
func WithoutNamespaceIndex() Option {
	return option(func(o *options) { o.noNamespaceIndex = true })
}

// WithInformerName sets the name of the factory's informers in client-go's metrics, as
// informers.WithInformerName does. Shutdown releases the name.
func WithInformerName(name *cache.InformerName) Option {
	return option(func(o *options) { o.name = name })
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
// the uid of the namespace kube-system, "" if the client may not read it. An error
// rejects the cluster (ErrForeignCluster).
func WithClusterCheck(check func(ctx context.Context, uid string) error) RESTOption {
	return restOption(func(o *options) { o.checkCluster = check })
}
