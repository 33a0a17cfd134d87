package selector

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Namespaces selects namespaces by name and labels.
type Namespaces struct {
	Include  []string `json:"include,omitempty"`  // globs (*, ?, [a-z]); none: all
	Exclude  []string `json:"exclude,omitempty"`  // globs; takes precedence over Include
	Selector string   `json:"selector,omitempty"` // label selector over the namespace's labels
}

// Filter is the client-side selection of a watch's objects. But for its counts it is immutable, and it is
// safe for concurrent use. A nil Filter matches every object.
type Filter struct {
	namespaces        Namespaces
	namespaceSelector labels.Selector // nil: any labels
	labels            labels.Selector // nil: any labels
	fields            []fieldRule
	buffers           sync.Pool // of *[]byte, for inflating

	selection *unseen.Name
	onNone    atomic.Pointer[func(changes uint64)]
}

// OnNone sets the function that is called once [unseen.Enough] changes were judged and none is selected.
func (f *Filter) OnNone(g func(changes uint64)) {
	if f != nil {
		f.onNone.Store(&g)
	}
}

// Continue makes f continue the counts of an earlier filter of the same watch. It is called before the first Judged.
func (f *Filter) Continue(earlier *Filter) {
	if f != nil && earlier != nil && f != earlier {
		f.selection = earlier.selection
	}
}

// Judged counts a change of an object, and whether the watch is given it.
func (f *Filter) Judged(selected bool) {
	switch {
	case f == nil:
	case selected:
		f.selection.Have()
	case f.selection.Lack():
		if g := f.onNone.Load(); g != nil {
			(*g)(unseen.Enough)
		}
	}
}

// None is the number of changes that were judged if it is [unseen.Enough] and none of them is selected, else 0.
func (f *Filter) None() uint64 {
	if f == nil {
		return 0
	}
	return f.selection.Suspicious()
}

// NewFilter compiles the rules. It returns a *field.Error for every fault, joined. Its
// Field is relative to the watch: `namespaces.include[0]`. Field selectors may name any
// path without wildcards.
func NewFilter(ns Namespaces, labelSelector, fieldSelector string) (*Filter, error) {
	f := &Filter{namespaces: ns, selection: new(unseen.Name)}
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
	return f.MatchNamespace(o, nsLabels) && f.MatchObject(o)
}

// MatchObject is the part of Match that is not about the namespace.
func (f *Filter) MatchObject(o *compact.Object) bool {
	return f == nil || (f.labels == nil || f.labels.Matches(o.Labels())) && f.matchFields(o)
}

// MatchNamespace is the part of Match that is about the namespace.
func (f *Filter) MatchNamespace(o *compact.Object, nsLabels func(ns string) (labels.Set, bool)) bool {
	if len(f.namespaces.Include) == 0 && len(f.namespaces.Exclude) == 0 && f.namespaceSelector == nil {
		return true
	}
	switch ns := o.GetNamespace(); {
	case ns != "":
		return f.SelectsNamespace(ns, nsLabels)
	case !isNamespace(o) || f.namespaceSelector == nil:
		return f.MayMatch(o)
	default:
		return f.MayMatch(o) && f.namespaceSelector.Matches(o.Labels())
	}
}

// MayMatch reports whether Match may be true for another state of the object and of its namespace.
func (f *Filter) MayMatch(o *compact.Object) bool {
	switch {
	case f == nil:
		return true
	case o.GetNamespace() != "":
		return f.namespaces.Names(o.GetNamespace())
	case isNamespace(o):
		return f.namespaces.Names(o.GetName())
	default:
		return len(f.namespaces.Include) == 0 && f.namespaceSelector == nil
	}
}

func isNamespace(o *compact.Object) bool { return o.Kind() == "Namespace" && o.APIVersion() == "v1" }

// SelectsNamespace reports whether the watch covers a namespace, as of now.
func (f *Filter) SelectsNamespace(ns string, nsLabels func(ns string) (labels.Set, bool)) bool {
	if !f.namespaces.Names(ns) {
		return false
	}
	if f.namespaceSelector == nil {
		return true
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

// fieldRule is one requirement of a field selector. A missing field is the empty
// string, as in the API server.
type fieldRule struct {
	meta  func(o *compact.Object) string // reads the field without inflating; nil: Lookup of path
	path  rawjson.Path
	value string
	equal bool
}

func parseFields(selector string) ([]fieldRule, error) {
	parsed, err := ParseFields(selector)
	if err != nil {
		return nil, err
	}
	var rules []fieldRule
	for _, r := range parsed.Requirements() {
		p, err := rawjson.ParsePath(r.Field)
		if err != nil {
			return nil, err
		}
		if p.Wildcard() {
			return nil, fmt.Errorf("path %q names more than one field", r.Field)
		}
		rule := fieldRule{path: p, value: r.Value, equal: r.Operator != selection.NotEquals}
		switch p.String() {
		case "metadata.name":
			rule.meta = (*compact.Object).GetName
		case "metadata.namespace":
			rule.meta = (*compact.Object).GetNamespace
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// maxBuffer is the size of the largest buffer kept for the next object.
const maxBuffer = 1 << 20

// matchFields reports whether the object meets all rules. The body is inflated only if
// the rules on metadata are met. An unreadable body matches: a later reader reports the
// error.
func (f *Filter) matchFields(o *compact.Object) bool {
	rules := f.fields
	inflate := false
	for i := range rules {
		if rules[i].meta == nil {
			inflate = true
		} else if (rules[i].meta(o) == rules[i].value) != rules[i].equal {
			return false
		}
	}
	if !inflate {
		return true
	}
	buf, ok := f.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer f.buffers.Put(buf)
	raw, err := o.AppendJSON((*buf)[:0])
	if err != nil {
		return true
	}
	if cap(raw) <= maxBuffer {
		*buf = raw
	}
	for i := range rules {
		if rules[i].meta != nil {
			continue
		}
		value, _ := rawjson.Lookup(raw, rules[i].path)
		if (fieldText(value) == rules[i].value) != rules[i].equal {
			return false
		}
	}
	return true
}

// fieldText returns the text of a JSON value that a field selector compares.
func fieldText(raw []byte) string {
	if len(raw) > 0 && raw[0] == '"' {
		return rawjson.Unquote(raw)
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// ParseLabels parses a label selector. The error shows the syntax.
func ParseLabels(selector string) (labels.Selector, error) {
	s, err := labels.Parse(selector)
	if err != nil {
		return nil, fmt.Errorf("%q is not a label selector: %w; use the syntax of kubectl get -l, such as app=web,tier in (a, b)", selector, err)
	}
	return s, nil
}

// maxTerms is how many terms a selector of a request has. Each object is compared with them, 5,000 of which take a
// millisecond.
const maxTerms = 100

// OfRequest parses the selectors of a request that lists objects.
func OfRequest(labelSelector, fieldSelector string) (labels.Selector, fields.Selector, error) {
	byLabel, err := labels.Parse(labelSelector)
	if err != nil {
		return nil, nil, fmt.Errorf("labelSelector: %w", err)
	}
	byField, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return nil, nil, fmt.Errorf("fieldSelector: %w", err)
	}
	if terms, _ := byLabel.Requirements(); len(terms)+len(byField.Requirements()) > maxTerms {
		return nil, nil, fmt.Errorf("a request is answered with at most %d terms in labelSelector and fieldSelector; ask in parts", maxTerms)
	}
	return byLabel, byField, nil
}

// ParseFields parses a field selector. The error shows the syntax.
func ParseFields(selector string) (fields.Selector, error) {
	s, err := fields.ParseSelector(selector)
	if err != nil {
		var char rune
		if _, no := fmt.Sscanf(err.Error(), "invalid field selector: unescaped character in value: %d", &char); no == nil {
			err = fmt.Errorf("unexpected %q", string(char))
		} else if strings.Contains(err.Error(), "can't understand") {
			err = errors.New("a term needs =, == or !=")
		}
		return nil, fmt.Errorf("%q is not a field selector: %w; use the syntax of kubectl get --field-selector, such as spec.nodeName=node-1", selector, err)
	}
	return s, nil
}
