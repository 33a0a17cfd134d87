package dynamicfactory

import (
	"errors"
	"fmt"
	"regexp"
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

// servedResource is a resource with its kind in lower case.
type servedResource struct {
	Resource
	watchable bool
	kind      string
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
		if !nameForm.MatchString(r.Name) {
			continue // a subresource, or metrics of an aggregated server; with a dot it could pass for one of another group
		}
		s := servedResource{
			Resource: Resource{
				GVR: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced,
				Singular: strings.ToLower(r.SingularName), Categories: r.Categories,
			},
			watchable: watchable(r), kind: strings.ToLower(r.Kind),
		}
		for _, n := range r.ShortNames {
			s.ShortNames = append(s.ShortNames, strings.ToLower(n))
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

var (
	// ErrNotReady reports that discovery has not succeeded yet.
	ErrNotReady = errors.New("dynamicfactory: the served resources are not known yet")
	// ErrNotServed reports that the cluster does not serve a resource at present.
	ErrNotServed = errors.New("dynamicfactory: the cluster does not serve")
	// ErrUncertain accompanies ErrNotServed if the discovery of a group that may have the
	// resource fails.
	ErrUncertain = errors.New("discovery of its group fails")
	// ErrNotWatchable reports that a resource is served but cannot be listed and watched.
	ErrNotWatchable = errors.New("dynamicfactory: cannot be listed and watched")
	// ErrBadPattern reports an invalid resource name.
	ErrBadPattern = errors.New("dynamicfactory: not a resource name")
)

// pattern is a parsed name: RESOURCE[.VERSION][.GROUP], where RESOURCE may be *.
type pattern struct {
	text     string
	resource string     // lower case; * for all
	readings []selector // possible meanings: the first one that is served applies
}

// selector narrows the search. Nil fields match everything.
type selector struct{ group, version *string }

var (
	patternForm = regexp.MustCompile(`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\.?$`)
	nameForm    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	versionForm = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`)
)

func parsePattern(text string) (pattern, error) {
	lower := strings.ToLower(text)
	if !patternForm.MatchString(lower) {
		return pattern{}, fmt.Errorf("%w: %q; want RESOURCE[.VERSION][.GROUP], *.GROUP or *", ErrBadPattern, text)
	}
	resource, rest, qualified := strings.Cut(lower, ".")
	p := pattern{text: text, resource: resource}
	if !qualified {
		p.readings = []selector{{}}
		return p, nil
	}
	version, group, _ := strings.Cut(rest, ".")
	if versionForm.MatchString(version) {
		p.readings = append(p.readings, selector{version: &version, group: &group})
	}
	if rest = strings.TrimSuffix(rest, "."); rest != "" || len(p.readings) == 0 {
		p.readings = append(p.readings, selector{group: &rest})
	}
	return p, nil
}

// Resolve returns the resources of a name, as kubectl interprets it:
//
//	pods  pod  po  Pod            by plural, singular, short name or kind
//	deployments.apps              in a group, in its preferred version
//	deployments.v1.apps  pods.v1  in a version, if that version is served
//	*.example.com                 every watchable resource of a group
//	*                             every watchable resource of the cluster
//
// A name without a group is resolved in the first group that has it, in the server's
// order. A resource that the preferred version of its group lacks is resolved in the first
// version that has it. Subresources are ignored. * excludes events.events.k8s.io, which
// has the same objects as events.
//
// Errors wrap ErrBadPattern, ErrNotServed, ErrNotWatchable or ErrNotReady.
func (r *Resolver) Resolve(name string) ([]Resource, error) { return r.Table()(name) }

// Table returns Resolve with what is known now: later discoveries do not change the answers of
// the function.
func (r *Resolver) Table() func(name string) ([]Resource, error) {
	t := r.current()
	return func(name string) ([]Resource, error) {
		p, err := parsePattern(name)
		if err != nil {
			return nil, err
		}
		if t == nil {
			return nil, ErrNotReady
		}
		return t.resolve(p)
	}
}

func (t *table) resolve(p pattern) ([]Resource, error) {
	for _, s := range p.readings {
		found := t.find(p.resource, s)
		if len(found) == 0 {
			continue
		}
		var list []Resource
		for _, f := range found {
			if f.watchable {
				list = append(list, f.Resource)
			}
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%w: %q", ErrNotWatchable, p.text)
		}
		if s.group == nil && p.resource != "*" {
			list[0].Also = t.also(p.resource, list[0].GVR.Group)
		}
		return list, nil
	}
	if why := t.failing(p); why != "" {
		return nil, fmt.Errorf("%w %q; %w: %s", ErrNotServed, p.text, ErrUncertain, why)
	}
	return nil, fmt.Errorf("%w %q", ErrNotServed, p.text)
}

// also returns the resources of a name without a group in groups after the first one that
// has it.
func (t *table) also(resource, first string) []schema.GroupResource {
	var list []schema.GroupResource
	for g := range t.groups {
		if group := t.groups[g].name; group != first {
			for _, r := range t.find(resource, selector{group: &group}) {
				if r.watchable {
					list = append(list, r.GVR.GroupResource())
				}
			}
		}
	}
	return list
}

func (t *table) find(resource string, s selector) []servedResource {
	if resource == "*" {
		return t.all(s)
	}
	for _, is := range []func(*servedResource) bool{
		func(r *servedResource) bool { return r.GVR.Resource == resource },
		func(r *servedResource) bool { return r.Singular == resource },
		func(r *servedResource) bool { return slices.Contains(r.ShortNames, resource) },
		func(r *servedResource) bool { return r.kind == resource },
	} {
		for g := range t.groups {
			for v := range t.groups[g].versions {
				version := &t.groups[g].versions[v]
				if !s.matches(t.groups[g].name, version.name) {
					continue
				}
				for i := range version.resources {
					if is(&version.resources[i]) {
						return version.resources[i : i+1]
					}
				}
			}
		}
	}
	return nil
}

func (t *table) all(s selector) []servedResource {
	var list []servedResource
	for _, g := range t.groups {
		seen := map[string]bool{}
		for _, v := range g.versions {
			if !s.matches(g.name, v.name) {
				continue
			}
			for _, r := range v.resources {
				if s.group == nil && g.name == "events.k8s.io" && r.GVR.Resource == "events" || seen[r.GVR.Resource] {
					continue
				}
				seen[r.GVR.Resource] = true
				list = append(list, r)
			}
		}
	}
	return list
}

func (s selector) matches(group, version string) bool {
	return (s.group == nil || *s.group == group) && (s.version == nil || *s.version == version)
}

// failing returns the error of the discovery of a group that may have the name, "" without
// a failure.
func (t *table) failing(p pattern) string {
	for _, g := range t.groups {
		for _, v := range g.versions {
			for _, s := range p.readings {
				if v.failing && s.group != nil && s.matches(g.name, v.name) {
					return t.reasons[schema.GroupVersion{Group: g.name, Version: v.name}].Error()
				}
			}
		}
	}
	return ""
}
