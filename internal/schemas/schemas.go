// Package schemas compares the fields that a configuration names with the OpenAPI
// schemas of the resources that a cluster serves.
//
// Guarantees:
//
//   - A field is reported only if none of the resources that its watch or route is about
//     has it. Maps, fields that keep unknown content, and resources without a schema
//     have every field.
//   - Each report has the place of the field in the configuration.
//
// A schema describes more than objects hold: a field that is never set is not reported.
package schemas

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Step is one step of the way to a field. The zero Step is any item of an array or any
// value of an object.
type Step struct {
	Key   string
	IsKey bool
	Deep  bool // any number of steps
}

// StepsOf are the steps of a path of the configuration.
func StepsOf(p rawjson.Path) []Step {
	var steps []Step
	for rest := p; ; {
		first, after, ok := rest.Cut()
		if !ok {
			return steps
		}
		key, isKey := first.Key()
		steps = append(steps, Step{Key: key, IsKey: isKey, Deep: first.Deep()})
		rest = after
	}
}

// node is a part of a schema, as far as it is needed here.
type node struct {
	Ref              string           `json:"$ref"`
	Type             string           `json:"type"`
	Properties       map[string]*node `json:"properties"`
	Items            *node            `json:"items"`
	Additional       json.RawMessage  `json:"additionalProperties"`
	AllOf            []*node          `json:"allOf"`
	AnyOf            []*node          `json:"anyOf"`
	OneOf            []*node          `json:"oneOf"`
	Preserve         bool             `json:"x-kubernetes-preserve-unknown-fields"`
	EmbeddedResource bool             `json:"x-kubernetes-embedded-resource"`

	Kinds []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// document is the schemas of a group and version.
type document struct {
	Components struct {
		Schemas map[string]*node `json:"schemas"`
	} `json:"components"`
}

// Server reads schemas from a cluster, each group and version once. It is not safe for
// concurrent use.
type Server struct {
	paths     map[string]openapi.GroupVersion
	documents map[string]*document
}

// NewServer asks which schemas there are.
func NewServer(client openapi.Client) (*Server, error) {
	paths, err := client.Paths()
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI schemas: %w", err)
	}
	return &Server{paths: paths, documents: map[string]*document{}}, nil
}

// Has reports whether objects of a kind may have a field. Known is false if the cluster
// has no schema of the kind.
func (s *Server) Has(kind schema.GroupVersionKind, field []Step) (has, known bool, err error) {
	path := "apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "api/" + kind.Version
	}
	d, ok := s.documents[path]
	if !ok {
		if d, err = s.read(path); err != nil {
			return false, false, err
		}
		s.documents[path] = d
	}
	for _, n := range d.Components.Schemas {
		if slices.Contains(n.Kinds, kind) {
			return (&search{d, map[visit]bool{}}).has(n, field), true, nil
		}
	}
	return false, false, nil
}

func (s *Server) read(path string) (*document, error) {
	d := &document{}
	served, ok := s.paths[path]
	if !ok {
		return d, nil
	}
	text, err := served.Schema("application/json")
	if err == nil {
		err = json.Unmarshal(text, d)
	}
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI schema %s: %w", path, err)
	}
	return d, nil
}

// search looks for one field. Schemas may contain themselves, so each is looked at
// once with the same rest of the way.
type search struct {
	in   *document
	seen map[visit]bool
}

type visit struct {
	n    *node
	left int
}

func (s *search) has(n *node, field []Step) bool {
	if len(field) == 0 {
		return true
	}
	at := visit{n, len(field)}
	if n == nil || s.seen[at] {
		return false
	}
	s.seen[at] = true
	if name, ok := strings.CutPrefix(n.Ref, "#/components/schemas/"); ok {
		return s.has(s.in.Components.Schemas[name], field)
	}
	if n.Preserve || n.EmbeddedResource || n.opaque() {
		return true
	}
	for _, list := range [][]*node{n.AllOf, n.AnyOf, n.OneOf} {
		for _, other := range list {
			if !other.opaque() && s.has(other, field) {
				return true
			}
		}
	}
	step, rest := field[0], field[1:]
	if step.Deep && s.has(n, rest) {
		return true
	}
	if step.Deep {
		rest = field
	}
	if value, ok := n.Properties[step.Key]; ok && step.IsKey {
		return s.has(value, rest)
	}
	if additional, ok := n.values(); ok && s.has(additional, rest) {
		return true
	}
	if step.IsKey {
		return false
	}
	for _, value := range n.Properties {
		if s.has(value, rest) {
			return true
		}
	}
	return n.Items != nil && s.has(n.Items, rest)
}

// opaque reports whether the schema does not describe its contents.
func (n *node) opaque() bool {
	return n.Ref == "" && (n.Type == "" || n.Type == "object") && len(n.Properties) == 0 && n.Items == nil &&
		len(n.Additional) == 0 && len(n.AllOf)+len(n.AnyOf)+len(n.OneOf) == 0
}

// values is the schema of an object's values under any key, if it may have such.
func (n *node) values() (*node, bool) {
	switch text := string(n.Additional); text {
	case "", "false":
		return nil, false
	case "true":
		return &node{}, true
	}
	value := &node{}
	return value, json.Unmarshal(n.Additional, value) == nil
}
