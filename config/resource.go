package config

import (
	"slices"
	"strings"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Resource names a resource, or several with a wildcard. In the file it is a
// string in kubectl's spelling, RESOURCE[.VERSION][.GROUP], or a mapping.
type Resource struct {
	// API group; empty for the core group.
	Group string `json:"group"`
	// API version; the one the API server prefers when left out.
	Version string `json:"version"`
	// Plural name, such as deployments, or * for every kind of the group that can be listed.
	Resource string `json:"resource" jsonschema:"required"`

	pattern string
}

// ParseResource takes a resource in kubectl's spelling. What the parts of a name
// with dots are is up to the API server's discovery.
func ParseResource(pattern string) Resource { return Resource{pattern: pattern} }

// String is the resource in kubectl's spelling.
func (r Resource) String() string {
	if r.pattern != "" {
		return r.pattern
	}
	parts := slices.DeleteFunc([]string{r.Resource, r.Version, r.Group}, func(part string) bool { return part == "" })
	return strings.Join(parts, ".")
}

func decodeResource(d *strict.Decoder, n strict.Node, into *Resource) {
	if n.IsMapping() {
		d.Mapping(n, into, strict.Others{})
		return
	}
	text, ok := n.Text()
	if !ok || strings.TrimSpace(text) == "" {
		d.Report(n, "must be a name such as deployments.apps, or a mapping {group, version, resource}")
		return
	}
	*into = ParseResource(text)
}
