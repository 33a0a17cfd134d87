package route

import (
	"fmt"
	"regexp"
	"strings"

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
}

// versionForm is how the Kubernetes API names versions.
const versionForm = `^v[0-9]+((alpha|beta)[0-9]+)?$`

// ParseResource reads a pattern.
func ParseResource(s string) (ResourcePattern, error) {
	resource, rest, dotted := strings.Cut(s, ".")
	if resource == "" || strings.ContainsAny(s, " /?[]{}") || strings.Contains(s[1:], "*") || resource[0] == '*' && resource != "*" {
		return ResourcePattern{}, fmt.Errorf("%q is not RESOURCE[.VERSION][.GROUP], *.GROUP or *", s)
	}
	p := ResourcePattern{resource: resource, anyGroup: !dotted, group: rest}
	if resource == "*" {
		p.resource = ""
	}
	if version, group, _ := strings.Cut(rest, "."); isVersion(version) {
		p.version, p.group = version, group
	}
	return p, nil
}

func isVersion(s string) bool {
	ok, err := regexp.MatchString(versionForm, s)
	return err == nil && ok
}

// Names tells whether the pattern names a version of the resource.
func (p ResourcePattern) Names(r event.Resource) bool {
	return (p.resource == "" || p.resource == r.Resource) && (p.anyGroup || p.group == r.Group)
}

// Matches tells whether the pattern names r.
func (p ResourcePattern) Matches(r event.Resource) bool {
	return (p.resource == "" || p.resource == r.Resource) &&
		(p.version == "" || p.version == r.Version) &&
		(p.anyGroup || p.group == r.Group)
}
