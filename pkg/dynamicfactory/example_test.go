package dynamicfactory_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/genericlister"
)

// The resource that the examples watch.
var settings = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// A first informer: exactly as with client-go's dynamic informer factory.
func Example() {
	cfg, stop := exampleCluster()
	defer stop()

	factory, err := dynamicfactory.NewForConfig(cfg)
	if err != nil {
		panic(err)
	}
	defer factory.Shutdown()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // before Shutdown, which waits

	informer := factory.ForResource(settings)
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		panic(err)
	}
	obj, err := informer.Lister().ByNamespace("default").Get("red")
	if err != nil {
		panic(err)
	}
	fmt.Println(obj.(*unstructured.Unstructured).Object["data"])
	// Output: map[color:#f00]
}

// Handlers share an informer: one list, one watch and one cache for all of them.
// Each receives what exists first.
func ExampleFactory_Subscribe() {
	cfg, stop := exampleCluster()
	defer stop()
	factory, err := dynamicfactory.NewForConfig(cfg)
	if err != nil {
		panic(err)
	}
	defer factory.Shutdown()

	key := dynamicfactory.Key{GVR: settings, Namespace: "default"}
	for range 3 {
		seen := make(chan string, 2)
		sub, err := factory.Subscribe(context.Background(), key, cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { seen <- obj.(*unstructured.Unstructured).GetName() },
		})
		if err != nil {
			panic(err)
		}
		<-sub.Synced()
		names := []string{<-seen, <-seen}
		slices.Sort(names)
		fmt.Println(names)
	}
	fmt.Println(len(factory.Statuses()), "informer")
	// Output:
	// [blue red]
	// [blue red]
	// [blue red]
	// 1 informer
}

// One informer stops while the others run: the last subscription that is closed
// stops it, joins its goroutines and frees its cache.
func ExampleSubscription_Close() {
	cfg, stop := exampleCluster()
	defer stop()
	factory, err := dynamicfactory.NewForConfig(cfg)
	if err != nil {
		panic(err)
	}
	defer factory.Shutdown()

	var subs []*dynamicfactory.Subscription
	for _, namespace := range []string{"default", "kube-system"} {
		key := dynamicfactory.Key{GVR: settings, Namespace: namespace}
		sub, err := factory.Subscribe(context.Background(), key, cache.ResourceEventHandlerFuncs{})
		if err != nil {
			panic(err)
		}
		<-sub.Synced()
		subs = append(subs, sub)
	}
	subs[1].Close()
	for _, s := range factory.Statuses() {
		fmt.Println(s.Key.Namespace, s.Objects, "objects")
	}
	// Output: default 2 objects
}

// A cache of compact objects takes a fraction of the memory. Handlers get
// *compact.Object; listers, and typed views of them, inflate what they return.
func ExampleWithCompactStore() {
	cfg, stop := exampleCluster()
	defer stop()
	factory, err := dynamicfactory.NewForConfig(cfg, dynamicfactory.WithCompactStore())
	if err != nil {
		panic(err)
	}
	defer factory.Shutdown()

	names := make(chan string, 2)
	sub, err := factory.Subscribe(context.Background(), dynamicfactory.Key{GVR: settings}, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { names <- obj.(*compact.Object).GetName() },
	})
	if err != nil {
		panic(err)
	}
	<-sub.Synced()
	fmt.Println("handler:", <-names, <-names)

	view := genericlister.For[corev1.ConfigMap](sub.Lister())
	blue, err := view.ByNamespace("default").Get("blue")
	if err != nil {
		panic(err)
	}
	all, err := view.List(labels.Everything())
	if err != nil {
		panic(err)
	}
	fmt.Println("lister:", blue.Data["color"], len(all))
	// Output:
	// handler: blue red
	// lister: #00f 2
}

// One resource may have a transform, indexes and list options of its own, beside
// those of all.
func ExampleWithTransformFor() {
	cfg, stop := exampleCluster()
	defer stop()
	factory, err := dynamicfactory.NewForConfig(cfg,
		dynamicfactory.WithTransformFor(settings, func(obj any) (any, error) {
			obj.(*unstructured.Unstructured).SetAnnotations(nil)
			return obj, nil
		}),
		dynamicfactory.WithIndexersFor(settings, cache.Indexers{"color": func(obj any) ([]string, error) {
			color, _, err := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, "data", "color")
			return []string{color}, err
		}}),
		dynamicfactory.WithTweakListOptionsFor(settings, func(o *metav1.ListOptions) { o.LabelSelector = "app=paint" }),
	)
	if err != nil {
		panic(err)
	}
	defer factory.Shutdown()

	sub, err := factory.Subscribe(context.Background(), dynamicfactory.Key{GVR: settings}, cache.ResourceEventHandlerFuncs{})
	if err != nil {
		panic(err)
	}
	<-sub.Synced()
	found, err := genericlister.ByIndex(sub.Lister(), "color", "#00f")
	if err != nil {
		panic(err)
	}
	for _, obj := range found {
		fmt.Println(obj.(*unstructured.Unstructured).GetName())
	}
	// Output: blue
}

// A program that records the objects together with the checkpoint resumes there: its next
// run needs no list and misses nothing.
func ExampleRESTFactory_SubscribeDurable() {
	cfg, stop := exampleCluster()
	defer stop()
	key := dynamicfactory.Key{GVR: settings}

	// A real program keeps this on disk.
	recorded := dynamicfactory.WarmStart{}

	run := func(verb string, handled chan<- *compact.Object) (*dynamicfactory.RESTFactory, *dynamicfactory.DurableSubscription) {
		factory, err := dynamicfactory.NewRESTFactory(cfg)
		if err != nil {
			panic(err)
		}
		handler := cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { handled <- obj.(*compact.Object) },
		}
		sub, err := factory.SubscribeDurable(context.Background(), key, handler, dynamicfactory.DurableOptions{
			WarmStart: func(context.Context) (*dynamicfactory.WarmStart, error) {
				if recorded.ResourceVersion == "" {
					return nil, nil // the first run
				}
				return &recorded, nil
			},
			OnGap: func(g dynamicfactory.Gap) { fmt.Println("history lost:", g.Cause) },
		})
		if err != nil {
			panic(err)
		}
		<-sub.Synced()
		fmt.Println(verb, "with", len(sub.Informer().GetStore().ListKeys()), "objects")
		return factory, sub
	}

	handled := make(chan *compact.Object, 10)
	first, sub := run("began", handled)
	position := uint64(0)
	for range 2 {
		o := <-handled
		recorded.Objects = append(recorded.Objects, o)
		position = max(position, o.Position())
	}
	recorded.ResourceVersion = sub.Checkpoint(position) // as of what is safe
	first.Shutdown()

	second, sub := run("resumed", handled)
	fmt.Println("lists after the first:", sub.Status().Relists)
	second.Shutdown()
	// Output:
	// began with 2 objects
	// resumed with 2 objects
	// lists after the first: 0
}

// Names as kubectl takes them, and wildcards, kept current while the cluster
// changes.
func ExampleResolver() {
	cfg, stop := exampleCluster()
	defer stop()
	resolver, err := dynamicfactory.NewResolver(cfg)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- resolver.Run(ctx) }()

	<-resolver.Changed() // the first answer; then whenever a definition comes or goes
	for _, name := range []string{"cm", "*.example.com", "*"} {
		resources, err := resolver.Resolve(name)
		if err != nil {
			panic(err)
		}
		for _, r := range resources {
			fmt.Println(name, "is", r.Kind, r.GVR.GroupVersion())
		}
	}
	cancel()
	if err := <-done; err != nil {
		panic(err)
	}
	// Output:
	// cm is ConfigMap v1
	// *.example.com is Widget example.com/v1
	// * is ConfigMap v1
	// * is Widget example.com/v1
}

// exampleCluster is a cluster with two objects. A program gets its rest.Config
// from clientcmd or rest.InClusterConfig.
func exampleCluster() (cfg *rest.Config, stop func()) {
	s := apitest.Start()
	s.Serve("/api/v1/configmaps", "v1", "ConfigMap")
	s.Put("/api/v1/configmaps", "default", "blue", map[string]any{"data": map[string]any{"color": "#00f"}})
	s.Put("/api/v1/configmaps", "default", "red", map[string]any{"data": map[string]any{"color": "#f00"}})
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		list := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}}
		switch r.URL.Path {
		case "/api":
			list.Items = append(list.Items, group("", version("v1", serves("configmaps", "ConfigMap", "cm"))))
		case "/apis":
			list.Items = append(list.Items, group("example.com", version("v1", serves("widgets", "Widget"))))
		default:
			return false
		}
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		_ = json.NewEncoder(w).Encode(list)
		return true
	})
	return s.Config(), s.Close
}
