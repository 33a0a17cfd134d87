package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/schemas"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// unknownFields warns of the fields that a configuration names and that no resource they
// are about has.
func unknownFields(out io.Writer, cfg *rest.Config, resolver *dynamicfactory.Resolver, file string, st *plan.State) (count int, err error) {
	c, err := config.Load(file, watcherd.Blocks(kinds.Builtin()))
	if err != nil {
		return 0, err
	}
	uses, err := schemas.Uses(c)
	if err != nil {
		return 0, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return 0, err
	}
	server, err := schemas.NewServer(client.OpenAPIV3())
	if err != nil {
		_, err = fmt.Fprintf(out, "fields are not checked: %v\n", err)
		return 0, err
	}
	for i := range uses {
		u := &uses[i]
		lacking, err := lacking(server, resolver, st, u)
		if err != nil {
			_, err = fmt.Fprintf(out, "fields are not checked: %v\n", err)
			return count, err
		}
		if len(lacking) == 0 {
			continue
		}
		count++
		warning := c.ErrorAt(u.At, "no field %s in %s", u.Name, strings.Join(lacking, ", "))
		if u.Line > 0 {
			warning = c.ErrorWithin(u.At, u.Line, u.Column, "no field %s in %s", u.Name, strings.Join(lacking, ", "))
		}
		if _, err := fmt.Fprintf(out, "warning: %v\n", warning); err != nil {
			return 0, err
		}
	}
	return count, nil
}

// lacking are the resources that a field is about, none if one of them has it or has no
// schema.
func lacking(server *schemas.Server, resolver *dynamicfactory.Resolver, st *plan.State, u *schemas.Use) ([]string, error) {
	var names []string
	for _, s := range u.Scopes {
		limits := map[schema.GroupResource]bool{}
		for _, r := range s.Resources {
			found, _ := resolver.Resolve(r.String()) // what is not served has no field to check
			for _, f := range found {
				limits[f.GVR.GroupResource()] = true
			}
		}
		for i := range st.Watches {
			w := &st.Watches[i]
			if len(s.Watches) > 0 && !slices.Contains(s.Watches, w.Name) {
				continue
			}
			for _, pattern := range w.Resources {
				found, err := resolver.Resolve(pattern)
				if err != nil {
					return nil, nil //nolint:nilerr // it is reported with the watch, and may have the field
				}
				for _, f := range found {
					if len(s.Resources) > 0 && !limits[f.GVR.GroupResource()] {
						continue
					}
					has, known, err := server.Has(f.GVR.GroupVersion().WithKind(f.Kind), u.Field)
					if err != nil || has || !known {
						return nil, err
					}
					if name := f.GVR.GroupResource().String(); !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
			}
		}
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", len(names)-maxNamed))
	}
	return names, nil
}

// maxNamed is how many resources a warning names.
const maxNamed = 3
