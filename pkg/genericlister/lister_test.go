package genericlister_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/genericlister"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

func pod(namespace, name string, podLabels map[string]any) *unstructured.Unstructured {
	meta := map[string]any{"name": name, "resourceVersion": "7", "uid": "uid-" + name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	if podLabels != nil {
		meta["labels"] = podLabels
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": meta,
		"spec": map[string]any{"nodeName": "node-" + name, "priority": int64(3)},
	}}
}

func nodeIndex(obj any) ([]string, error) {
	if o, ok := obj.(*compact.Object); ok {
		u, err := o.Unstructured()
		if err != nil {
			return nil, err
		}
		obj = u
	}
	node, _, err := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, "spec", "nodeName")
	return []string{node}, err
}

// stores are indexers of every kind with the same objects. A lister must not tell
// them apart.
func stores(t *testing.T, objs ...*unstructured.Unstructured) map[string]cache.Indexer {
	t.Helper()
	codec := compact.NewCodec(compact.NewDictionaries(nil))
	stores := map[string]cache.Indexer{}
	for _, kind := range []string{"plain", "compact", "plain without namespace index", "compact without namespace index"} {
		indexers := cache.Indexers{"node": nodeIndex}
		if kind == "plain" || kind == "compact" {
			indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
		}
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
		for _, u := range objs {
			var obj any = u.DeepCopy()
			if kind[0] == 'c' {
				raw, err := json.Marshal(u.Object)
				if err != nil {
					t.Fatal(err)
				}
				if obj, err = codec.Encode(raw, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := store.Add(obj); err != nil {
				t.Fatal(err)
			}
		}
		stores[kind] = store
	}
	return stores
}

func names(t *testing.T, objs []runtime.Object, err error) []string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, o := range objs {
		u := o.(*unstructured.Unstructured)
		list = append(list, u.GetNamespace()+"/"+u.GetName())
	}
	slices.Sort(list)
	return list
}

func selector(t *testing.T, s string) labels.Selector {
	t.Helper()
	sel, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

func TestList(t *testing.T) {
	objs := []*unstructured.Unstructured{
		pod("foo", "a", map[string]any{"app": "web"}), pod("foo", "b", nil),
		pod("bar", "c", map[string]any{"app": "web"}), pod("", "d", map[string]any{"app": "db"}),
	}
	for kind, store := range stores(t, objs...) {
		l := genericlister.New(store, pods)
		for _, tc := range []struct {
			what string
			list func() ([]runtime.Object, error)
			want []string
		}{
			{"everything", func() ([]runtime.Object, error) { return l.List(labels.Everything()) }, []string{"/d", "bar/c", "foo/a", "foo/b"}},
			{"no selector", func() ([]runtime.Object, error) { return l.List(nil) }, []string{"/d", "bar/c", "foo/a", "foo/b"}},
			{"nothing", func() ([]runtime.Object, error) { return l.List(labels.Nothing()) }, nil},
			{"a label", func() ([]runtime.Object, error) { return l.List(selector(t, "app=web")) }, []string{"bar/c", "foo/a"}},
			{"no label", func() ([]runtime.Object, error) { return l.List(selector(t, "!app")) }, []string{"foo/b"}},
			{"a namespace", func() ([]runtime.Object, error) { return l.ByNamespace("foo").List(labels.Everything()) }, []string{"foo/a", "foo/b"}},
			{"a namespace and a label", func() ([]runtime.Object, error) { return l.ByNamespace("foo").List(selector(t, "app")) }, []string{"foo/a"}},
			{"another namespace", func() ([]runtime.Object, error) { return l.ByNamespace("baz").List(labels.Everything()) }, nil},
			{"all namespaces", func() ([]runtime.Object, error) { return l.ByNamespace("").List(labels.Everything()) }, []string{"/d", "bar/c", "foo/a", "foo/b"}},
			{"an index", func() ([]runtime.Object, error) { return genericlister.ByIndex(l, "node", "node-c") }, []string{"bar/c"}},
			{"an index in a namespace", func() ([]runtime.Object, error) {
				return genericlister.ByIndex(l.ByNamespace("foo"), "node", "node-c")
			}, nil},
		} {
			list, err := tc.list()
			if got := names(t, list, err); !slices.Equal(got, tc.want) {
				t.Errorf("%s, %s: got %v, want %v", kind, tc.what, got, tc.want)
			}
		}
		if _, err := genericlister.ByIndex(l, "nope", "x"); !errors.Is(err, genericlister.ErrNoIndex) {
			t.Errorf("%s: an unknown index: %v", kind, err)
		}
	}
}

func TestGet(t *testing.T) {
	objs := []*unstructured.Unstructured{pod("foo", "a", nil), pod("bar", "b", nil), pod("", "d", nil)}
	for kind, store := range stores(t, objs...) {
		l := genericlister.New(store, pods)
		for _, tc := range []struct {
			what string
			get  func() (runtime.Object, error)
			want *unstructured.Unstructured
		}{
			{"by key", func() (runtime.Object, error) { return l.Get("foo/a") }, objs[0]},
			{"in its namespace", func() (runtime.Object, error) { return l.ByNamespace("foo").Get("a") }, objs[0]},
			{"cluster scoped", func() (runtime.Object, error) { return l.Get("d") }, objs[2]},
			{"without its namespace", func() (runtime.Object, error) { return l.Get("a") }, nil},
			{"in another namespace", func() (runtime.Object, error) { return l.ByNamespace("bar").Get("a") }, nil},
			{"not there", func() (runtime.Object, error) { return l.ByNamespace("foo").Get("x") }, nil},
		} {
			got, err := tc.get()
			if tc.want == nil {
				var status apierrors.APIStatus
				if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details.Kind != "pods" {
					t.Errorf("%s, %s: got %v, %v, want a not found error that names the resource", kind, tc.what, got, err)
				}
				continue
			}
			if err != nil || !equality.Semantic.DeepEqual(got, tc.want) {
				t.Errorf("%s, %s: got %v, %v, want %v", kind, tc.what, got, err, tc.want)
			}
		}
	}
}

// Whatever is done to what a lister returned, the cache stays as it was.
func TestReturnedObjectsBelongToTheCaller(t *testing.T) {
	original := pod("foo", "a", map[string]any{"app": "web"})
	for kind, store := range stores(t, original) {
		l := genericlister.New(store, pods)
		spoil := func(o runtime.Object) {
			u := o.(*unstructured.Unstructured)
			u.SetName("spoilt")
			u.Object["spec"].(map[string]any)["nodeName"] = "spoilt"
			u.Object["metadata"].(map[string]any)["labels"].(map[string]any)["app"] = "spoilt"
		}
		one, err := l.Get("foo/a")
		if err != nil {
			t.Fatal(err)
		}
		spoil(one)
		many, err := l.ByNamespace("foo").List(nil)
		if err != nil {
			t.Fatal(err)
		}
		spoil(many[0])
		indexed, err := genericlister.ByIndex(l, "node", "node-a")
		if err != nil {
			t.Fatal(err)
		}
		spoil(indexed[0])
		typed, err := genericlister.For[corev1.Pod](l).Get("foo/a")
		if err != nil {
			t.Fatal(err)
		}
		typed.Labels["app"] = "spoilt"
		if again, err := l.Get("foo/a"); err != nil || !equality.Semantic.DeepEqual(again, original) {
			t.Errorf("%s: the cache now holds %v, %v", kind, again, err)
		}
	}
}

func TestTypedView(t *testing.T) {
	for kind, store := range stores(t, pod("foo", "a", map[string]any{"app": "web"}), pod("bar", "b", nil)) {
		l := genericlister.New(store, pods)
		view := genericlister.For[corev1.Pod](l)
		got, err := view.ByNamespace("foo").Get("a")
		if err != nil || got.Spec.NodeName != "node-a" || *got.Spec.Priority != 3 || got.Labels["app"] != "web" || got.Kind != "Pod" {
			t.Errorf("%s: got %+v, %v", kind, got, err)
		}
		if list, err := view.List(nil); err != nil || len(list) != 2 {
			t.Errorf("%s: list: %v, %v", kind, list, err)
		}
		if list, err := view.List(selector(t, "app=web")); err != nil || len(list) != 1 || list[0].Name != "a" {
			t.Errorf("%s: list by label: %v, %v", kind, list, err)
		}
		if list, err := view.ByIndex("node", "node-b"); err != nil || len(list) != 1 || list[0].Namespace != "bar" {
			t.Errorf("%s: by index: %v, %v", kind, list, err)
		}
		if _, err := view.Get("x"); !apierrors.IsNotFound(err) {
			t.Errorf("%s: a pod that is not there: %v", kind, err)
		}
		var wrong *genericlister.KindError
		if _, err := genericlister.For[appsv1.Deployment](l).Get("foo/a"); !errors.As(err, &wrong) || wrong.Got.Kind != "Pod" {
			t.Errorf("%s: a pod as a deployment: %v", kind, err)
		}
		if list, err := genericlister.For[appsv1.Deployment](l).List(nil); !errors.As(err, &wrong) || list != nil {
			t.Errorf("%s: pods as deployments: %v, %v", kind, list, err)
		}
		for _, other := range []schema.GroupVersionKind{{Group: "example.com", Version: "v1", Kind: "Pod"}, {Group: "example.com", Kind: "Pod"}} {
			if _, err := genericlister.ForKind[corev1.Pod](l, other).Get("foo/a"); !errors.As(err, &wrong) || !strings.Contains(wrong.Want, "example.com") {
				t.Errorf("%s: a pod as somebody else's pod: %v", kind, err)
			}
		}
		if _, err := genericlister.ForKind[corev1.Pod](l, corev1.SchemeGroupVersion.WithKind("Pod")).Get("foo/a"); err != nil {
			t.Errorf("%s: a v1 pod as a v1 pod: %v", kind, err)
		}
	}
}

// A view works over listers and stores that are not this project's, too.
func TestTypedViewOfTypedStore(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	cached := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "foo", Name: "a"}}
	if err := store.Add(cached); err != nil {
		t.Fatal(err)
	}
	for kind, l := range map[string]cache.GenericLister{
		"ours": genericlister.New(store, pods), "client-go's": cache.NewGenericLister(store, pods.GroupResource()),
	} {
		view := genericlister.For[corev1.Pod](l)
		got, err := view.ByNamespace("foo").Get("a")
		if err != nil || got.Name != "a" || got == cached {
			t.Errorf("%s: got %v, %v; want a copy", kind, got, err)
		}
		if list, err := view.List(labels.Everything()); err != nil || len(list) != 1 {
			t.Errorf("%s: list: %v, %v", kind, list, err)
		}
		_, err = genericlister.For[appsv1.Deployment](l).Get("foo/a")
		if err == nil || err.Error() != "genericlister: foo/a is a /, Kind=Pod, not a Deployment" {
			t.Errorf("%s: a pod as a deployment: %v", kind, err)
		}
	}
}

// An object whose fields do not fit the Go type is an error, not half a struct.
func TestTypedViewOfMisfit(t *testing.T) {
	odd := pod("foo", "a", nil)
	odd.Object["spec"] = map[string]any{"nodeName": int64(1)}
	codec := compact.NewCodec(compact.NewDictionaries(nil))
	raw, err := json.Marshal(odd.Object)
	if err != nil {
		t.Fatal(err)
	}
	o, err := codec.Encode(raw, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for kind, obj := range map[string]any{"plain": odd, "compact": o} {
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
		if err := store.Add(obj); err != nil {
			t.Fatal(err)
		}
		if got, err := genericlister.For[corev1.Pod](genericlister.New(store, pods)).Get("foo/a"); err == nil || got != nil {
			t.Errorf("%s: got %v, %v", kind, got, err)
		}
	}
}
