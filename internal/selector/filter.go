package selector

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/pkg/compact"
)

// Namespaces selects namespaces by name and labels.
type Namespaces struct {
	Include  []string `json:"include,omitempty"`  // globs (*, ?, [a-z]); none: all
	Exclude  []string `json:"exclude,omitempty"`  // globs; takes precedence over Include
	Selector string   `json:"selector,omitempty"` // label selector over the namespace's labels
}

// Filter is the client-side selection of a watch's objects. It is immutable and safe
// for concurrent use. A nil Filter matches every object.
type Filter struct {
	namespaces        Namespaces
	namespaceSelector labels.Selector // nil: any labels
	labels            labels.Selector // nil: any labels
	fields            []fieldRule
	buffers           sync.Pool // of *[]byte, for inflating
}

// NewFilter compiles the rules. It returns a *field.Error for every fault, joined. Its
// Field is relative to the watch: `namespaces.include[0]`. Field selectors may name any
// path without wildcards.
func NewFilter(ns Namespaces, labelSelector, fieldSelector string) (*Filter, error) {
	f := &Filter{namespaces: ns}
	var errs []error
	fault := func(path, value string, err error) {
		errs = append(errs, &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: value, Detail: err.Error()})
	}
	checkGlobs("namespaces.include", ns.Include, fault)
	checkGlobs("namespaces.exclude", ns.Exclude, fault)
	f.namespaceSelector = parseLabels("namespaces.selector", ns.Selector, fault)
	f.labels = parseLabels("labelSelector", labelSelector, fault)
	if fieldSelector != "" {
		rules, err := parseFields(fieldSelector)
		if err != nil {
			fault("fieldSelector", fieldSelector, err)
		}
		f.fields = rules
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return f, nil
}

func checkGlobs(key string, globs []string, fault func(path, value string, err error)) {
	for i, g := range globs {
		if _, err := path.Match(g, ""); err != nil || g == "" {
			fault(fmt.Sprintf("%s[%d]", key, i), g, fmt.Errorf("%q is not a namespace or glob", g))
		}
	}
}

func parseLabels(key, selector string, fault func(path, value string, err error)) labels.Selector {
	if selector == "" {
		return nil
	}
	s, err := ParseLabels(selector)
	if err != nil {
		fault(key, selector, err)
		return nil
	}
	if s.Empty() {
		return nil
	}
	return s
}

// NeedsNamespaces reports whether Match reads the labels of namespaces.
func (f *Filter) NeedsNamespaces() bool { return f != nil && f.namespaceSelector != nil }

// Match reports whether the watch covers the object in this state.
//
// nsLabels returns the labels of a namespace. Objects in an unknown namespace do not
// match. An object's deletion can arrive after its namespace's, so nsLabels should keep
// the labels of deleted namespaces for some time. It is called only if NeedsNamespaces.
//
// A Namespace is inside itself. Other cluster-scoped objects match unless Include or
// Selector is set.
func (f *Filter) Match(o *compact.Object, nsLabels func(ns string) (labels.Set, bool)) bool {
	if f == nil {
		return true
	}
	if !f.MatchNamespace(o, nsLabels) {
		return false
	}
	if f.labels != nil && !f.labels.Matches(o.Labels()) {
		return false
	}
	return f.matchFields(o)
}

// MatchNamespace is the part of Match that is about the namespace.
func (f *Filter) MatchNamespace(o *compact.Object, nsLabels func(ns string) (labels.Set, bool)) bool {
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
	if !f.namespaces.Names(ns) {
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

// Names reports whether a namespace may be selected by its name.
func (n *Namespaces) Names(ns string) bool {
	return !matchGlobs(n.Exclude, ns) && (len(n.Include) == 0 || matchGlobs(n.Include, ns))
}

// matchGlobs reports whether one of the valid globs matches.
func matchGlobs(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return false
}
