package redact

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Accepted are the edits of a configuration, plus those of resources and routes that
// only earlier configurations had and whose events are still stored.
type Accepted struct {
	Resources []Resource `json:"resources,omitempty"`
	Routes    []Route    `json:"routes,omitempty"`
}

// Resource are the edits of one resource's objects.
type Resource struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"` // empty: all without edits of their own
	Edits     Edits  `json:"edits"`
}

// Route are the edits of what one route delivers.
type Route struct {
	Name   string   `json:"name"`
	Drop   []string `json:"drop,omitempty"`
	Redact []string `json:"redact,omitempty"`
}

// GroupResource returns the resource.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Parse decodes the result of [Accepted.Marshal].
func Parse(b []byte) (Accepted, error) {
	var a Accepted
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("accepted edits: %w", err)
	}
	return a, nil
}

// Marshal encodes the edits for the store.
func (a Accepted) Marshal() []byte {
	b, err := json.Marshal(a)
	if err != nil { // strings and booleans always marshal
		panic(fmt.Sprintf("redact: marshal: %v", err))
	}
	return b
}

// Add adds the edits of a resource. Existing edits of the resource are united with them.
func (a *Accepted) Add(r Resource) {
	for i := range a.Resources {
		if known := &a.Resources[i]; known.same(&r) {
			known.Edits = known.Edits.Union(r.Edits)
			return
		}
	}
	a.Resources = append(a.Resources, r)
}

func (r *Resource) same(other *Resource) bool {
	return r.GroupResource() == other.GroupResource() && r.Namespace == other.Namespace
}

// Keep adds the resources and routes of before that a does not name. now returns the
// current edits of such a resource in a namespace, or in all if it is empty. If now
// returns false, the resource keeps its edits.
func (a *Accepted) Keep(before Accepted, now func(gr schema.GroupResource, namespace string) (Edits, bool)) {
	named := len(a.Resources)
	for _, r := range before.Resources {
		if slices.ContainsFunc(a.Resources[:named], func(n Resource) bool {
			return n.GroupResource() == r.GroupResource() && (n.Namespace == "" || n.Namespace == r.Namespace)
		}) {
			continue
		}
		if edits, ok := now(r.GroupResource(), r.Namespace); ok {
			r.Edits = edits
		}
		a.Resources = append(a.Resources, r)
	}
	for _, r := range before.Routes {
		if !slices.ContainsFunc(a.Routes, func(n Route) bool { return n.Name == r.Name }) {
			a.Routes = append(a.Routes, r)
		}
	}
	slices.SortFunc(a.Resources, func(x, y Resource) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Namespace, y.Namespace))
	})
}

// Tightened returns the resources of which a hides values that before does not hide, in
// a namespace in which both have edits.
func (a *Accepted) Tightened(before *Accepted) []schema.GroupResource {
	var list []schema.GroupResource
	for _, r := range slices.Concat(a.Resources, before.Resources) {
		gr := r.GroupResource()
		edits, ok := a.in(gr, r.Namespace)
		old, had := before.in(gr, r.Namespace)
		if ok && had && edits.Tightens(gr, old) && !slices.Contains(list, gr) {
			list = append(list, gr)
		}
	}
	return list
}

// in returns the edits of a resource in a namespace.
func (a *Accepted) in(gr schema.GroupResource, namespace string) (edits Edits, ok bool) {
	for i := range a.Resources {
		r := &a.Resources[i]
		if r.GroupResource() != gr {
			continue
		}
		if r.Namespace == namespace {
			return r.Edits, true
		}
		if r.Namespace == "" {
			edits, ok = r.Edits, true
		}
	}
	return edits, ok
}
