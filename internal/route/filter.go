package route

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/pkg/compact"
)

// NamespaceRules choose namespaces by name and label.
type NamespaceRules struct {
	Include  []string `json:"include,omitempty"`  // globs (*, ?, [a-z]); none: all
	Exclude  []string `json:"exclude,omitempty"`  // globs; wins over Include
	Selector string   `json:"selector,omitempty"` // label selector over the namespace's labels
}

// WatchFilter is what watcherd itself filters of a watch's objects. It is immutable
// and safe for concurrent use; a nil filter lets everything pass.
type WatchFilter struct {
	namespaces        NamespaceRules
	namespaceSelector labels.Selector // nil: any labels
	labels            labels.Selector // nil: any labels
	fields            []fieldRule
	buffers           sync.Pool // of *[]byte, for inflating
}

// NewWatchFilter compiles the rules. Faults are *SpecError with a Path relative to
// the watch (`namespaces.include[0]`), joined. Field selectors may name any path
// without wildcards.
func NewWatchFilter(ns NamespaceRules, labelSelector, fieldSelector string) (*WatchFilter, error) {
	f := &WatchFilter{namespaces: ns}
	var errs []error
	fault := func(path string, err error) {
		errs = append(errs, &SpecError{Index: -1, Path: path, Msg: err.Error()})
	}
	checkGlobs("namespaces.include", ns.Include, fault)
	checkGlobs("namespaces.exclude", ns.Exclude, fault)
	f.namespaceSelector = parseLabels("namespaces.selector", ns.Selector, fault)
	f.labels = parseLabels("labelSelector", labelSelector, fault)
	if fieldSelector != "" {
		rules, err := parseFields(fieldSelector)
		if err != nil {
			fault("fieldSelector", err)
		}
		f.fields = rules
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return f, nil
}

func checkGlobs(key string, globs []string, fault func(string, error)) {
	for i, g := range globs {
		if _, err := path.Match(g, ""); err != nil || g == "" {
			fault(fmt.Sprintf("%s[%d]", key, i), fmt.Errorf("%q is not a namespace or glob", g))
		}
	}
}

func parseLabels(key, selector string, fault func(string, error)) labels.Selector {
	if selector == "" {
		return nil
	}
	s, err := ParseLabels(selector)
	if err != nil {
		fault(key, err)
		return nil
	}
	if s.Empty() {
		return nil
	}
	return s
}

// NeedsNamespaces tells whether Match asks for the labels of namespaces.
func (f *WatchFilter) NeedsNamespaces() bool { return f != nil && f.namespaceSelector != nil }

// Match tells whether the watch covers the object in this state.
//
// nsLabels gives the labels of a namespace; of one it does not know no object
// matches. As an object's deletion may be seen after its namespace's, it should
// remember the labels of namespaces for some time after they are gone. It is called
// only if NeedsNamespaces.
//
// A Namespace counts as being in itself. Other cluster-scoped objects are in no
// namespace: they pass unless Include or Selector asks for certain ones.
func (f *WatchFilter) Match(o *compact.Object, nsLabels func(ns string) (labels.Set, bool)) bool {
	if f == nil {
		return true
	}
	if !f.matchNamespace(o, nsLabels) {
		return false
	}
	if f.labels != nil && !f.labels.Matches(o.Labels()) {
		return false
	}
	return f.matchFields(o)
}

func (f *WatchFilter) matchNamespace(o *compact.Object, nsLabels func(ns string) (labels.Set, bool)) bool {
	if len(f.namespaces.Include) == 0 && len(f.namespaces.Exclude) == 0 && f.namespaceSelector == nil {
		return true
	}
	ns, isNamespace := o.GetNamespace(), false
	if ns == "" {
		if isNamespace = o.Kind() == "Namespace" && o.APIVersion() == "v1"; !isNamespace {
			return len(f.namespaces.Include) == 0 && f.namespaceSelector == nil
		}
		ns = o.GetName()
	}
	if matchGlobs(f.namespaces.Exclude, ns) || len(f.namespaces.Include) > 0 && !matchGlobs(f.namespaces.Include, ns) {
		return false
	}
	switch {
	case f.namespaceSelector == nil:
		return true
	case isNamespace:
		return f.namespaceSelector.Matches(o.Labels())
	}
	set, ok := nsLabels(ns)
	return ok && f.namespaceSelector.Matches(set)
}

// matchGlobs tells whether one of the globs, checked before, matches.
func matchGlobs(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return false
}
