package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func (k *compiler) watch(i int) Watch {
	c, path := &k.config.Watches[i], item("watches", i)
	w := Watch{
		Name:          c.Name,
		Resources:     k.resources(path+".resources", c.Resources),
		Snapshot:      c.Snapshot == config.SnapshotInitial,
		History:       c.History,
		MetadataOnly:  c.MetadataOnly,
		Edits:         redact.Edits{Drop: c.Dropped(), Redact: redacted(c), ExposeSecrets: c.ExposeSecrets, KeepApplied: slices.Contains(c.Keep, config.AppliedManifest)},
		FailOnMissing: c.OnMissing == config.MissingFail,
		Fingerprint:   fingerprint(c.Raw, c),
	}
	k.excludes(path, c, &w)
	k.edits(path, w.Edits)
	k.selection(path, c, &w)
	return w
}

// redacted are the key paths that a watch redacts.
func redacted(c *config.Watch) []string {
	paths := slices.Clone(c.Redact)
	for _, preset := range c.RedactPresets {
		for _, p := range redact.Presets()[preset] {
			if !slices.Contains(paths, p) {
				paths = append(paths, p)
			}
		}
	}
	return paths
}

// selection decides who selects what: the API server, or the watch's filter.
func (k *compiler) selection(path string, c *config.Watch, w *Watch) {
	rules := selector.Namespaces{Include: c.Namespaces.Include, Exclude: c.Namespaces.Exclude, Selector: c.Namespaces.Selector}
	if plainNamespaces(c.Namespaces) {
		w.Namespaces = slices.Sorted(slices.Values(c.Namespaces.Include))
		rules = selector.Namespaces{}
	}
	labelSelector, fieldSelector := c.LabelSelector, c.FieldSelector
	if c.SelectorSide == config.SideServer {
		w.ServerLabels, w.ServerFields = k.serverSelectors(path, c)
		labelSelector, fieldSelector = "", ""
	}
	w.Selection = Selection{Namespaces: rules, Labels: labelSelector, Fields: fieldSelector}
	filter, err := w.Selection.Filter()
	if err != nil {
		k.faultsBelow(path, err)
		return
	}
	w.Filter = filter
	k.selectable(path, c, labelSelector, fieldSelector)
}

var namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// plainNamespaces reports whether the namespaces are known by name beforehand.
func plainNamespaces(n config.Namespaces) bool {
	return len(n.Include) > 0 && len(n.Exclude) == 0 && n.Selector == "" &&
		!slices.ContainsFunc(n.Include, func(s string) bool { return !namespaceName.MatchString(s) })
}

// serverSelectors checks the selectors and spells them one way, so that watches
// that ask for the same share an informer.
func (k *compiler) serverSelectors(path string, c *config.Watch) (labelSelector, fieldSelector string) {
	l, err := selector.ParseLabels(c.LabelSelector)
	if err != nil {
		k.fault(path+".labelSelector", "%v", err)
		return "", ""
	}
	f, err := selector.ParseFields(c.FieldSelector)
	if err != nil {
		k.fault(path+".fieldSelector", "%v", err)
		return "", ""
	}
	return l.String(), f.String()
}

// selectable reports labels and fields that watcherd is to select by and never gets to
// see.
func (k *compiler) selectable(path string, c *config.Watch, labelSelector, fieldSelector string) {
	byLabel, err := selector.ParseLabels(labelSelector)
	if err != nil {
		return // reported with the filter
	}
	requirements, _ := byLabel.Requirements()
	for _, r := range requirements {
		k.unseen(path+".labelSelector", c, "label "+r.Key(), `metadata.labels["`+r.Key()+`"]`)
	}
	byField, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return // reported with the filter
	}
	for _, r := range byField.Requirements() {
		if c.MetadataOnly && !strings.HasPrefix(r.Field, "metadata.") {
			k.fault(path+".fieldSelector", "cannot select by %s, which metadataOnly leaves out; use selectorSide: server", r.Field)
		}
		k.unseen(path+".fieldSelector", c, r.Field, r.Field)
	}
}

// unseen reports a value that is selected by and edited away.
func (k *compiler) unseen(at string, c *config.Watch, what, path string) {
	if gone := removedBy(c.Dropped(), path); gone != "" {
		k.fault(at, "cannot select by %s, since %s is dropped; use selectorSide: server", what, gone)
	}
	if gone := removedBy(redacted(c), path); gone != "" {
		k.fault(at, "cannot select by %s, since %s is redacted; use selectorSide: server", what, gone)
	}
}

// removedBy is the first of paths that names the value at path or one that holds it.
func removedBy(paths []string, path string) string {
	value, err := rawjson.ParsePath(path)
	if err != nil {
		return "" // reported with the filter
	}
	for _, p := range paths {
		if parsed, err := rawjson.ParsePath(p); err == nil && parsed.Covers(value) {
			return p
		}
	}
	return ""
}

// identity are the paths that identify an object and its version.
var identity = []string{
	"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid",
	"metadata.resourceVersion",
}

func (k *compiler) edits(path string, e redact.Edits) {
	if err := e.Validate(); err != nil {
		k.faultsBelow(path, err)
	}
	for i, p := range e.Drop {
		k.keepsIdentity(item(path+".drop", i), p)
	}
	for i, p := range e.Redact {
		at := item(path+".redact", i)
		if !k.keepsIdentity(at, p) {
			continue
		}
		for _, field := range structured {
			if removedBy([]string{p}, field.path) != "" {
				k.fault(at, "%s is not text, and a hash in its place makes the object invalid: %s", field.path, field.instead)
				break
			}
		}
	}
}

// structured are the parts of an object's metadata whose type matters.
var structured = []struct{ path, instead string }{
	{"metadata.labels", "redact metadata.labels[*]"},
	{"metadata.annotations", "redact metadata.annotations[*]"},
	{"metadata.finalizers", "redact metadata.finalizers[*]"},
	{"metadata.ownerReferences", "redact metadata.ownerReferences[*].name, or drop it"},
	{"metadata.managedFields", "drop it"},
	{"metadata.generation", "drop it"},
	{"metadata.creationTimestamp", "drop it"},
	{"metadata.deletionTimestamp", "drop it"},
	{"metadata.deletionGracePeriodSeconds", "drop it"},
}

func (k *compiler) keepsIdentity(at, p string) bool {
	for _, id := range identity {
		if removedBy([]string{p}, id) != "" {
			k.fault(at, "%s identifies objects and cannot be removed", id)
			return false
		}
	}
	return true
}

func (k *compiler) resources(path string, list []config.Resource) []string {
	names := make([]string, len(list))
	for i, r := range list {
		names[i] = r.String()
		if msg := badResource(names[i]); msg != "" {
			k.fault(item(path, i), "%q %s", names[i], msg)
		}
	}
	return names
}

func badResource(name string) string {
	switch {
	case strings.Contains(name, "/"):
		return "has a slash; write RESOURCE[.VERSION][.GROUP], such as deployments.apps. Subresources cannot be watched"
	case strings.ToLower(name) != name:
		return "is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps"
	}
	if _, err := selector.ParseResource(name); err != nil {
		return "is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *"
	}
	return ""
}

func (k *compiler) excludes(path string, c *config.Watch, w *Watch) {
	path += ".excludeResources"
	w.ExcludeResources = k.resources(path, c.ExcludeResources)
	for i, text := range w.ExcludeResources {
		excluded, err := selector.ParseResource(text)
		if err != nil {
			continue // reported
		}
		for _, own := range w.Resources {
			named, err := selector.ParseResource(own)
			switch {
			case err != nil:
			case named.Wildcard() && excludesAll(excluded, named):
				k.fault(item(path, i), "%s excludes all of %s, which the watch names", text, own)
			case !named.Wildcard() && excludesNamed(excluded, named):
				k.fault(item(path, i), "the watch names %s itself; excludeResources is for what its wildcards match", own)
			}
		}
	}
}

// excludesAll reports whether a pattern excludes everything that a wildcard names.
func excludesAll(excluded, wildcard selector.Resource) bool {
	_, ok := excluded.Shared(wildcard)
	return ok && excluded.Wildcard() && (excluded.Bare() || !wildcard.Bare())
}

// excludesNamed reports whether a pattern may exclude what another one names
// without a wildcard.
func excludesNamed(excluded, named selector.Resource) bool {
	if _, ok := excluded.Shared(named); ok {
		return true
	}
	gr, _ := named.Shared(named)
	other, _ := excluded.Shared(excluded)
	return excluded.Bare() != named.Bare() && gr.Resource == other.Resource
}

// Excluder returns a function that reports whether the watch leaves out a resource.
// means gives what a name without a wildcard stands for where the cluster serves it,
// such as a short name.
func (w *Watch) Excluder(means func(name string) (schema.GroupResource, bool)) func(schema.GroupResource) bool {
	var patterns []selector.Resource
	var resolved []schema.GroupResource
	for _, text := range w.ExcludeResources {
		p, err := selector.ParseResource(text)
		if err != nil {
			continue // Compile has refused it
		}
		patterns = append(patterns, p)
		if p.Wildcard() {
			continue
		}
		if gr, ok := means(text); ok {
			resolved = append(resolved, gr)
		}
	}
	return func(gr schema.GroupResource) bool {
		return slices.Contains(resolved, gr) ||
			slices.ContainsFunc(patterns, func(p selector.Resource) bool { return p.Names(gr) })
	}
}

// OverlapError reports two watches of the same objects with different edits. One
// object has one recorded state, so it can be edited in one way only.
type OverlapError struct {
	Watch, Earlier string // names
	Resource       string
	Keys           []string // that differ
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("watch %s and watch %s both watch %s, and their %s differ, but an object is recorded in one form: "+
		"use the same edits and put the difference in routes[].drop or routes[].redact, or keep them apart by excludeResources or by plain namespaces that have none in common",
		e.Watch, e.Earlier, e.Resource, strings.Join(e.Keys, ", "))
}

// Claims collects which watches watch which resource, to find those that edit the
// same objects differently. The zero Claims is empty.
type Claims struct {
	claims map[schema.GroupResource][]*Watch
}

// Add notes that w watches gr. If an earlier watch of the same objects edits them
// differently it returns an *OverlapError, and w is not noted. Selectors do not keep
// watches apart, since objects move between what they select; versions of a resource
// are of the same objects.
func (c *Claims) Add(w *Watch, gr schema.GroupResource) error {
	for _, earlier := range c.claims[gr] {
		if err := overlap(w, earlier, gr); err != nil {
			return err
		}
	}
	if c.claims == nil {
		c.claims = map[schema.GroupResource][]*Watch{}
	}
	c.claims[gr] = append(c.claims[gr], w)
	return nil
}

// meets reports whether two watches are about the same namespaces.
func (w *Watch) meets(other *Watch) bool {
	return len(w.Namespaces) == 0 || len(other.Namespaces) == 0 ||
		slices.ContainsFunc(w.Namespaces, func(ns string) bool { return slices.Contains(other.Namespaces, ns) })
}

// readApart returns a resource, and the index of its pattern, of which two watches, or one, may select the same object by
// requests of their own: of different versions, or with different selectors of the API server. A change of the
// object is an event of each.
func (w *Watch) readApart(other *Watch) (n int, gr schema.GroupResource, ok bool) {
	if !w.meets(other) || namedApart(w.ServerFields, other.ServerFields) {
		return 0, gr, false
	}
	selectors := w.ServerLabels != other.ServerLabels || w.ServerFields != other.ServerFields
	for n, own := range w.Resources {
		patterns := other.Resources
		if w == other {
			patterns = patterns[:n]
		}
		for _, theirs := range patterns {
			for _, gr := range shared(w, other, own, theirs) {
				if selectors || PinnedVersion(own, gr.Group) != PinnedVersion(theirs, gr.Group) {
					return n, gr, true
				}
			}
		}
	}
	return 0, gr, false
}

// namedApart reports whether field selectors name different objects.
func namedApart(a, b string) bool {
	p, errP := fields.ParseSelector(a)
	q, errQ := fields.ParseSelector(b)
	if errP != nil || errQ != nil {
		return false
	}
	return slices.ContainsFunc([]string{"metadata.name", "metadata.namespace"}, func(field string) bool {
		one, isOne := p.RequiresExactMatch(field)
		other, isOther := q.RequiresExactMatch(field)
		return isOne && isOther && one != other
	})
}

// PinnedVersion is the version that a watch's pattern insists on for a resource of the
// group, "" if it leaves the choice to the cluster.
func PinnedVersion(pattern, group string) string {
	p, err := selector.ParseResource(pattern)
	if err != nil {
		return ""
	}
	return p.Version(group)
}

// overlap returns an *OverlapError if both watches, of which each watches gr, edit the
// same objects differently.
func overlap(w, earlier *Watch, gr schema.GroupResource) error {
	if !w.meets(earlier) {
		return nil
	}
	keys := w.Edits.Differ(earlier.Edits, gr)
	if w.MetadataOnly != earlier.MetadataOnly {
		keys = append(keys, "metadataOnly")
	}
	if len(keys) == 0 {
		return nil
	}
	name := gr.String()
	if gr.Resource == "*" && gr.Group == "" {
		name = "*"
	}
	return &OverlapError{Watch: w.Name, Earlier: earlier.Name, Resource: name, Keys: keys}
}

// overlaps reports the watches that certainly watch the same objects, independent of what the
// cluster serves, and edit them differently.
func (k *compiler) overlaps(watches []Watch) {
	for i := range watches {
		for j := range i {
			k.overlapOf(i, &watches[i], &watches[j])
		}
	}
}

// overlapOf reports the first resource that a watch has in common with an earlier one
// and edits differently.
func (k *compiler) overlapOf(i int, w, earlier *Watch) {
	for n, own := range w.Resources {
		for _, other := range earlier.Resources {
			for _, gr := range shared(w, earlier, own, other) {
				if err := overlap(w, earlier, gr); err != nil {
					k.fault(item(item("watches", i)+".resources", n), "%v", err)
					return
				}
			}
		}
	}
}

// shared are resources that two patterns of two watches both mean, for certain. What
// is left of a wildcard from which something is excluded only discovery knows.
func shared(w, earlier *Watch, own, other string) []schema.GroupResource {
	p, err := selector.ParseResource(own)
	if err != nil {
		return nil
	}
	q, err := selector.ParseResource(other)
	if err != nil {
		return nil
	}
	gr, ok := p.Shared(q)
	if !ok || p.Wildcard() && len(w.ExcludeResources) > 0 || q.Wildcard() && len(earlier.ExcludeResources) > 0 {
		return nil
	}
	if gr.Resource == "*" && gr.Group == "" {
		return []schema.GroupResource{gr, {Resource: "secrets"}} // whose edits are special
	}
	return []schema.GroupResource{gr}
}
