package rbac

import (
	"cmp"
	"slices"
	"strings"
)

// Rule is a permission for one resource.
type Rule struct {
	Group    string // "*": every group
	Resource string // "*": every resource
	Name     string // of the one object it is limited to; "": any

	Namespace string // "": the whole cluster
	Verbs     []string
}

// Need is a rule and what it is for.
type Need struct {
	Rule
	Watches  []string // names of the watches that need it, sorted
	Reason   string   // why, where a watch does not say it all; "": its watches read the resource
	Optional bool     // the daemon works without it; see Reason
}

// covers reports whether r grants everything that other grants.
func (r *Rule) covers(other *Rule) bool {
	return (r.Namespace == "" || r.Namespace == other.Namespace) &&
		(r.Group == wildcard || r.Group == other.Group) &&
		(r.Resource == wildcard || r.Resource == other.Resource) &&
		(r.Name == "" || r.Name == other.Name) &&
		!slices.ContainsFunc(other.Verbs, func(v string) bool { return !slices.Contains(r.Verbs, v) })
}

// wildcard is RBAC's word for everything.
const wildcard = "*"

// least leaves out the needs that others cover, which then name the watches of
// both, and brings the rest into order.
func least(needs []Need) []Need {
	// The widest come first, so that one pass finds what each is covered by.
	slices.SortStableFunc(needs, func(a, b Need) int {
		return cmp.Or(compareWidth(a, b), compare(a, b))
	})
	var kept []Need
	for _, n := range needs {
		i := slices.IndexFunc(kept, func(k Need) bool { return k.covers(&n.Rule) && (!k.Optional || n.Optional) })
		if i < 0 {
			n.Watches = slices.Clone(n.Watches)
			kept = append(kept, n)
			continue
		}
		kept[i].Watches = append(kept[i].Watches, n.Watches...)
	}
	for i := range kept {
		slices.Sort(kept[i].Watches)
		kept[i].Watches = slices.Compact(kept[i].Watches)
	}
	slices.SortStableFunc(kept, compare)
	return kept
}

// compareWidth puts rules before those that they may cover.
func compareWidth(a, b Need) int {
	width := func(n Need) int {
		w := 0
		for _, narrow := range []bool{n.Optional, n.Name != "", n.Namespace != "", n.Resource != wildcard, n.Group != wildcard} {
			if narrow {
				w++
			}
		}
		return w - len(n.Verbs)
	}
	return cmp.Compare(width(a), width(b))
}

// compare is the order in which rules are printed.
func compare(a, b Need) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace),
		compareBool(a.Optional, b.Optional),
		strings.Compare(a.Group, b.Group),
		strings.Compare(a.Resource, b.Resource),
		strings.Compare(a.Name, b.Name),
		strings.Compare(a.Reason, b.Reason),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// String formats the rule as the server does in a refusal.
func (r *Rule) String() string {
	s := strings.Join(r.Verbs, ", ") + " on " + r.Resource
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " named " + r.Name
	}
	if r.Namespace == "" {
		return s + " in the whole cluster"
	}
	return s + " in namespace " + r.Namespace
}
