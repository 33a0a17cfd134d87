package dynamicfactory

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// table is the result of discovery, in the server's order of groups. It is immutable.
type table struct {
	groups  []servedGroup
	reasons map[schema.GroupVersion]error // of versions whose discovery fails
}

// servedGroup is a group with its versions, the preferred one first.
type servedGroup struct {
	name     string
	versions []servedVersion
}

type servedVersion struct {
	name      string
	resources []servedResource
	failing   bool // its discovery fails; resources are those of the last success
}

// servedResource is a resource with its names in lower case.
type servedResource struct {
	Resource
	watchable  bool
	singular   string
	shortNames []string
	kind       string
}

func newTable(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, failed map[schema.GroupVersion]error, before *table) *table {
	byVersion := make(map[string]*metav1.APIResourceList, len(lists))
	for _, l := range lists {
		if l != nil {
			byVersion[l.GroupVersion] = l
		}
	}
	t := &table{reasons: failed}
	for _, g := range groups {
		group := servedGroup{name: g.Name}
		for _, name := range versionsOf(g, failed, before) {
			gv := schema.GroupVersion{Group: g.Name, Version: name}
			v := servedVersion{name: name}
			if _, ok := failed[gv]; ok {
				v.failing = true
				v.resources = before.resources(gv)
			} else if l := byVersion[gv.String()]; l != nil {
				v.resources = resourcesOf(gv, l.APIResources)
			}
			group.versions = append(group.versions, v)
		}
		t.groups = append(t.groups, group)
	}
	return t
}

// versionsOf returns the names of a group's versions, the preferred one first.
// Aggregated discovery omits versions that fail: a formerly preferred one comes first, and
// the others last.
func versionsOf(g *metav1.APIGroup, failed map[schema.GroupVersion]error, before *table) []string {
	var names []string
	if v := g.PreferredVersion.Version; v != "" {
		names = append(names, v)
	}
	for _, v := range g.Versions {
		if v.Version != g.PreferredVersion.Version {
			names = append(names, v.Version)
		}
	}
	var missing []string
	for gv := range failed {
		if gv.Group == g.Name && !slices.Contains(names, gv.Version) {
			missing = append(missing, gv.Version)
		}
	}
	slices.Sort(missing)
	for _, name := range missing {
		if before.prefers(g.Name, name) {
			names = slices.Insert(names, 0, name)
		} else {
			names = append(names, name)
		}
	}
	return names
}

func resourcesOf(gv schema.GroupVersion, list []metav1.APIResource) []servedResource {
	var out []servedResource
	for i := range list {
		r := &list[i]
		if strings.Contains(r.Name, "/") {
			continue // a subresource
		}
		s := servedResource{
			Resource:  Resource{GVR: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced},
			watchable: watchable(r), singular: strings.ToLower(r.SingularName), kind: strings.ToLower(r.Kind),
		}
		for _, n := range r.ShortNames {
			s.shortNames = append(s.shortNames, strings.ToLower(n))
		}
		out = append(out, s)
	}
	return out
}

// resources returns the resources of a version. t may be nil.
func (t *table) resources(gv schema.GroupVersion) []servedResource {
	if t == nil {
		return nil
	}
	for _, g := range t.groups {
		if g.name != gv.Group {
			continue
		}
		for _, v := range g.versions {
			if v.name == gv.Version {
				return v.resources
			}
		}
	}
	return nil
}

// prefers reports whether a version is the first of its group. t may be nil.
func (t *table) prefers(group, version string) bool {
	if t == nil {
		return false
	}
	i := slices.IndexFunc(t.groups, func(g servedGroup) bool { return g.name == group })
	return i >= 0 && len(t.groups[i].versions) > 0 && t.groups[i].versions[0].name == version
}

// equal reports whether both resolve names alike. other may be nil.
func (t *table) equal(other *table) bool {
	return other != nil && reflect.DeepEqual(t.groups, other.groups)
}
