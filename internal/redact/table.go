package redact

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Table holds compiled edits. But for its counts it is immutable once it is used, and it is safe for
// concurrent use: readers get it through an atomic pointer of its owner. A nil Table
// edits nothing.
type Table struct {
	resources map[schema.GroupResource][]*rules

	key      []byte
	routes   map[string]Edits    // by name; only those with edits
	leading  map[string][]string // sink → those of routes that lead to it now
	combined sync.Map            // combination → *routed
	onUnseen func(route string, u Usage, events uint64)
}

// OnUnseen sets the function that receives the paths of routes that none of many events had. It is called from
// any goroutine, and for a path of several combinations of routes more than once. Set it before the first use.
func (t *Table) OnUnseen(f func(route string, u Usage, events uint64)) { t.onUnseen = f }

type combination struct {
	schema.GroupResource
	routes string
}

// routed are the edits of all routes of a combination.
type routed struct {
	*rawjson.Editor
	edits Edits
	used  atomic.Uint64 // by how many events
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
		for name := range r.Targets[i].RouteNames() {
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
		return t.use(known.(*routed), names)
	}
	var all Edits
	for _, name := range names {
		all = all.Union(t.routes[name])
	}
	compiled, err := all.RouteEditor(key.GroupResource, t.key)
	if err != nil {
		panic(err) // Compile has validated the paths
	}
	known, _ := t.combined.LoadOrStore(key, &routed{Editor: compiled, edits: all})
	return t.use(known.(*routed), names)
}

// use counts an event that the edits of routes are for.
func (t *Table) use(c *routed, routes []string) *rawjson.Editor {
	if c.used.Add(1) != unseen.Enough+1 || t.onUnseen == nil { // those before it are edited
		return c.Editor
	}
	for _, route := range routes {
		usage, events := t.RouteUsage(route)
		for _, u := range usage {
			if u.Hits == 0 {
				t.onUnseen(route, u, events)
			}
		}
	}
	return c.Editor
}

// RouteUsage returns the usage of the paths of a route's edits, and the number of its events that
// were edited, since the table was compiled. A value that several paths name counts for one.
func (t *Table) RouteUsage(route string) (usage []Usage, events uint64) {
	if t == nil {
		return nil, 0
	}
	own := t.routes[route]
	hits := map[Usage]uint64{}
	t.combined.Range(func(key, value any) bool {
		if c := value.(*routed); slices.Contains(strings.Split(key.(combination).routes, ","), route) {
			events += c.used.Load()
			for _, u := range c.edits.Usage(c.Editor) {
				hits[Usage{Key: u.Key, Path: u.Path}] += u.Hits
			}
		}
		return true
	})
	for _, p := range own.Drop {
		usage = append(usage, Usage{"drop", p, hits[Usage{Key: "drop", Path: p}]})
	}
	for _, p := range own.Redact {
		usage = append(usage, Usage{"redact", p, hits[Usage{Key: "redact", Path: p}]})
	}
	return usage, events
}

// Accepted are the edits of a configuration, plus those of resources and routes that
// only earlier configurations had and whose events are still stored.
type Accepted struct {
	Resources []Resource `json:"resources,omitempty"`
	Routes    []Route    `json:"routes,omitempty"`
}

// Resource are the edits of one resource's objects.
type Resource struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"` // empty: all without edits of their own
	Edits     Edits  `json:"edits"`
}

// Route are the edits of what one route delivers.
type Route struct {
	Name   string   `json:"name"`
	Drop   []string `json:"drop,omitempty"`
	Redact []string `json:"redact,omitempty"`
}

// GroupResource returns the resource.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// Parse decodes the result of [Accepted.Marshal].
func Parse(b []byte) (Accepted, error) {
	var a Accepted
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("accepted edits: %w", err)
	}
	return a, nil
}

// Marshal encodes the edits for the store.
func (a Accepted) Marshal() []byte {
	b, err := json.Marshal(a)
	if err != nil { // strings and booleans always marshal
		panic(fmt.Sprintf("redact: marshal: %v", err))
	}
	return b
}

// Add adds the edits of a resource. Existing edits of the resource are united with them.
func (a *Accepted) Add(r Resource) {
	for i := range a.Resources {
		if known := &a.Resources[i]; known.same(&r) {
			known.Edits = known.Edits.Union(r.Edits)
			return
		}
	}
	a.Resources = append(a.Resources, r)
}

func (r *Resource) same(other *Resource) bool {
	return r.GroupResource() == other.GroupResource() && r.Namespace == other.Namespace
}

// Keep adds the resources and routes of before that a does not name. now returns the
// current edits of such a resource in a namespace, or in all if it is empty. If now
// returns false, the resource keeps its edits.
func (a *Accepted) Keep(before Accepted, now func(gr schema.GroupResource, namespace string) (Edits, bool)) {
	named := len(a.Resources)
	for _, r := range before.Resources {
		if slices.ContainsFunc(a.Resources[:named], func(n Resource) bool {
			return n.GroupResource() == r.GroupResource() && (n.Namespace == "" || n.Namespace == r.Namespace)
		}) {
			continue
		}
		if edits, ok := now(r.GroupResource(), r.Namespace); ok {
			r.Edits = edits
		}
		a.Resources = append(a.Resources, r)
	}
	for _, r := range before.Routes {
		if !slices.ContainsFunc(a.Routes, func(n Route) bool { return n.Name == r.Name }) {
			a.Routes = append(a.Routes, r)
		}
	}
	slices.SortFunc(a.Resources, func(x, y Resource) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Namespace, y.Namespace))
	})
}

// Tightened returns the resources of which a hides values that before does not hide, in
// a namespace in which both have edits.
func (a *Accepted) Tightened(before *Accepted) []schema.GroupResource {
	var list []schema.GroupResource
	for _, r := range slices.Concat(a.Resources, before.Resources) {
		gr := r.GroupResource()
		edits, ok := a.in(gr, r.Namespace)
		old, had := before.in(gr, r.Namespace)
		if ok && had && edits.Tightens(gr, old) && !slices.Contains(list, gr) {
			list = append(list, gr)
		}
	}
	return list
}

// in returns the edits of a resource in a namespace.
func (a *Accepted) in(gr schema.GroupResource, namespace string) (edits Edits, ok bool) {
	for i := range a.Resources {
		r := &a.Resources[i]
		if r.GroupResource() != gr {
			continue
		}
		if r.Namespace == namespace {
			return r.Edits, true
		}
		if r.Namespace == "" {
			edits, ok = r.Edits, true
		}
	}
	return edits, ok
}
