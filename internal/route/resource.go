package route

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/event"
)

// ResourcePattern matches resources by name in kubectl's spelling:
//
//	pods                          the resource pods, of whatever group a watch brings it
//	pods.v1, pods.v1., pods.      of the core group
//	deployments.apps              of a group
//	deployments.v1.apps           of a group and version
//	*.apps, *.v1.apps             every resource of a group
//	*                             every resource
//
// A second part that looks like a version (v1, v2beta1) is one.
type ResourcePattern struct {
	resource string // empty: any
	version  string // empty: any
	group    string
	anyGroup bool
	rest     string // all behind the first dot: the group, if no version is meant
}

// versionForm is how the Kubernetes API names versions.
const versionForm = `^v[0-9]+((alpha|beta)[0-9]+)?$`

// ParseResource reads a pattern.
func ParseResource(s string) (ResourcePattern, error) {
	resource, rest, dotted := strings.Cut(s, ".")
	if resource == "" || strings.ContainsAny(s, " /?[]{}") || strings.Contains(s[1:], "*") || resource[0] == '*' && resource != "*" {
		return ResourcePattern{}, fmt.Errorf("%q is not RESOURCE[.VERSION][.GROUP], *.GROUP or *", s)
	}
	p := ResourcePattern{resource: resource, anyGroup: !dotted, group: rest, rest: rest}
	if resource == "*" {
		p.resource = ""
	}
	if version, group, _ := strings.Cut(rest, "."); isVersion(version) {
		p.version, p.group = version, group
	}
	p.group = strings.TrimSuffix(p.group, ".")
	return p, nil
}

func isVersion(s string) bool {
	ok, err := regexp.MatchString(versionForm, s)
	return err == nil && ok
}

// Matches tells whether the pattern names r.
func (p ResourcePattern) Matches(r event.Resource) bool {
	return (p.resource == "" || p.resource == r.Resource) &&
		(p.version == "" || p.version == r.Version) &&
		(p.anyGroup || p.group == r.Group)
}

// Wildcard reports whether the pattern names resources by group alone, or all.
func (p ResourcePattern) Wildcard() bool { return p.resource == "" }

// Bare reports whether the pattern leaves the group open.
func (p ResourcePattern) Bare() bool { return p.anyGroup }

// Names reports whether gr may be meant, in any version: what looks like a version
// may as well begin the name of a group.
func (p ResourcePattern) Names(gr schema.GroupResource) bool {
	return (p.resource == "" || p.resource == gr.Resource) &&
		(p.anyGroup || p.group == gr.Group || p.groupOfRest() == gr.Group)
}

// Version is the version that the pattern names for a resource of group, "" if it
// names none.
func (p ResourcePattern) Version(group string) string {
	if p.version == "" || p.group != group {
		return ""
	}
	return p.version
}

func (p ResourcePattern) groupOfRest() string { return strings.TrimSuffix(p.rest, ".") }

// Shared is a resource that both patterns name for certain, whatever the cluster
// serves. Its name is * if every resource of a group is shared, and its group is
// empty too if every resource of the cluster is.
func (p ResourcePattern) Shared(q ResourcePattern) (gr schema.GroupResource, ok bool) {
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
