package dynamicfactory_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// annotate is a transform that leaves a mark.
func annotate(mark string) cache.TransformFunc {
	return func(obj any) (any, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("got a %T", obj)
		}
		u = u.DeepCopy()
		u.SetAnnotations(map[string]string{"mark": mark})
		return u, nil
	}
}

// indexAs is an index with one value for all objects.
func indexAs(value string) cache.IndexFunc {
	return func(any) ([]string, error) { return []string{value}, nil }
}

// named is a tweak that leaves one object.
func named(name string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) { o.FieldSelector = "status.phase=" + name }
}

// perResource are options for all resources, some of which two resources have to
// themselves: config maps their own, secrets none.
func perResource() []dynamicfactory.Option {
	return []dynamicfactory.Option{
		dynamicfactory.WithTransformFor(configMaps, annotate("own")), // the order does not matter
		dynamicfactory.WithTransform(annotate("all")),
		dynamicfactory.WithTransformFor(secrets, nil),
		dynamicfactory.WithTweakListOptions(named("all")),
		dynamicfactory.WithTweakListOptionsFor(configMaps, named("own")),
		dynamicfactory.WithTweakListOptionsFor(secrets, nil),
		dynamicfactory.WithIndexersFor(configMaps, cache.Indexers{"shared": indexAs("own"), "extra": indexAs("own")}),
		dynamicfactory.WithIndexersFor(configMaps, cache.Indexers{"more": indexAs("own")}),
		dynamicfactory.WithIndexers(cache.Indexers{"shared": indexAs("all")}),
	}
}

// wantPerResource is what perResource comes to.
var wantPerResource = map[schema.GroupVersionResource]struct {
	fields, mark, shared string
	indexes              []string
}{
	configMaps:  {"status.phase=own", "own", "own", []string{"extra", "more", "namespace", "shared"}},
	secrets:     {"", "", "all", []string{"namespace", "shared"}},
	deployments: {"status.phase=all", "all", "all", []string{"namespace", "shared"}},
}

// checkPerResource checks the informers of a factory whose resources have one object
// each; asked are the field selectors of the requests for a resource.
func checkPerResource(t *testing.T, f *dynamicfactory.Factory, asked func(schema.GroupVersionResource) []string) {
	t.Helper()
	for gvr := range wantPerResource {
		f.ForResource(gvr)
	}
	started(t, f)
	for gvr, want := range wantPerResource {
		i := f.ForResource(gvr)
		list := must(i.Lister().List(nil))(t)
		is(t, gvr.Resource+" cached", len(list), 1)
		is(t, gvr.Resource+" transformed by", list[0].(*unstructured.Unstructured).GetAnnotations()["mark"], want.mark)
		indexer := i.Informer().GetIndexer()
		var indexes []string
		for name := range indexer.GetIndexers() {
			indexes = append(indexes, name)
		}
		slices.Sort(indexes)
		is(t, gvr.Resource+" indexes", fmt.Sprint(indexes), fmt.Sprint(want.indexes))
		is(t, gvr.Resource+" by the shared index", len(must(indexer.ByIndex("shared", want.shared))(t)), 1)
		fields := asked(gvr)
		if len(fields) == 0 || slices.ContainsFunc(fields, func(f string) bool { return f != want.fields }) {
			t.Errorf("%s were asked for with field selectors %q, want %q", gvr.Resource, fields, want.fields)
		}
	}
}

// Transform, indexers and list options of one resource are its own, whoever lists
// and whatever is cached.
func TestOptionsPerResource(t *testing.T) {
	for _, compactStore := range []bool{false, true} {
		opts := perResource()
		if compactStore {
			opts = append(opts, dynamicfactory.WithCompactStore())
		}
		t.Run(fmt.Sprintf("client, compact %v", compactStore), func(t *testing.T) {
			config, secret := configMap("a", nil), configMap("a", nil)
			secret.SetKind("Secret")
			client := fakeClient(deployment("ns", "a"), config, secret)
			asked := make(chan [2]string, 10)
			client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				asked <- [2]string{a.GetResource().Resource, a.(clienttesting.ListAction).GetListRestrictions().Fields.String()}
				return false, nil, nil
			})
			checkPerResource(t, dynamicfactory.New(client, opts...), func(gvr schema.GroupVersionResource) (fields []string) {
				for range len(asked) {
					if a := <-asked; a[0] == gvr.Resource {
						fields = append(fields, a[1])
					} else {
						asked <- a
					}
				}
				return fields
			})
		})
		t.Run(fmt.Sprintf("config, compact %v", compactStore), func(t *testing.T) {
			s := apitest.New(t)
			for path, kind := range map[string][2]string{
				configMapPath: {"v1", "ConfigMap"}, "/api/v1/secrets": {"v1", "Secret"}, "/apis/apps/v1/deployments": {"apps/v1", "Deployment"},
			} {
				s.Serve(path, kind[0], kind[1])
				s.Put(path, "ns", "a", nil)
			}
			var restOpts []dynamicfactory.RESTOption
			for _, opt := range opts {
				restOpts = append(restOpts, opt)
			}
			checkPerResource(t, must(dynamicfactory.NewRESTFactory(s.Config(), restOpts...))(t).Factory, func(gvr schema.GroupVersionResource) (fields []string) {
				for _, r := range s.Requests(gvr.Resource, false) {
					fields = append(fields, r.Query["fieldSelector"])
				}
				return fields
			})
		})
	}
}
