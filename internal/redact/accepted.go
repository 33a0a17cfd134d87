package redact

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/route"
)

// Accepted are the edits of a configuration, and of what earlier ones watched and
// routed and it does not: recorded events of those are still there.
type Accepted struct {
	Resources []Resource `json:"resources,omitempty"`
	Routes    []Route    `json:"routes,omitempty"`
}

// Resource are the edits of one resource's objects.
type Resource struct {
	Group     string      `json:"group,omitempty"`
	Resource  string      `json:"resource"`
	Namespace string      `json:"namespace,omitempty"` // empty: all that have no edits of their own
	Edits     route.Edits `json:"edits"`
}

// Route are the edits of what one route delivers.
type Route struct {
	Name   string   `json:"name"`
	Drop   []string `json:"drop,omitempty"`
	Redact []string `json:"redact,omitempty"`
}

// GroupResource names the resource.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Parse reads what [Accepted.Marshal] wrote.
func Parse(b []byte) (Accepted, error) {
	var a Accepted
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("accepted edits: %w", err)
	}
	return a, nil
}

// Marshal is the form that is stored.
func (a Accepted) Marshal() []byte {
	b, err := json.Marshal(a)
	if err != nil { // strings and booleans always marshal
		panic(fmt.Sprintf("redact: marshal: %v", err))
	}
	return b
}

// Add adds the edits of a resource. Where there are some already, what either hides
// is hidden.
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

// Keep adds what before has and a does not name. now gives the edits that
// such a resource is to have at present in a namespace, or in all if that is empty; not
// ok means those that it had.
func (a *Accepted) Keep(before Accepted, now func(gr schema.GroupResource, namespace string) (route.Edits, bool)) {
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

// Tightened lists the resources of which a hides something that before does not, in
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

// in are the edits of a resource in a namespace.
func (a *Accepted) in(gr schema.GroupResource, namespace string) (edits route.Edits, ok bool) {
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
