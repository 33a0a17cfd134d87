package rbac

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/plan"
)

// Reasons of rules beyond that a watch reads the resource.
const (
	reasonWildcard = "excludes some of it, which a wildcard cannot express: with --server the resources are listed one by one"
	reasonSelector = "selects namespaces by label"
	reasonAbsent   = "reports a namespace of the watch that does not exist"
	reasonProbe    = "guards the store against another cluster, and notices one that was restored from a backup"
	reasonGone     = "distinguishes a deleted kind from one that is not served at present, and reports its objects as deleted"
	reasonFollow   = "notices new and removed kinds at once rather than within half a minute"
)

// Needs works out what a configuration needs, in the order in which it is printed
// and without what other rules cover. The error joins one for every resource that
// no rule can be made for.
func Needs(st *plan.State, find Finder) ([]Need, error) {
	var needs []Need
	var errs []error
	custom := false
	for i := range st.Watches {
		w := &st.Watches[i]
		excluded := w.Excluder(func(name string) (schema.GroupResource, bool) {
			found, err := find.Find(name)
			if err != nil || len(found) != 1 {
				return schema.GroupResource{}, false
			}
			return schema.GroupResource{Group: found[0].Group, Resource: found[0].Name}, true
		})
		for _, pattern := range w.Resources {
			resources, err := find.Find(pattern)
			if err != nil {
				errs = append(errs, fmt.Errorf("watch %s: %w", w.Name, err))
				continue
			}
			for _, r := range resources {
				if r.Name != wildcard && excluded(schema.GroupResource{Group: r.Group, Resource: r.Name}) {
					continue
				}
				custom = custom || r.Custom
				needs = append(needs, watchNeeds(w, r)...)
			}
		}
		for _, ns := range w.Namespaces {
			needs = append(needs, Need{
				Rule:   Rule{Resource: "namespaces", Name: ns, Verbs: []string{"list"}},
				Reason: reasonAbsent, Optional: true,
			})
		}
		if w.Filter.NeedsNamespaces() {
			needs = append(needs, Need{
				Rule:    Rule{Resource: "namespaces", Verbs: []string{"list", "watch"}},
				Watches: []string{w.Name}, Reason: reasonSelector,
			})
		}
	}
	for _, c := range st.Cached() {
		resources, err := find.Find(c.Resource)
		if err != nil {
			continue // it is not served, and missing in events
		}
		for _, r := range resources {
			need := Need{
				Rule:   Rule{Group: r.Group, Resource: r.Name, Verbs: []string{"list", "watch"}},
				Reason: "route " + strings.Join(c.Routes, ", ") + " adds it to events (enrich)", Optional: true,
			}
			if c.Namespaces == nil {
				needs = append(needs, need)
				continue
			}
			for _, need.Namespace = range c.Namespaces {
				if r.Scope != ScopeCluster {
					needs = append(needs, need)
				}
			}
		}
	}
	needs = append(needs, Need{
		Rule:   Rule{Resource: "namespaces", Name: "kube-system", Verbs: []string{"list"}},
		Reason: reasonProbe, Optional: true,
	})
	if custom {
		for _, r := range []Rule{
			{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
			{Group: "apiregistration.k8s.io", Resource: "apiservices"},
		} {
			r.Verbs = []string{"watch"}
			needs = append(needs, Need{Rule: r, Reason: reasonFollow, Optional: true})
		}
		needs = append(needs, Need{
			Rule:   Rule{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Verbs: []string{"get"}},
			Reason: reasonGone, Optional: true,
		})
	}
	return least(needs), errors.Join(errs...)
}

// watchNeeds is what the informers of one watch and resource need.
func watchNeeds(w *plan.Watch, r Resource) []Need {
	rule := Rule{Group: r.Group, Resource: r.Name, Name: onlyName(w), Verbs: []string{"list", "watch"}}
	reason := ""
	if r.Name == wildcard && len(w.ExcludeResources) > 0 {
		reason = reasonWildcard
	}
	if len(w.Namespaces) == 0 {
		return []Need{{Rule: rule, Watches: []string{w.Name}, Reason: reason}}
	}
	if r.Scope == ScopeCluster {
		return nil // a watch of namespaces leaves it out
	}
	var needs []Need
	for _, ns := range w.Namespaces {
		rule.Namespace = ns
		needs = append(needs, Need{Rule: rule, Watches: []string{w.Name}, Reason: reason})
	}
	return needs
}

// onlyName is the name of the one object that the watch asks the server for, ""
// if it asks for more. Authorisation takes a field selector for a name as a name,
// in lists and watches too.
func onlyName(w *plan.Watch) string {
	if w.ServerFields == "" {
		return ""
	}
	selector, err := fields.ParseSelector(w.ServerFields)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	return name
}

// Required leaves out what is optional.
func Required(needs []Need) []Need {
	var out []Need
	for _, n := range needs {
		if !n.Optional {
			out = append(out, n)
		}
	}
	return out
}
