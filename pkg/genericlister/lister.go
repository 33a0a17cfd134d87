package genericlister

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
)

// ErrNoIndex reports that the indexer lacks the requested index, or that New has not made
// the lister.
var ErrNoIndex = errors.New("genericlister: no such index")

// lister reads one resource from an indexer. A namespace lister reads one namespace.
type lister struct {
	indexer   cache.Indexer
	gvr       schema.GroupVersionResource
	namespace string
}

var (
	_ cache.GenericLister          = (*lister)(nil)
	_ cache.GenericNamespaceLister = (*lister)(nil)
)

// New returns a lister over an informer's indexer. gvr names the resource in errors. The
// returned objects belong to the caller: *unstructured.Unstructured from an indexer of
// those or of compact objects, and copies of all other types.
func New(indexer cache.Indexer, gvr schema.GroupVersionResource) cache.GenericLister {
	return &lister{indexer: indexer, gvr: gvr}
}

// ByNamespace returns a lister of one namespace; of all if it is empty.
func (l *lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return &lister{indexer: l.indexer, gvr: l.gvr, namespace: namespace}
}

// List returns the objects that the selector matches, in no order. nil matches all.
func (l *lister) List(selector labels.Selector) ([]runtime.Object, error) {
	return collect(l, selector, own)
}

// Get returns the object of a name (namespace/name, in a lister of all namespaces),
// or an error that apierrors.IsNotFound recognizes.
func (l *lister) Get(name string) (runtime.Object, error) {
	obj, err := l.get(name)
	if err != nil {
		return nil, err
	}
	return own(obj)
}

func (l *lister) get(name string) (any, error) {
	key := name
	if l.namespace != "" {
		key = l.namespace + "/" + name
	}
	obj, found, err := l.indexer.GetByKey(key)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, apierrors.NewNotFound(l.gvr.GroupResource(), name)
	}
	return obj, nil
}

// matching returns the cached objects of the lister that the selector matches.
func (l *lister) matching(selector labels.Selector) ([]any, error) {
	selector = cmp.Or(selector, labels.Everything())
	candidates, inNamespace := l.candidates()
	if inNamespace && selector.Empty() {
		return candidates, nil
	}
	return l.filter(candidates, selector, inNamespace)
}

// filter returns those of the candidates that are in the lister's namespace, as all are with inNamespace, and that the
// selector matches.
func (l *lister) filter(candidates []any, selector labels.Selector, inNamespace bool) (objs []any, err error) {
	for _, obj := range candidates {
		ok, err := l.matches(obj, selector, inNamespace)
		if err != nil {
			return nil, err
		}
		if ok {
			objs = append(objs, obj)
		}
	}
	return objs, nil
}

// candidates returns the cached objects of the lister's namespace by the index. Without an
// index it returns all objects, and inNamespace is false.
func (l *lister) candidates() (objs []any, inNamespace bool) {
	if l.namespace == "" {
		return l.indexer.List(), true
	}
	if _, ok := l.indexer.GetIndexers()[cache.NamespaceIndex]; ok {
		if objs, err := l.indexer.ByIndex(cache.NamespaceIndex, l.namespace); err == nil {
			return objs, true
		}
	}
	return l.indexer.List(), false
}

func (l *lister) matches(obj any, selector labels.Selector, inNamespace bool) (bool, error) {
	if o, ok := obj.(*compact.Object); ok {
		return (inNamespace || o.GetNamespace() == l.namespace) && selector.Matches(o.Labels()), nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return false, fmt.Errorf("genericlister: %s: %w", l.gvr.GroupResource(), err)
	}
	return (inNamespace || m.GetNamespace() == l.namespace) && selector.Matches(labels.Set(m.GetLabels())), nil
}

func collect[T any](l *lister, selector labels.Selector, convert func(any) (T, error)) ([]T, error) {
	objs, err := l.matching(selector)
	if err != nil {
		return nil, err
	}
	return converted(objs, convert)
}

// converted is nil without objects.
func converted[O, T any](objs []O, convert func(any) (T, error)) ([]T, error) {
	list := slices.Grow([]T(nil), len(objs))
	for _, obj := range objs {
		t, err := convert(obj)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// ByIndex returns the objects with a value in an index of the lister's indexer, in the
// lister's namespace if it has one. They belong to the caller. The lister must be from New,
// or from its ByNamespace.
func ByIndex(from Lister, index, value string) ([]runtime.Object, error) {
	return collectIndex(from, index, value, own)
}

// collectIndex converts the objects with a value in an index.
func collectIndex[T any](from Lister, index, value string, convert func(any) (T, error)) ([]T, error) {
	l, ok := from.(*lister)
	if !ok {
		return nil, fmt.Errorf("%w: the lister is a %T", ErrNoIndex, from)
	}
	if _, ok := l.indexer.GetIndexers()[index]; !ok {
		return nil, fmt.Errorf("%w: %q of %s", ErrNoIndex, index, l.gvr.GroupResource())
	}
	cached, err := l.indexer.ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	if l.namespace != "" {
		if cached, err = l.filter(cached, labels.Everything(), false); err != nil {
			return nil, err
		}
	}
	return converted(cached, convert)
}

// own returns a copy of a cached object that belongs to the caller.
func own(obj any) (runtime.Object, error) {
	switch o := obj.(type) {
	case *compact.Object:
		u, err := o.Unstructured()
		if err != nil {
			return nil, err
		}
		return u, nil
	case runtime.Object:
		return o.DeepCopyObject(), nil
	default:
		return nil, fmt.Errorf("genericlister: the cache holds a %T", obj)
	}
}

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
	want schema.GroupVersionKind // without a group and a version: only the kind is checked
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
	return converted(objs, v.convert)
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
	return collectIndex(v.from, index, value, v.convert)
}

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
		var namespace, name string
		if m, err := meta.Accessor(o); err == nil {
			namespace, name = m.GetNamespace(), m.GetName()
		}
		kind := schema.GroupVersionKind{Kind: reflect.Indirect(reflect.ValueOf(o)).Type().Name()} // structs mostly lack theirs
		return nil, v.wrong(cmp.Or(o.GetObjectKind().GroupVersionKind(), kind), namespace, name)
	default:
		return nil, fmt.Errorf("genericlister: the cache holds a %T", obj)
	}
}

func (v NamespaceView[T]) check(got schema.GroupVersionKind, namespace, name string) error {
	if got == v.want || v.want == (schema.GroupVersionKind{Kind: got.Kind}) {
		return nil
	}
	return v.wrong(got, namespace, name)
}

func (v NamespaceView[T]) wrong(got schema.GroupVersionKind, namespace, name string) *KindError {
	want := v.want.Kind
	if !v.want.GroupVersion().Empty() {
		want = v.want.String()
	}
	return &KindError{Namespace: namespace, Name: name, Want: want, Got: got}
}
