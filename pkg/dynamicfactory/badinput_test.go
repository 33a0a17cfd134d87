package dynamicfactory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Bad input gives typed errors, and nothing runs for it.
func TestBadInput(t *testing.T) {
	h := cache.ResourceEventHandlerFuncs{}
	f := dynamicfactory.New(fakeClient())
	defer f.Shutdown()
	for _, k := range []dynamicfactory.Key{
		{},
		{GVR: schema.GroupVersionResource{Version: "v1"}},
		{GVR: schema.GroupVersionResource{Resource: "pods"}},
		{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods/log"}},
		{GVR: configMaps, Namespace: ".."},
		{GVR: configMaps, LabelSelector: "a in b"},
		{GVR: configMaps, FieldSelector: "nonsense"},
	} {
		var bad *dynamicfactory.KeyError
		if _, err := f.Subscribe(t.Context(), k, h); !errors.As(err, &bad) || bad.Key != k {
			t.Errorf("%v: got %v", k, err)
		}
	}
	if _, err := f.Subscribe(t.Context(), configMapKey, nil); !errors.Is(err, dynamicfactory.ErrNoHandler) {
		t.Errorf("no handler: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Subscribe(ended, configMapKey, h); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	is(t, "informers", len(f.Statuses()), 0)

	if _, err := dynamicfactory.New(nil).Subscribe(t.Context(), configMapKey, h); !errors.Is(err, dynamicfactory.ErrNoClient) {
		t.Errorf("no client: %v", err)
	}
	if _, err := dynamicfactory.NewForConfig(nil); !errors.Is(err, dynamicfactory.ErrNoClient) {
		t.Errorf("no config: %v", err)
	}
	if _, err := dynamicfactory.NewResolver(nil); !errors.Is(err, dynamicfactory.ErrNoClient) {
		t.Errorf("no config for a resolver: %v", err)
	}
	if _, err := dynamicfactory.NewForConfig(&rest.Config{Host: "://"}); err == nil {
		t.Error("a host that is none: no error")
	}

	f.Shutdown()
	if _, err := f.Subscribe(t.Context(), configMapKey, h); !errors.Is(err, dynamicfactory.ErrShutdown) {
		t.Errorf("after Shutdown: %v", err)
	}
	is(t, "informers after Shutdown", len(f.Statuses()), 0)
}

// An informer without a client, as ForResource cannot refuse it, never syncs, and
// stops as any other.
func TestInformerWithoutClient(t *testing.T) {
	f := dynamicfactory.New(nil)
	i := f.ForResource(deployments)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 10)
	if err := i.Informer().SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failed <- err }); err != nil {
		t.Fatal(err)
	}
	f.StartWithContext(ctx)
	if err := receive(t, failed); !errors.Is(err, dynamicfactory.ErrNoClient) {
		t.Errorf("got %v", err)
	}
	is(t, "synced", i.Informer().HasSynced(), false)
	cancel()
	f.Shutdown()
}

// An informer of something that is not served, or that is no resource at all, waits;
// it disturbs nobody, and stops as any other.
func TestUnknownResources(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		f := must(dynamicfactory.NewForConfig(s.Config()))(t)
		for _, gvr := range []schema.GroupVersionResource{
			{},
			{Version: "v1", Resource: "unknown"},
			{Group: "example.com", Version: "v9", Resource: "unknown"},
			{Version: "v1", Resource: "../v1/configmaps"},
			{Group: "a/b", Version: "v 1%", Resource: "configmaps?watch=true"},
		} {
			f.ForResource(gvr)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.StartWithContext(ctx)
		j, _ := subscribe(t, factory(t, s), configMapKey)
		j.expect(t, "initial a")
		time.Sleep(time.Minute)
		for _, status := range f.Statuses() {
			if status.State != dynamicfactory.StateWaiting || status.Reason != string(metav1.StatusReasonNotFound) || status.Objects != 0 {
				t.Errorf("%v: %s, %s, %s", status.Key.GVR, status.State, status.Reason, status.Message)
			}
		}
		waited, enough := context.WithTimeout(t.Context(), time.Second)
		defer enough()
		if err := f.WaitForCacheSyncWithContext(waited).AsError(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for it: %v", err)
		}
		cancel()
		f.Shutdown()
	})
}

// After Shutdown everything still answers, and nothing runs.
func TestUseAfterShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		requests := must(dynamicfactory.NewRESTFactory(s.Config()))(t)
		_, durable := subscribe(t, requests, configMapKey)
		for _, f := range []*dynamicfactory.Factory{
			requests.Factory, dynamicfactory.New(fakeClient(configMap("a", nil))), dynamicfactory.New(nil),
		} {
			sub, _ := f.Subscribe(t.Context(), configMapKey, cache.ResourceEventHandlerFuncs{}) // none without a client
			synctest.Wait()
			f.Shutdown()
			asked := lists(s) + watches(s)

			if sub != nil {
				sub.Close()
				is(t, "the cache can still be read", len(must(sub.Lister().List(nil))(t)), 1)
				is(t, "state", sub.Status().State, dynamicfactory.StateStopped)
			}
			i := f.ForResource(configMaps)
			f.InformerFor(configMaps, func(c dynamic.Interface, resync time.Duration) cache.SharedIndexInformer {
				return dynamicinformer.NewFilteredDynamicInformer(c, configMaps, "", resync, cache.Indexers{}, nil).Informer()
			})
			f.Start(t.Context().Done())
			is(t, "synced", len(f.WaitForCacheSync(t.Context().Done())), 0)
			if i.Informer().HasSynced() {
				t.Error("an informer was started")
			}
			f.Statuses()
			f.Shutdown()
			synctest.Wait()
			is(t, "requests", lists(s)+watches(s), asked)
		}
		if _, err := durable.ListMetadata(t.Context(), "", func() {}, func(*rawjson.Meta) error { return nil }); !errors.Is(err, dynamicfactory.ErrStopped) {
			t.Errorf("metadata: %v", err)
		}
		durable.Relist("test")
		durable.Ack(1)
		is(t, "checkpoint", durable.Checkpoint(1), s.Version())
		durable.Close()
		is(t, "the cache can still be read", len(must(durable.Lister().List(nil))(t)), 1)
		is(t, "state", durable.Status().State, dynamicfactory.StateStopped)
		if _, err := requests.SubscribeDurable(t.Context(), configMapKey, newJournal(), dynamicfactory.DurableOptions{}); !errors.Is(err, dynamicfactory.ErrShutdown) {
			t.Errorf("a durable subscription: %v", err)
		}
	})
}
