package dynamicfactory

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// newListerWatcher makes the lister and watcher of an informer through the dynamic
// client, as client-go's own dynamic informers do it, streaming lists included.
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

// noWatchList keeps the reflector from asking for streaming lists.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }
