package rbac

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Finder resolves a pattern of a configuration to resources.
type Finder interface {
	Find(pattern string) ([]Resource, error)
}

// ErrUnknownGroup means that the group of a resource does not follow from its name.
var ErrUnknownGroup = errors.New("its group is not known")

// Offline is a Finder that asks no server.
type Offline struct{}

var _ Finder = Offline{}

var versionForm = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`)

// Find reads RESOURCE[.VERSION][.GROUP], *.GROUP and *. A name that is not one of
// Kubernetes itself is taken for a plural; without a group it is refused with an
// error that wraps [ErrUnknownGroup].
func (Offline) Find(pattern string) ([]Resource, error) {
	name, rest, qualified := strings.Cut(pattern, ".")
	if version, inner, _ := strings.Cut(rest, "."); versionForm.MatchString(version) {
		rest = inner
	}
	rest = strings.TrimSuffix(rest, ".")
	if name == wildcard {
		if !qualified {
			return []Resource{{Group: wildcard, Name: wildcard, Custom: true}}, nil
		}
		return []Resource{{Group: rest, Name: wildcard, Custom: true}}, nil
	}
	groups := builtin()
	if qualified {
		groups = slices.DeleteFunc(groups, func(g group) bool { return g.name != rest })
	}
	for i := range groups {
		if r, ok := groups[i].find(name); ok {
			return []Resource{r}, nil
		}
	}
	if !qualified {
		return nil, fmt.Errorf("resource %s: %w; write %s.GROUP, or give a cluster to ask", pattern, ErrUnknownGroup, name)
	}
	return []Resource{{Group: rest, Name: name, Custom: true}}, nil
}

// Resolver finds served resources. *dynamicfactory.Resolver implements it.
type Resolver interface {
	Resolve(pattern string) ([]dynamicfactory.Resource, error)
}

// Served is a Finder that goes by what a server serves. What is not served is
// read as [Offline] reads it, since it may come.
type Served struct{ Resolver Resolver }

var _ Finder = Served{}

// Find returns the served resources that the pattern means.
func (s Served) Find(pattern string) ([]Resource, error) {
	found, err := s.Resolver.Resolve(pattern)
	if errors.Is(err, dynamicfactory.ErrNotServed) {
		return Offline{}.Find(pattern)
	}
	if err != nil {
		return nil, fmt.Errorf("resource %s: %w", pattern, err)
	}
	groups := builtin()
	out := make([]Resource, len(found))
	for i, f := range found {
		out[i] = Resource{Group: f.GVR.Group, Name: f.GVR.Resource, Scope: ScopeCluster}
		if f.Namespaced {
			out[i].Scope = ScopeNamespaced
		}
		out[i].Custom = strings.HasPrefix(pattern, wildcard) ||
			!slices.ContainsFunc(groups, func(g group) bool { return g.name == f.GVR.Group })
	}
	return out, nil
}
