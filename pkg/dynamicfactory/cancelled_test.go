package dynamicfactory

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"
)

// endsWhenAsked is a context that ends when its error has been read.
type endsWhenAsked struct {
	context.Context
	end context.CancelFunc
}

func (c endsWhenAsked) Err() error {
	defer c.end()
	return c.Context.Err()
}

// TestCancelledSubscribe: a subscription whose context ends while it is made leaves nothing
// in the factory.
func TestCancelledSubscribe(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{pods: "PodList"})
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		f := New(client)
		s, err := f.Subscribe(endsWhenAsked{ctx, cancel}, Key{GVR: pods}, cache.ResourceEventHandlerFuncs{})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		f.mu.Lock()
		subs, informers := len(f.subs), len(f.informers)
		f.mu.Unlock()
		if subs != 0 || informers != 0 {
			t.Fatalf("%d subscriptions and %d informers are left", subs, informers)
		}
		f.Shutdown()
	}
}
