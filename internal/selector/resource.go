package selector

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/event"
)

// Resource is a pattern of resource names in kubectl's spelling:
//
//	pods                          the resource pods of any group
//	pods.v1, pods.v1., pods.      of the core group
//	deployments.apps              of a group
//	deployments.v1.apps           of a group and version
//	*.apps, *.v1.apps             every resource of a group
//	*                             every resource
//
// A second part in the form of a version (v1, v2beta1) is a version.
//
// A pattern goes by the spelling alone and needs no cluster. The resolver of
// pkg/dynamicfactory parses the same names for itself, since discovery decides what they
// mean there (short names, kinds, a group that begins like a version), and since that
// package is usable without the daemon. Its tests compare the two.
type Resource struct {
	resource string // empty: any
	version  string // empty: any
	group    string
	anyGroup bool
	rest     string // everything after the first dot: the group, unless it starts with a version
}

var (
	form    = regexp.MustCompile(`^(\*|[a-z]([a-z0-9-]*[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\.?$`)
	version = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`) // of the API
)

// ParseResource parses a pattern. Kinds and other names in upper case count as lower case.
func ParseResource(s string) (Resource, error) {
	s = strings.ToLower(s)
	if !form.MatchString(s) {
		return Resource{}, fmt.Errorf("%q is not RESOURCE[.VERSION][.GROUP], *.GROUP or *", s)
	}
	resource, rest, dotted := strings.Cut(s, ".")
	p := Resource{resource: resource, anyGroup: !dotted, group: rest, rest: rest}
	if resource == "*" {
		p.resource = ""
	}
	if v, group, _ := strings.Cut(rest, "."); version.MatchString(v) {
		p.version, p.group = v, group
	}
	p.group = strings.TrimSuffix(p.group, ".")
	return p, nil
}

// ResourceOf is the pattern that names gr in any version.
func ResourceOf(gr schema.GroupResource) Resource {
	return Resource{resource: gr.Resource, group: gr.Group, rest: gr.Group}
}

// Matches reports whether the pattern names r.
func (p Resource) Matches(r event.Resource) bool {
	return (p.resource == "" || p.resource == r.Resource) &&
		(p.version == "" || p.version == r.Version) &&
		(p.anyGroup || p.group == r.Group)
}

// Wildcard reports whether the pattern names every resource, or every one of a group.
func (p Resource) Wildcard() bool { return p.resource == "" }

// Bare reports whether the pattern names no group.
func (p Resource) Bare() bool { return p.anyGroup }

// Name is the resource that the pattern names, * for a wildcard.
func (p Resource) Name() string { return cmp.Or(p.resource, "*") }

// Group is the group that the pattern names, "" for the core group and for a bare name.
func (p Resource) Group() string { return p.group }

// Names reports whether the pattern may name gr in any version. A part in the form of a
// version can also be the start of the group's name.
func (p Resource) Names(gr schema.GroupResource) bool {
	return (p.resource == "" || p.resource == gr.Resource) &&
		(p.anyGroup || p.group == gr.Group || strings.TrimSuffix(p.rest, ".") == gr.Group)
}

// Version returns the version that the pattern names for a resource of group, or "".
func (p Resource) Version(group string) string {
	if p.version == "" || p.group != group {
		return ""
	}
	return p.version
}

// Shared returns a resource that both patterns name regardless of what the cluster
// serves. Its name is * if they share every resource of a group, and its group is empty
// if they share every resource of the cluster.
func (p Resource) Shared(q Resource) (gr schema.GroupResource, ok bool) {
	if p.resource == "" {
		p, q = q, p // q is the wider one, if any is
	}
	gr = schema.GroupResource{Group: p.group, Resource: p.resource}
	switch {
	case p.resource == "" && q.resource == "":
		gr.Resource = "*"
		if p.anyGroup {
			gr.Group = q.group
		}
		return gr, p.anyGroup || q.anyGroup || p.group == q.group
	case q.resource == "" && q.anyGroup:
		return gr, p.group != "events.k8s.io" || p.resource != "events"
	case q.resource == "":
		return gr, !p.anyGroup && p.group == q.group
	}
	return gr, p.resource == q.resource && p.anyGroup == q.anyGroup && p.group == q.group
}
