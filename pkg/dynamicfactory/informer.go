package dynamicfactory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/genericlister"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// informer is a SharedIndexInformer with its source and lifetime. It runs while it has an
// owner: the stop channel of its start, or a subscription.
type informer struct {
	key    Key
	shared cache.SharedIndexInformer
	source *rawwatch.Source // nil in a factory made by New
	name   cache.InformerNameAndResource
	size   size

	// Guarded by Factory.mu.
	pinned        bool // ForResource or InformerFor has returned it: it stays in the factory
	started       bool // Start has been called
	owners        int
	subscriptions int                // of the factory's subs
	cancel        context.CancelFunc // nil: not started
	ended         bool               // cancel was called
	done          chan struct{}      // closed when all goroutines have ended
}

var _ informers.GenericInformer = (*informer)(nil)

func (i *informer) Informer() cache.SharedIndexInformer { return i.shared }

// Lister returns a lister over the informer's cache.
func (i *informer) Lister() cache.GenericLister {
	return genericlister.New(i.shared.GetIndexer(), i.key.GVR)
}

// newInformer makes an informer: a shared one, or that of a durable subscription.
func (f *Factory) newInformer(k Key, d *DurableOptions) *informer {
	i := &informer{key: k, name: f.nameOf(k.GVR)}
	var lw cache.ListerWatcher
	var example runtime.Object = &unstructured.Unstructured{}
	transform, resync := f.opts.transform.of(k.GVR), f.opts.resync.of(k.GVR)
	if d != nil {
		resync = 0 // client-go's resync may drop an event
	}
	if f.rest != nil {
		i.source = f.newSource(i, d)
		lw = i.source
		if d != nil || f.opts.compact {
			example, transform = &compact.Object{}, nil // the source transforms
		}
	} else {
		lw = f.newListerWatcher(k)
		if f.opts.compact {
			transform = compactTransform(transform, f.codec(k, false))
		}
	}
	i.shared = cache.NewSharedIndexInformerWithOptions(lw, example, cache.SharedIndexInformerOptions{
		ResyncPeriod: resync, Indexers: f.opts.indexersFor(k.GVR), ObjectDescription: k.String(), Identifier: i.name,
	})
	if transform != nil {
		_ = i.shared.SetTransform(transform) // fails only after the start
	}
	if i.source != nil {
		_ = i.shared.SetWatchErrorHandlerWithContext(ignoreListError) // fails only after the start
	}
	return i
}

// ignoreListError handles list errors, which the source has counted and logged.
func ignoreListError(context.Context, *cache.Reflector, error) {}

// compactTransform makes compact objects of the results of a transform, which may be nil.
// The reflector calls it from one goroutine.
func compactTransform(transform cache.TransformFunc, codec *compact.Codec) cache.TransformFunc {
	return func(obj any) (any, error) {
		if _, ok := obj.(*compact.Object); ok {
			return obj, nil // from the cache
		}
		if transform != nil {
			var err error
			if obj, err = transform(obj); err != nil {
				return nil, err
			}
		}
		if _, ok := obj.(*unstructured.Unstructured); !ok {
			return obj, nil // a tombstone
		}
		return encode(codec, obj, 0)
	}
}

func (f *Factory) run(ctx context.Context, i *informer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return ErrShutdown
	}
	f.runLocked(ctx, i)
	return nil
}

// runLocked starts the informer unless it runs. The informer has the values of ctx, and
// ignores its end. The factory must not be shutting down.
func (f *Factory) runLocked(ctx context.Context, i *informer) {
	if i.cancel != nil {
		return
	}
	ctx, i.cancel = context.WithCancel(context.WithoutCancel(ctx))
	i.done = make(chan struct{})
	f.running.Go(func() {
		defer close(i.done)
		i.shared.RunWithContext(ctx)
		if i.source != nil {
			i.source.Wait()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.unnameLocked(i)
	})
}

// releaseLocked removes one owner. Without owners it stops the informer, unless a client
// may have it from ForResource, and removes it from the factory. It then reports true, and
// the caller waits for done.
func (f *Factory) releaseLocked(i *informer) (stopped bool) {
	i.owners--
	if i.owners > 0 || i.pinned && !i.started && !f.shuttingDown {
		return false
	}
	if !i.pinned && f.informers[i.key] == i {
		delete(f.informers, i.key)
	}
	if i.cancel == nil {
		return false
	}
	i.ended = true
	i.cancel()
	return true
}

// maker makes the cached objects of an informer from raw JSON. One goroutine at a time
// calls make.
type maker struct {
	codec     *compact.Codec // nil: *unstructured.Unstructured
	transform func(any) (any, error)
	bookmarks *bookmarks
}

func (m *maker) make(raw []byte, meta *rawjson.Meta, position uint64) (runtime.Object, error) {
	if m.codec == nil {
		return decode(raw)
	}
	if m.transform == nil {
		o, err := m.codec.Encode(raw, meta, position)
		if errors.Is(err, compact.ErrDictionary) {
			return nil, fmt.Errorf("%w: %w", rawwatch.ErrMaker, err)
		}
		if err != nil {
			return nil, err
		}
		return o, nil
	}
	u, err := decode(raw)
	if err != nil {
		return nil, err
	}
	changed, err := m.transform(u)
	if err == nil {
		var o *compact.Object
		if o, err = encode(m.codec, changed, position); err == nil {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", rawwatch.ErrMaker, err)
}

func decode(raw []byte) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		return nil, err
	}
	return u, nil
}

// encode makes a compact object of the result of a transform.
func encode(c *compact.Codec, obj any, position uint64) (*compact.Object, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, errors.New("transform did not return an *unstructured.Unstructured")
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	return c.Encode(raw, nil, position)
}

func (m *maker) bookmark(resourceVersion string) (runtime.Object, error) {
	if m.codec == nil {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetResourceVersion(resourceVersion)
		return u, nil
	}
	return m.bookmarks.make(resourceVersion)
}

// bookmarks makes compact objects of which the reflector reads the version.
type bookmarks struct {
	mu    sync.Mutex // guards codec
	codec *compact.Codec
}

func (b *bookmarks) make(resourceVersion string) (runtime.Object, error) {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": resourceVersion}})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.codec.Encode(raw, nil, 0)
}

// newSource returns the ListerWatcher of an informer of a RESTFactory. d is nil for a
// shared informer.
func (f *Factory) newSource(i *informer, d *DurableOptions) *rawwatch.Source {
	k := i.key
	o := metav1.ListOptions{LabelSelector: k.LabelSelector, FieldSelector: k.FieldSelector}
	if tweak := f.opts.tweak.of(k.GVR); tweak != nil {
		tweak(&o)
	}
	m := &maker{bookmarks: f.bookmarks}
	cfg := rawwatch.Config{
		Client: f.rest.client, Prober: f.rest.prober, Spool: f.rest.spool, Outages: f.rest.outages,
		GVR: k.GVR, Namespace: k.Namespace, LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector,
		Edit: f.opts.edit, Make: m.make, Bookmark: m.bookmark,
		Known: func(namespace, name string) runtime.Object {
			obj, _, _ := i.shared.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
			o, _ := obj.(runtime.Object)
			return o
		},
		Count: func() int { return len(i.shared.GetStore().ListKeys()) }, At: placed,
	}
	if o.TimeoutSeconds != nil {
		cfg.TimeoutSeconds = *o.TimeoutSeconds
	}
	if d != nil {
		m.codec = d.Codec
		cfg.MetadataOnly, cfg.WarmStart, cfg.OnGap, cfg.OnRollback, cfg.Window = d.MetadataOnly, d.warmStart(), d.OnGap, d.OnRollback, d.Window
		if d.Edit != nil {
			cfg.Edit = d.Edit
		}
	}
	if m.codec == nil && (d != nil || f.opts.compact) {
		m.codec = f.codec(k, cfg.MetadataOnly)
	}
	if m.codec != nil {
		m.transform = f.opts.transform.of(k.GVR)
	}
	return rawwatch.NewSource(cfg)
}

// codec returns a codec for the objects of a key. Those of one resource share
// dictionaries across namespaces.
func (f *Factory) codec(k Key, metadataOnly bool) *compact.Codec {
	name := k.GVR.GroupResource().String()
	if metadataOnly {
		name += " metadata"
	}
	return compact.NewCodecFor(f.dictionaries, name)
}

// placed returns a compact object at a position, and any other object unchanged.
func placed(o runtime.Object, position uint64) runtime.Object {
	if c, ok := o.(*compact.Object); ok {
		return c.WithPosition(position)
	}
	return o
}

// newListerWatcher returns the ListerWatcher of an informer of New. It uses the dynamic
// client as client-go's dynamic informers do, streaming lists included.
func (f *Factory) newListerWatcher(k Key) cache.ListerWatcher {
	if f.client == nil {
		return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return nil, ErrNoClient
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, ErrNoClient
			},
		}, noWatchList{})
	}
	resource := func() dynamic.ResourceInterface {
		if k.Namespace == "" {
			return f.client.Resource(k.GVR)
		}
		return f.client.Resource(k.GVR).Namespace(k.Namespace)
	}
	change := f.opts.tweak.of(k.GVR)
	tweak := func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = k.LabelSelector, k.FieldSelector
		if change != nil {
			change(o)
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			return resource().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return resource().Watch(ctx, o)
		},
	}, f.client)
}

// noWatchList prevents streaming lists.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }
