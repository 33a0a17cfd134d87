package genericlister

import (
	"cmp"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// each calls f with every cached object of the lister that the selector matches.
func (l *lister) each(selector labels.Selector, f func(obj any) error) error {
	selector = cmp.Or(selector, labels.Everything())
	if labels.MatchesNothing(selector) {
		return nil
	}
	candidates, all := l.candidates()
	everything := selector.Empty()
	for _, obj := range candidates {
		if !all || !everything {
			ok, err := l.matches(obj, selector, all)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
		}
		if err := f(obj); err != nil {
			return err
		}
	}
	return nil
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

// collect converts the matching objects.
func collect[T any](l *lister, selector labels.Selector, convert func(any) (T, error)) ([]T, error) {
	var list []T
	err := l.each(selector, func(obj any) error {
		t, err := convert(obj)
		if err == nil {
			list = append(list, t)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ByIndex returns the objects with a value in an index of the lister's indexer, in the
// lister's namespace if it has one. They belong to the caller. The lister must be from New,
// or from its ByNamespace.
func ByIndex(from Lister, index, value string) ([]runtime.Object, error) {
	l, ok := from.(*lister)
	if !ok {
		return nil, fmt.Errorf("%w: the lister is a %T", ErrNoIndex, from)
	}
	return collectIndex(l, index, value, own)
}

// collectIndex converts the objects with a value in an index.
func collectIndex[T any](l *lister, index, value string, convert func(any) (T, error)) ([]T, error) {
	if _, ok := l.indexer.GetIndexers()[index]; !ok {
		return nil, fmt.Errorf("%w: %q of %s", ErrNoIndex, index, l.gvr.GroupResource())
	}
	cached, err := l.indexer.ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	list := make([]T, 0, len(cached))
	for _, obj := range cached {
		if l.namespace != "" {
			in, err := l.matches(obj, labels.Everything(), false)
			if err != nil {
				return nil, err
			}
			if !in {
				continue
			}
		}
		t, err := convert(obj)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
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
