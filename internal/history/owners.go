package history

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/watcherd/watcherd/pkg/event"
)

// Ref names an object as references in objects do.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Group is an object with the changes that are its consequences: those of objects that it
// controls, of EndpointSlices of these, and of Kubernetes Events about them.
type Group struct {
	Owner  Ref                       `json:"owner"`            // at the top, as far as objects changed in the period
	Change *NetChange                `json:"change,omitempty"` // of the owner itself; nil: it ended as it began
	Counts map[string]map[string]int `json:"counts"`           // of the consequences, by resource and change; churned: they ended as they began
	Items  []NetChange               `json:"items"`            // the consequences that did not
}

const (
	maxOwners = 10   // of a chain
	maxRefs   = 1000 // of an object: as many as an EndpointSlice has endpoints
)

// refKey is what a reference has in common with others to the same object.
type refKey struct{ group, kind, namespace, name string }

func (r *Ref) key() refKey {
	group, _, found := strings.Cut(r.APIVersion, "/")
	if !found {
		group = ""
	}
	return refKey{group, r.Kind, r.Namespace, r.Name}
}

func (n *net) ref() Ref {
	return Ref{n.Resource.APIVersion(), n.Resource.Kind, n.Namespace, n.Name}
}

// grouped folds the changes of objects below their owners, which may have ended as they began.
func grouped(all []*net) []Group {
	changed := make(map[refKey]*net, len(all))
	for _, n := range all {
		ref := n.ref()
		changed[ref.key()] = n
	}
	type link struct {
		to  *net
		ref *Ref
	}
	links := make(map[*net]link, len(all)) // one may own all others, and have many references
	groups, order := map[refKey]*Group{}, []refKey{}
	for _, n := range all {
		top, owner := n, n.ref()
		for range maxOwners {
			l, known := links[top]
			if !known {
				l.to, l.ref = top.owner(changed)
				links[top] = l
			}
			if l.ref == nil {
				break
			}
			if owner = *l.ref; l.to == nil {
				break
			}
			top, owner = l.to, l.to.ref()
		}
		g := groups[owner.key()]
		if g == nil {
			g = &Group{Owner: owner, Counts: map[string]map[string]int{}, Items: []NetChange{}}
			groups[owner.key()] = g
			order = append(order, owner.key())
		}
		switch {
		case top == n && owner == n.ref(): // it is the owner
			if n.Change != "" {
				g.Change = &n.NetChange
			}
			continue
		case n.Change != "":
			g.Items = append(g.Items, n.NetChange)
		}
		resource := strings.TrimSuffix(n.Resource.Resource+"."+n.Resource.Group, ".")
		if g.Counts[resource] == nil {
			g.Counts[resource] = map[string]int{}
		}
		g.Counts[resource][cmp.Or(n.Change, "churned")]++
	}
	list := []Group{}
	for _, key := range order {
		if g := groups[key]; g.Change != nil || len(g.Items) > 0 {
			list = append(list, *g)
		}
	}
	return list
}

// owner returns what the object is a consequence of, nil if that is not known: of several
// objects the first that changed, with its change, or else the first.
func (n *net) owner(changed map[refKey]*net) (*net, *Ref) {
	for _, ref := range n.owners {
		for _, namespace := range []string{ref.Namespace, ""} { // it may be in none
			ref.Namespace = namespace
			if o := changed[ref.key()]; o != nil && o != n {
				return o, &ref
			}
		}
	}
	if len(n.owners) == 0 {
		return nil, nil
	}
	return nil, &n.owners[0]
}

// ownersOf returns the owners that may have caused a change, by the present or last state of its
// object.
func (r *Reader) ownersOf(n *net) ([]Ref, error) {
	raw := []byte(n.is.Object)
	if raw == nil {
		raw = n.was.Object
	}
	if raw == nil { // it came and went
		rec, err := r.read(n.last)
		if rec == nil || err != nil {
			return nil, err
		}
		raw = r.show(rec.Record, rec.Object)
	}
	return ownersOf(&n.Resource, n.Namespace, raw), nil
}

// ownersOf returns what an object may be a consequence of, in the order of preference.
func ownersOf(about *event.Resource, namespace string, raw []byte) (list []Ref) {
	type reference struct {
		Ref
		Controller bool `json:"controller"`
	}
	type address struct {
		TargetRef *Ref `json:"targetRef"`
	}
	var o struct {
		Metadata struct {
			Name            string      `json:"name"`
			OwnerReferences []reference `json:"ownerReferences"`
		} `json:"metadata"`
		InvolvedObject Ref       `json:"involvedObject"`
		Regarding      Ref       `json:"regarding"`
		Endpoints      []address `json:"endpoints"`
		Subsets        []struct {
			Addresses         []address `json:"addresses"`
			NotReadyAddresses []address `json:"notReadyAddresses"`
		} `json:"subsets"`
	}
	_ = json.Unmarshal(raw, &o) // what has another type is left out
	add := func(r Ref) {
		if r.Kind != "" && r.Name != "" && len(list) < maxRefs {
			list = append(list, r)
		}
	}
	for _, r := range o.Metadata.OwnerReferences {
		if r.Controller {
			if r.Namespace = namespace; r.Kind == "Node" && r.APIVersion == "v1" {
				r.Namespace = ""
			}
			add(r.Ref)
		}
	}
	switch about.Kind {
	case "Event":
		add(o.InvolvedObject)
		add(o.Regarding)
	case "Endpoints":
		add(Ref{"v1", "Service", namespace, o.Metadata.Name})
		for _, s := range o.Subsets {
			o.Endpoints = append(append(o.Endpoints, s.Addresses...), s.NotReadyAddresses...)
		}
		fallthrough
	case "EndpointSlice":
		for _, a := range o.Endpoints {
			if a.TargetRef != nil {
				if a.TargetRef.APIVersion == "" && a.TargetRef.Kind == "Pod" {
					a.TargetRef.APIVersion = "v1"
				}
				add(*a.TargetRef)
			}
		}
	}
	return list
}
