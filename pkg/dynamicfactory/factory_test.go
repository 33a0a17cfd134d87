package dynamicfactory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

func deployment(namespace, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": namespace, "name": name, "labels": map[string]any{"environment": "test"}},
		"spec":     map[string]any{"replicas": int64(1)},
	}}
}

// fakeClient is client-go's fake. Between a list and the watch that follows, it
// loses changes; watched delivers a value when a watch is established.
func fakeClient(objs ...runtime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		deployments: "DeploymentList", configMaps: "ConfigMapList", secrets: "SecretList",
	}, objs...)
}

func watched(client *fake.FakeDynamicClient) <-chan struct{} {
	established := make(chan struct{}, 10)
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		established <- struct{}{}
		return true, w, err
	})
	return established
}

// started starts a factory's informers and waits for their lists; everything ends
// with the test.
func started(t *testing.T, f *dynamicfactory.Factory) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		f.Shutdown()
	})
	f.Start(ctx.Done())
	for gvr, ok := range f.WaitForCacheSync(t.Context().Done()) {
		if !ok {
			t.Fatalf("%v has not synced", gvr)
		}
	}
}

// receive waits for what a handler sends.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// What client-go's own tests of its dynamic informer factory ask: every kind of
// change reaches the handler as the object that the client has.
func TestInformerReportsChanges(t *testing.T) {
	existing := deployment("ns", "old")
	for _, tc := range []struct {
		what   string
		change func(t *testing.T, c dynamic.ResourceInterface) *unstructured.Unstructured
		handle func(got chan<- *unstructured.Unstructured) cache.ResourceEventHandlerFuncs
	}{
		{"add", func(t *testing.T, c dynamic.ResourceInterface) *unstructured.Unstructured {
			return must(c.Create(t.Context(), deployment("ns", "new"), metav1.CreateOptions{}))(t)
		}, func(got chan<- *unstructured.Unstructured) cache.ResourceEventHandlerFuncs {
			return cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
				if u := obj.(*unstructured.Unstructured); u.GetName() == "new" {
					got <- u
				}
			}}
		}},
		{"update", func(t *testing.T, c dynamic.ResourceInterface) *unstructured.Unstructured {
			changed := existing.DeepCopy()
			changed.Object["spec"] = map[string]any{"replicas": int64(7)}
			return must(c.Update(t.Context(), changed, metav1.UpdateOptions{}))(t)
		}, func(got chan<- *unstructured.Unstructured) cache.ResourceEventHandlerFuncs {
			return cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, obj any) { got <- obj.(*unstructured.Unstructured) }}
		}},
		{"delete", func(t *testing.T, c dynamic.ResourceInterface) *unstructured.Unstructured {
			if err := c.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			return existing
		}, func(got chan<- *unstructured.Unstructured) cache.ResourceEventHandlerFuncs {
			return cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) { got <- obj.(*unstructured.Unstructured) }}
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			client := fakeClient(existing.DeepCopy())
			established := watched(client)
			f := dynamicfactory.New(client)
			got := make(chan *unstructured.Unstructured, 1)
			if _, err := f.ForResource(deployments).Informer().AddEventHandler(tc.handle(got)); err != nil {
				t.Fatal(err)
			}
			started(t, f)
			receive(t, established)
			want := tc.change(t, client.Resource(deployments).Namespace("ns"))
			if o := receive(t, got); !equality.Semantic.DeepEqual(o, want) {
				t.Errorf("got %v, want %v", o, want)
			}
		})
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A filtered factory sees its namespace, and passes its tweaked options on with
// every request.
func TestFilteredFactory(t *testing.T) {
	client := fakeClient(deployment("ns-foo", "a"), deployment("ns-bar", "b"))
	established := watched(client)
	var mu sync.Mutex
	selectors := map[string]bool{}
	client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		r := a.(clienttesting.ListAction).GetListRestrictions()
		selectors["list "+r.Fields.String()+" "+r.Labels.String()] = true
		return false, nil, nil
	})
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		r := a.(clienttesting.WatchAction).GetWatchRestrictions()
		selectors["watch "+r.Fields.String()+" "+r.Labels.String()] = true
		return false, nil, nil
	})
	f := dynamicfactory.New(client, dynamicfactory.WithNamespace("ns-foo"), dynamicfactory.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector, o.LabelSelector = "metadata.name!=x", "environment=test"
	}))
	names := make(chan string, 10)
	i := f.ForResource(deployments)
	if _, err := i.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		names <- obj.(*unstructured.Unstructured).GetName()
	}}); err != nil {
		t.Fatal(err)
	}
	started(t, f)
	is(t, "listed", receive(t, names), "a")
	receive(t, established)
	for _, ns := range []string{"ns-bar", "ns-foo"} {
		must(client.Resource(deployments).Namespace(ns).Create(t.Context(), deployment(ns, "in-"+ns), metav1.CreateOptions{}))(t)
	}
	is(t, "created", receive(t, names), "in-ns-foo")
	mu.Lock()
	defer mu.Unlock()
	if !selectors["list metadata.name!=x environment=test"] || !selectors["watch metadata.name!=x environment=test"] || len(selectors) != 2 {
		t.Errorf("asked for %v", selectors)
	}
}

// With a dynamic client, streaming lists are used where the client can, and are not
// where it says that it cannot.
func TestStreamingLists(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("watch") != "true" || q.Get("sendInitialEvents") != "true" || r.URL.Path != "/apis/apps/v1/namespaces/ns/deployments" {
			t.Errorf("not a streaming list: %v", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		end := deployment("", "")
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		end.SetResourceVersion("10")
		first := deployment("ns", "a")
		first.SetResourceVersion("9")
		for _, e := range []metav1.WatchEvent{
			{Type: string(watch.Added), Object: runtime.RawExtension{Object: first}},
			{Type: string(watch.Bookmark), Object: runtime.RawExtension{Object: end}},
		} {
			if err := json.NewEncoder(w).Encode(e); err != nil {
				t.Error(err)
			}
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	client := must(dynamic.NewForConfig(&rest.Config{Host: server.URL}))(t)
	f := dynamicfactory.New(client, dynamicfactory.WithNamespace("ns"))
	i := f.ForResource(deployments)
	started(t, f)
	is(t, "cached", len(i.Informer().GetStore().ListKeys()), 1)

	f = dynamicfactory.New(fakeClient(deployment("ns", "a")), dynamicfactory.WithNamespace("ns")) // says that it cannot
	i = f.ForResource(deployments)
	started(t, f)
	is(t, "cached without", len(i.Informer().GetStore().ListKeys()), 1)
}

// One informer per resource, however often it is asked for; Start again after
// adding; nothing starts after Shutdown, which may be called by anybody any time.
func TestFactoryLifeCycle(t *testing.T) {
	var f dynamicinformer.DynamicSharedInformerFactory = dynamicfactory.New(fakeClient(deployment("ns", "a")))
	first := f.ForResource(deployments)
	if f.ForResource(deployments).Informer() != first.Informer() {
		t.Error("two informers for one resource")
	}
	stop := make(chan struct{})
	is(t, "synced before Start", len(f.WaitForCacheSync(stop)), 0)
	f.Start(stop)
	f.Start(stop)
	is(t, "synced", fmt.Sprint(f.WaitForCacheSync(stop)), fmt.Sprint(map[schema.GroupVersionResource]bool{deployments: true}))
	second := f.ForResource(configMaps)
	is(t, "synced without the new one", len(f.WaitForCacheSync(stop)), 1)
	f.Start(stop)
	is(t, "synced with the new one", len(f.WaitForCacheSync(stop)), 2)
	if !second.Informer().HasSynced() {
		t.Error("the second informer has not synced")
	}

	var waiting sync.WaitGroup
	var done atomic.Int32
	for range 3 {
		waiting.Go(func() {
			f.Shutdown()
			done.Add(1)
		})
	}
	time.Sleep(20 * time.Millisecond) // for Shutdown to return, as it must not
	is(t, "Shutdowns that did not wait for the stop channel", done.Load(), 0)
	close(stop)
	waiting.Wait()
	if !first.Informer().IsStopped() || !second.Informer().IsStopped() {
		t.Error("an informer runs after Shutdown")
	}
	f.Shutdown()
	third := f.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	f.Start(make(chan struct{}))
	if third.Informer().HasSynced() || third.Informer().IsStopped() {
		t.Error("an informer was started after Shutdown")
	}
}

func TestStartWithContext(t *testing.T) {
	f := dynamicfactory.New(fakeClient())
	i := f.ForResource(deployments)
	ctx, cancel := context.WithCancelCause(t.Context())
	f.StartWithContext(ctx)
	r := f.WaitForCacheSyncWithContext(ctx)
	if r.AsError() != nil || !r.Synced[deployments] {
		t.Errorf("got %v", r)
	}
	cancel(errors.New("enough"))
	f.Shutdown()
	is(t, "stopped", i.Informer().IsStopped(), true)
}

// Waiting for what cannot sync ends with the context, and says for what it waited.
func TestWaitForCacheSyncInVain(t *testing.T) {
	client := fakeClient()
	client.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(deployments.GroupResource(), "", errors.New("no"))
	})
	f := dynamicfactory.New(client)
	f.ForResource(deployments)
	run, stop := context.WithCancel(t.Context())
	f.StartWithContext(run)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no patience"))
	r := f.WaitForCacheSyncWithContext(ctx)
	if err := r.AsError(); err == nil || r.Synced[deployments] || err.Error() != "dynamicfactory: not synced: apps/v1, Resource=deployments: no patience" {
		t.Errorf("got %v, %v", r, err)
	}
	stop()
	f.Shutdown()
}

func TestInformerFor(t *testing.T) {
	client := fakeClient(deployment("ns", "a"))
	f := dynamicfactory.New(client, dynamicfactory.WithResync(deployments, time.Hour))
	made := 0
	construct := func(c dynamic.Interface, resync time.Duration) cache.SharedIndexInformer {
		made++
		is(t, "client", c, dynamic.Interface(client))
		is(t, "resync", resync, time.Hour)
		return dynamicinformer.NewFilteredDynamicInformer(c, deployments, "", resync, cache.Indexers{}, nil).Informer()
	}
	i := f.InformerFor(deployments, construct)
	if f.InformerFor(deployments, construct) != i || made != 1 {
		t.Errorf("made %d informers", made)
	}
	started(t, f)
	is(t, "cached", len(i.GetStore().ListKeys()), 1)
}

// The transform sees what goes into the cache, in every kind of store.
func TestTransform(t *testing.T) {
	for _, compactStore := range []bool{false, true} {
		opts := []dynamicfactory.Option{dynamicfactory.WithTransform(func(obj any) (any, error) {
			u, ok := obj.(*unstructured.Unstructured)
			if !ok {
				return nil, fmt.Errorf("got a %T", obj)
			}
			u = u.DeepCopy()
			u.SetAnnotations(map[string]string{"transformed": "yes"})
			return u, nil
		})}
		if compactStore {
			opts = append(opts, dynamicfactory.WithCompactStore())
		}
		f := dynamicfactory.New(fakeClient(deployment("ns", "a")), opts...)
		i := f.ForResource(deployments)
		started(t, f)
		cached := i.Informer().GetStore().List()[0]
		if _, ok := cached.(*compact.Object); ok != compactStore {
			t.Errorf("the cache holds a %T", cached)
		}
		o := must(i.Lister().ByNamespace("ns").Get("a"))(t).(*unstructured.Unstructured)
		is(t, "annotation", o.GetAnnotations()["transformed"], "yes")
		list := must(i.Lister().List(labels.SelectorFromSet(labels.Set{"environment": "test"})))(t)
		is(t, "listed", len(list), 1)
	}
}

func TestIndexers(t *testing.T) {
	index := func(obj any) ([]string, error) { return []string{obj.(metav1.Object).GetName()[:1]}, nil }
	f := dynamicfactory.New(fakeClient(deployment("ns", "a1"), deployment("ns", "a2"), deployment("ns", "b")),
		dynamicfactory.WithIndexers(cache.Indexers{"first": index}), dynamicfactory.WithCompactStore())
	i := f.ForResource(deployments)
	started(t, f)
	is(t, "by index", len(must(i.Informer().GetIndexer().ByIndex("first", "a"))(t)), 2)
	is(t, "by namespace", len(must(i.Informer().GetIndexer().ByIndex(cache.NamespaceIndex, "ns"))(t)), 3)

	f = dynamicfactory.New(fakeClient(deployment("ns", "a")), dynamicfactory.WithoutNamespaceIndex())
	i = f.ForResource(deployments)
	started(t, f)
	is(t, "indexes", len(i.Informer().GetIndexer().GetIndexers()), 0)
	is(t, "listed without an index", len(must(i.Lister().ByNamespace("ns").List(nil))(t)), 1)
}

// A resource's resync period gives its handlers every object again.
func TestResync(t *testing.T) {
	f := dynamicfactory.New(fakeClient(deployment("ns", "a")), dynamicfactory.WithDefaultResync(time.Hour), dynamicfactory.WithResync(deployments, time.Second))
	again := make(chan string, 10)
	if _, err := f.ForResource(deployments).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) {
			if old == obj {
				again <- obj.(*unstructured.Unstructured).GetName()
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	started(t, f)
	is(t, "resynced", receive(t, again), "a")
}

// An informer that ForResource has handed out and that a subscription has started
// is nobody's to stop but the stop channel's, or Shutdown's.
func TestSubscriptionsAndForResourceShareInformers(t *testing.T) {
	f := dynamicfactory.New(fakeClient(deployment("ns", "a")))
	i := f.ForResource(deployments)
	got := make(chan string, 10)
	sub := must(f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { got <- obj.(*unstructured.Unstructured).GetName() },
	}))(t)
	if sub.Informer() != i.Informer() {
		t.Error("two informers for one key")
	}
	is(t, "told", receive(t, got), "a")
	sub.Close()
	is(t, "stopped with the subscription", i.Informer().IsStopped(), false)
	ctx, cancel := context.WithCancel(t.Context())
	f.StartWithContext(ctx)
	is(t, "synced", f.WaitForCacheSync(ctx.Done())[deployments], true)
	second := must(f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{}))(t)
	cancel()
	third := must(f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{}))(t)
	second.Close()
	is(t, "stopped while a subscription is left", i.Informer().IsStopped(), false)
	third.Close()
	is(t, "stopped with the last", i.Informer().IsStopped(), true)
	fresh := must(f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { got <- obj.(*unstructured.Unstructured).GetName() },
	}))(t)
	is(t, "told afresh", receive(t, got), "a")
	f.Shutdown() // closes it
	is(t, "stopped by Shutdown", fresh.Informer().IsStopped(), true)
}

// The status of a subscription is that of its informer in the list of all.
func TestStatusCountsSubscriptions(t *testing.T) {
	f := dynamicfactory.New(fakeClient(deployment("ns", "a")))
	defer f.Shutdown()
	var subs []*dynamicfactory.Subscription
	for range 3 {
		sub, err := f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{})
		if err != nil {
			t.Fatal(err)
		}
		<-sub.Synced()
		subs = append(subs, sub)
		is(t, "subscriptions", sub.Status().Subscriptions, len(subs))
		is(t, "subscriptions in the list", f.Statuses()[0].Subscriptions, len(subs))
	}
	subs[0].Close()
	subs[0].Close()
	is(t, "subscriptions behind a Close", subs[1].Status().Subscriptions, 2)
	is(t, "those of a closed one", subs[0].Status().Subscriptions, 2)
}

// Subscribing and closing from all sides neither races nor leaks.
func TestSubscriptionsFromAllSides(t *testing.T) {
	f := dynamicfactory.New(fakeClient(deployment("ns", "a"), deployment("ns", "b")))
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				names := make(chan string, 10)
				sub, err := f.Subscribe(ctx, dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{
					AddFunc: func(obj any) { names <- obj.(*unstructured.Unstructured).GetName() },
				})
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				told := []string{receive(t, names), receive(t, names)}
				slices.Sort(told)
				if !slices.Equal(told, []string{"a", "b"}) {
					t.Errorf("told %v", told)
				}
				if n%2 == 0 {
					cancel()
				}
				sub.Close()
				cancel()
			}
		})
	}
	all.Wait()
	is(t, "informers left", len(f.Statuses()), 0)
	f.Shutdown()
}

func TestShutdownWhileSubscribing(t *testing.T) {
	for range 20 {
		f := dynamicfactory.New(fakeClient())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					if _, err := f.Subscribe(t.Context(), dynamicfactory.Key{GVR: deployments}, cache.ResourceEventHandlerFuncs{}); err != nil {
						if !errors.Is(err, dynamicfactory.ErrShutdown) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		f.Shutdown()
		all.Wait()
		is(t, "informers left", len(f.Statuses()), 0)
	}
}
