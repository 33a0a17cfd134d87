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
	resync           time.Duration
	resyncOf         map[schema.GroupVersionResource]time.Duration
	namespace        string
	tweak            dynamicinformer.TweakListOptionsFunc
	transform        cache.TransformFunc
	indexers         cache.Indexers
	noNamespaceIndex bool
	name             string
	compact          bool
	raw              RawOptions
	hasRaw           bool
	concurrentLists  int
}

// defaultConcurrentLists is how many pages of lists a factory reads at once.
const defaultConcurrentLists = 4

func newOptions(opts []Option) *options {
	o := &options{
		resyncOf:        map[schema.GroupVersionResource]time.Duration{},
		indexers:        cache.Indexers{},
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

func (o *options) resyncFor(gvr schema.GroupVersionResource) time.Duration {
	if d, ok := o.resyncOf[gvr]; ok {
		return d
	}
	return o.resync
}

// WithDefaultResync sets how often handlers are given every cached object again;
// 0, the default, is never.
func WithDefaultResync(d time.Duration) Option {
	return func(o *options) { o.resync = d }
}

// WithResync sets the resync period of one resource.
func WithResync(gvr schema.GroupVersionResource, d time.Duration) Option {
	return func(o *options) { o.resyncOf[gvr] = d }
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
	return func(o *options) { o.tweak = f }
}

// WithTransform has f change every object before it is cached. It is given an
// *unstructured.Unstructured, also with WithCompactStore, where it has to return one
// too. See cache.TransformFunc.
func WithTransform(f cache.TransformFunc) Option {
	return func(o *options) { o.transform = f }
}

// WithIndexers adds indexes to every informer. The namespace index exists anyway.
func WithIndexers(ix cache.Indexers) Option {
	return func(o *options) { maps.Copy(o.indexers, ix) }
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

// WithRaw sets what only a factory made by NewForConfig can do.
func WithRaw(r RawOptions) Option {
	return func(o *options) { o.raw, o.hasRaw = r, true }
}
