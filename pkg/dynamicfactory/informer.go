package dynamicfactory

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/genericlister"
)

// informer is a SharedIndexInformer with its source and lifetime. It runs while it has an
// owner: the stop channel of its start, or a subscription.
type informer struct {
	key    Key
	shared cache.SharedIndexInformer
	source *rawwatch.Source // nil in a factory made by New

	// Guarded by Factory.mu.
	pinned  bool // ForResource has returned it: it stays in the factory
	started bool // Start has been called
	owners  int
	cancel  context.CancelFunc // nil: not started
	ended   bool               // cancel was called
	done    chan struct{}      // closed when all goroutines have ended
}

var _ informers.GenericInformer = (*informer)(nil)

// Informer returns the shared informer.
func (i *informer) Informer() cache.SharedIndexInformer { return i.shared }

// Lister returns a lister over the informer's cache.
func (i *informer) Lister() cache.GenericLister {
	return genericlister.New(i.shared.GetIndexer(), i.key.GVR)
}

// newInformer makes an informer: a shared one, or that of a durable subscription.
func (f *Factory) newInformer(k Key, d *DurableOptions) *informer {
	i := &informer{key: k}
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
		ResyncPeriod:      resync,
		Indexers:          f.opts.indexersFor(k.GVR),
		ObjectDescription: k.String(),
		Identifier:        f.identifier(k),
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
