package redact

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Table holds compiled edits. It is immutable and safe for concurrent use. A nil Table
// edits nothing.
type Table struct {
	resources map[schema.GroupResource][]*rules

	key      []byte
	routes   map[string]Edits    // by name; only those with edits
	leading  map[string][]string // sink → those of routes that lead to it now
	combined sync.Map            // combination → *rawjson.Editor of all their edits
}

type combination struct {
	schema.GroupResource
	routes string
}

// rules are the edits of a resource, in one namespace or all.
type rules struct {
	namespace   string
	fingerprint uint64
	*rawjson.Editor
}

// of returns the edit of a record.
func (r *rules) of(e *event.Event) editor { return editor{r.Editor, e.Namespace, e.Name} }

// Compile returns a Table. leading maps each sink to its current routes. key is the
// redaction key.
func Compile(a Accepted, leading map[string][]string, key []byte) (*Table, error) {
	t := &Table{resources: map[schema.GroupResource][]*rules{}, key: key, routes: map[string]Edits{}, leading: map[string][]string{}}
	for i := range a.Resources {
		r := &a.Resources[i]
		compiled, err := compile(r.Edits, r.GroupResource(), key)
		if err != nil {
			return nil, err
		}
		compiled.namespace = r.Namespace
		t.resources[r.GroupResource()] = append(t.resources[r.GroupResource()], compiled)
	}
	for _, r := range a.Routes {
		if len(r.Drop)+len(r.Redact) > 0 {
			edits := Edits{Drop: r.Drop, Redact: r.Redact}
			if err := edits.Validate(); err != nil {
				return nil, fmt.Errorf("redact: edits of route %s: %w", r.Name, err)
			}
			t.routes[r.Name] = edits
		}
	}
	for sink, names := range leading {
		for _, name := range names {
			if _, ok := t.routes[name]; ok {
				t.leading[sink] = append(t.leading[sink], name)
			}
		}
	}
	return t, nil
}

func compile(e Edits, gr schema.GroupResource, key []byte) (*rules, error) {
	compiled, err := e.Editor(gr, key)
	if err != nil {
		return nil, err
	}
	return &rules{fingerprint: e.Fingerprint(gr), Editor: compiled}, nil
}

// of returns the rules for objects of a resource in a namespace, nil if there are none.
func (t *Table) of(group, resource, namespace string) *rules {
	var all *rules
	for _, r := range t.resources[schema.GroupResource{Group: group, Resource: resource}] {
		switch r.namespace {
		case namespace:
			return r
		case "":
			all = r
		}
	}
	return all
}

// pending returns the rules that a record was not made with, nil if there are none.
func (t *Table) pending(r *record.Record) *rules {
	if t == nil || r == nil || len(r.Object.Data)+len(r.OldObject.Data)+len(r.Patch) == 0 && r.Enrichment == nil {
		return nil
	}
	rules := t.of(r.Event.Resource.Group, r.Event.Resource.Resource, r.Event.Namespace)
	if rules == nil || rules.fingerprint == r.Edits {
		return nil
	}
	return rules
}

// Concerns reports whether a record was made with other edits than the table's.
func (t *Table) Concerns(r *record.Record) bool {
	return t.pending(r) != nil || t.pending(r.About()) != nil
}

// Form identifies the edits of a record's content once those of [Table.Edit] are made.
func (t *Table) Form(r *record.Record) uint64 {
	if pending := t.pending(r); pending != nil {
		return pending.fingerprint
	}
	return r.Edits
}

// EditsRoutes reports whether there are routes with edits.
func (t *Table) EditsRoutes() bool { return t != nil && len(t.routes) > 0 }

// Edit returns the edit of a record's content for a sink, nil if there is none. The
// empty sink stands for a reader without routes, such as the HTTP interface.
func (t *Table) Edit(r *record.Record, sink string) record.Edit {
	if t == nil {
		return nil
	}
	pending, routed := t.pending(r), t.routed(r, sink)
	switch {
	case pending == nil && routed == nil:
		return nil
	case pending == nil:
		return editor{routed, r.Event.Namespace, r.Event.Name}
	case routed == nil:
		return pending.of(&r.Event)
	default:
		return chain{pending.of(&r.Event), editor{routed, r.Event.Namespace, r.Event.Name}}
	}
}

// routed returns the edits of the routes by which a record reaches a sink: the routes
// that matched when it was recorded, and those of them that lead to the sink now.
func (t *Table) routed(r *record.Record, sink string) *rawjson.Editor {
	if len(t.routes) == 0 || sink == "" {
		return nil
	}
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range r.Targets {
		for name := range strings.SplitSeq(r.Targets[i].Routes, ",") {
			_, edits := t.routes[name]
			if edits && (r.Targets[i].Sink == sink || slices.Contains(t.leading[sink], name)) {
				add(name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	key := combination{schema.GroupResource{Group: r.Event.Resource.Group, Resource: r.Event.Resource.Resource}, strings.Join(names, ",")}
	if known, ok := t.combined.Load(key); ok {
		return known.(*rawjson.Editor)
	}
	var all Edits
	for _, name := range names {
		all = all.Union(t.routes[name])
	}
	compiled, err := all.RouteEditor(key.GroupResource, t.key)
	if err != nil {
		panic(err) // Compile has validated the paths
	}
	known, _ := t.combined.LoadOrStore(key, compiled)
	return known.(*rawjson.Editor)
}
