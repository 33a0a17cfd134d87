package genericlister

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
)

// Lister is the part of a lister that a view uses. cache.GenericLister and
// cache.GenericNamespaceLister implement it.
type Lister interface {
	List(selector labels.Selector) ([]runtime.Object, error)
	Get(name string) (runtime.Object, error)
}

// Struct is a pointer to a Go type of a kind: *corev1.Pod.
type Struct[T any] interface {
	*T
	runtime.Object
}

// KindError reports an object of another kind than the view's type.
type KindError struct {
	Namespace, Name string
	Want            string // the kind, with group and version if ForKind was given them
	Got             schema.GroupVersionKind
}

func (e *KindError) Error() string {
	return fmt.Sprintf("genericlister: %s/%s is a %s, not a %s", e.Namespace, e.Name, e.Got, e.Want)
}

// View reads the objects of a lister as Go structs, which belong to the caller.
type View[T any] struct {
	NamespaceView[T]
	all cache.GenericLister
}

// NamespaceView is a View of one namespace.
type NamespaceView[T any] struct {
	from Lister
	want schema.GroupVersionKind // without a version: only the kind is checked
}

// For returns a view of a lister's objects as T, which it decodes from the compact form
// directly:
//
//	pods, err := genericlister.For[corev1.Pod](lister).List(labels.Everything())
//
// The kind of T is its name, as it is for all Kubernetes types; the version of the
// objects is not checked. An object of another kind is a *KindError.
func For[T any, P Struct[T]](from cache.GenericLister) View[T] {
	return ForKind[T, P](from, schema.GroupVersionKind{Kind: reflect.TypeFor[T]().Name()})
}

// ForKind is For with a check of the group and version.
func ForKind[T any, P Struct[T]](from cache.GenericLister, kind schema.GroupVersionKind) View[T] {
	return View[T]{NamespaceView[T]{from, kind}, from}
}

// ByNamespace returns a view of one namespace.
func (v View[T]) ByNamespace(namespace string) NamespaceView[T] {
	return NamespaceView[T]{v.all.ByNamespace(namespace), v.want}
}

// List returns the objects that the selector matches, in no order. nil matches all.
func (v NamespaceView[T]) List(selector labels.Selector) ([]*T, error) {
	if l, ok := v.from.(*lister); ok {
		return collect(l, selector, v.convert)
	}
	objs, err := v.from.List(selector)
	if err != nil {
		return nil, err
	}
	list := make([]*T, 0, len(objs))
	for _, obj := range objs {
		t, err := v.convert(obj)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// Get returns the object of a name, or an error that apierrors.IsNotFound recognizes.
func (v NamespaceView[T]) Get(name string) (*T, error) {
	var obj any
	var err error
	if l, ok := v.from.(*lister); ok {
		obj, err = l.get(name)
	} else {
		obj, err = v.from.Get(name)
	}
	if err != nil {
		return nil, err
	}
	return v.convert(obj)
}

// ByIndex returns the objects with a value in an index of the lister's indexer.
func (v NamespaceView[T]) ByIndex(index, value string) ([]*T, error) {
	l, ok := v.from.(*lister)
	if !ok {
		return nil, fmt.Errorf("%w: the lister is a %T", ErrNoIndex, v.from)
	}
	return collectIndex(l, index, value, v.convert)
}

// convert makes a T of a cached object, without shared memory.
func (v NamespaceView[T]) convert(obj any) (*T, error) {
	switch o := obj.(type) {
	case *compact.Object:
		if err := v.check(o.GroupVersionKind(), o.GetNamespace(), o.GetName()); err != nil {
			return nil, err
		}
		raw, err := o.AppendJSON(nil)
		if err != nil {
			return nil, err
		}
		t := new(T)
		if err := json.Unmarshal(raw, t); err != nil {
			return nil, fmt.Errorf("genericlister: %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
		return t, nil
	case *unstructured.Unstructured:
		if err := v.check(o.GroupVersionKind(), o.GetNamespace(), o.GetName()); err != nil {
			return nil, err
		}
		t := new(T)
		// The converter shares opaque values with its input.
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.DeepCopy().Object, t); err != nil {
			return nil, fmt.Errorf("genericlister: %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
		return t, nil
	case runtime.Object:
		if t, ok := o.DeepCopyObject().(any).(*T); ok {
			return t, nil
		}
		return nil, &KindError{Want: v.want.Kind, Got: o.GetObjectKind().GroupVersionKind()}
	default:
		return nil, fmt.Errorf("genericlister: the cache holds a %T", obj)
	}
}

func (v NamespaceView[T]) check(got schema.GroupVersionKind, namespace, name string) error {
	if got == v.want || v.want.Version == "" && got.Kind == v.want.Kind {
		return nil
	}
	want := v.want.Kind
	if v.want.Version != "" {
		want = v.want.String()
	}
	return &KindError{Namespace: namespace, Name: name, Want: want, Got: got}
}
