package dynamicfactory

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Option changes how a factory makes informers.
type Option func(*options)

type options struct {
	namespace        string
	resync           byResource[time.Duration]
	tweak            byResource[dynamicinformer.TweakListOptionsFunc]
	transform        byResource[cache.TransformFunc]
	indexers         cache.Indexers
	indexersOf       map[schema.GroupVersionResource]cache.Indexers // on top of indexers
	noNamespaceIndex bool
	name             string
	compact          bool
	raw              RawOptions
	concurrentLists  int
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

func newOptions(opts []Option) *options {
	o := &options{
		indexers:        cache.Indexers{},
		indexersOf:      map[schema.GroupVersionResource]cache.Indexers{},
		concurrentLists: defaultConcurrentLists,
	}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
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
	return func(o *options) { o.resync.all = d }
}

// WithResync sets the resync period of one resource, in place of the default.
func WithResync(gvr schema.GroupVersionResource, d time.Duration) Option {
	return func(o *options) { o.resync.set(gvr, d) }
}

// WithNamespace limits the factory's informers to a namespace. A Key may name
// another one.
func WithNamespace(ns string) Option {
	return func(o *options) { o.namespace = ns }
}

// WithTweakListOptions has f change the options of every list and watch. In a
// factory made by NewForConfig its selectors and TimeoutSeconds count, the rest is
// the factory's own business.
func WithTweakListOptions(f dynamicinformer.TweakListOptionsFunc) Option {
	return func(o *options) { o.tweak.all = f }
}

// WithTweakListOptionsFor is WithTweakListOptions for one resource, in place of what
// was set for all. nil changes nothing of that resource's options.
func WithTweakListOptionsFor(gvr schema.GroupVersionResource, f dynamicinformer.TweakListOptionsFunc) Option {
	return func(o *options) { o.tweak.set(gvr, f) }
}

// WithTransform has f change every object before it is cached. It is given an
// *unstructured.Unstructured, also with WithCompactStore, where it has to return one
// too. See cache.TransformFunc.
func WithTransform(f cache.TransformFunc) Option {
	return func(o *options) { o.transform.all = f }
}

// WithTransformFor is WithTransform for one resource, in place of what was set for
// all. nil leaves that resource's objects as they are.
func WithTransformFor(gvr schema.GroupVersionResource, f cache.TransformFunc) Option {
	return func(o *options) { o.transform.set(gvr, f) }
}

// WithIndexers adds indexes to every informer. The namespace index exists anyway.
func WithIndexers(ix cache.Indexers) Option {
	return func(o *options) { maps.Copy(o.indexers, ix) }
}

// WithIndexersFor adds indexes to the informers of one resource, beside those of
// all; one of the same name takes that one's place.
func WithIndexersFor(gvr schema.GroupVersionResource, ix cache.Indexers) Option {
	return func(o *options) {
		if o.indexersOf[gvr] == nil {
			o.indexersOf[gvr] = cache.Indexers{}
		}
		maps.Copy(o.indexersOf[gvr], ix)
	}
}

// WithoutNamespaceIndex does without the index by namespace, which costs some 70
// bytes for each object. Listers then find a namespace's objects by looking at all.
func WithoutNamespaceIndex() Option {
	return func(o *options) { o.noNamespaceIndex = true }
}

// WithName gives the factory a name for client-go's informer metrics. It has to be
// unique in the process (see cache.NewInformerName); if it is not, NewForConfig
// fails, and New goes on without.
func WithName(name string) Option {
	return func(o *options) { o.name = name }
}

// WithCompactStore has the informers hold *compact.Object, which takes a fraction
// of the memory. Handlers and index functions are given those; listers inflate
// what they return, so that they return what they always did.
func WithCompactStore() Option {
	return func(o *options) { o.compact = true }
}

// WithListConcurrency sets how many pages of lists the factory reads at once, all
// informers together; 4 is the default. It counts in a factory made by NewForConfig.
func WithListConcurrency(n int) Option {
	return func(o *options) { o.concurrentLists = n }
}

// WithRaw sets what only a factory made by NewForConfig can do. One that New has
// made refuses subscriptions with ErrNotRaw, unless Dictionaries is all that is set.
func WithRaw(r RawOptions) Option {
	return func(o *options) { o.raw = r }
}
