package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/selector"
)

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

// overlap returns an *OverlapError if both watches, of which each watches gr, edit the
// same objects differently.
func overlap(w, earlier *Watch, gr schema.GroupResource) error {
	if len(w.Namespaces) > 0 && len(earlier.Namespaces) > 0 &&
		!slices.ContainsFunc(w.Namespaces, func(ns string) bool { return slices.Contains(earlier.Namespaces, ns) }) {
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
