package genericlister

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// ErrNoIndex means that the indexer does not have the requested index, or of
// a lister that New has not made.
var ErrNoIndex = errors.New("genericlister: no such index")

// ByIndex returns the objects that an index of the lister's indexer holds under a
// value, in the lister's namespace if it has one. They belong to the caller. The
// lister is one that New, or its ByNamespace, has returned.
func ByIndex(from Lister, index, value string) ([]runtime.Object, error) {
	l, ok := from.(*lister)
	if !ok {
		return nil, fmt.Errorf("%w: the lister is a %T", ErrNoIndex, from)
	}
	return collectIndex(l, index, value, own)
}

// collectIndex makes a slice of what convert makes of the objects under an index's
// value.
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
