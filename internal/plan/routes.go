package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// DefaultRoute takes every change of every watch. It stands for no routes.
func DefaultRoute() route.Spec { return route.Spec{Name: "default"} }

// routes are the configured routes, or the one that takes every watch to every
// sink.
func (k *compiler) routes(all []Sink) []route.Spec {
	specs := k.specs()
	for i := range specs {
		for _, s := range all {
			if s.Body != nil && s.Body.Reads() != 0 && slices.Contains(specs[i].Sinks, s.Name) {
				specs[i].Bodies = append(specs[i].Bodies, route.Reads{Sink: s.Name, Parts: s.Body.Reads()})
			}
		}
	}
	return specs
}

func (k *compiler) specs() []route.Spec {
	c := k.config
	if len(c.Routes) == 0 {
		if len(c.Sinks) == 0 {
			return nil
		}
		all := DefaultRoute()
		for _, s := range c.Sinks {
			all.Sinks = append(all.Sinks, s.Name)
		}
		return []route.Spec{all}
	}
	specs := make([]route.Spec, len(c.Routes))
	for i, r := range c.Routes {
		specs[i] = route.Spec{
			Name:      r.Name,
			Watches:   r.Watches,
			Resources: k.resources(item("routes", i)+".resources", r.Resources),
			When:      r.When,
			Changed:   r.Changed,
			Drop:      r.Drop,
			Redact:    r.Redact,
			Payload:   r.Payload,
			Enrich:    r.Enrich,
			Sinks:     r.Sinks,
			OnError:   route.OnError(r.OnError),
		}
		if r.Sample != nil {
			specs[i].Sample = *r.Sample
		}
		if m := r.Metric; m != nil {
			specs[i].Metric = (*route.Metric)(m)
		}
		if r.Throttle != nil {
			specs[i].Throttle = r.Throttle.Per
		}
		if r.For != nil {
			specs[i].For = *r.For
		}
		for _, t := range r.Events {
			specs[i].Events = append(specs[i].Events, event.Type(t))
		}
		k.edits(item("routes", i), redact.Edits{Drop: r.Drop, Redact: r.Redact})
	}
	return specs
}

func (k *compiler) router(specs []route.Spec) *route.Router {
	r, err := route.Compile(specs)
	for _, e := range joined(err) {
		path := "routes"
		if spec, ok := errors.AsType[*route.SpecError](e); ok {
			path = item("routes", spec.Index)
		}
		k.faultsBelow(path, e)
	}
	return r
}

// needs reports what a route compares and all of its watches remove.
func (k *compiler) needs(s *State) {
	if s.Router == nil {
		return // reported
	}
	for i := range k.config.Routes {
		for j, p := range s.Routes[i].Changed {
			if p == route.Meaningful {
				break
			}
			if gone := k.removed(s, i, p); gone != "" {
				k.fault(item(item("routes", i)+".changed", j), "%s", gone)
			}
		}
		reported := ""
		for _, r := range s.Router.Reads(i) {
			if r.Key == reported {
				continue
			}
			if gone := k.removed(s, i, r.Path); gone != "" {
				reported = r.Key
				k.fault(item("routes", i)+"."+r.Key, "%s", gone)
			}
		}
	}
}

// removed returns why no event of a route has a value at a path, "" if one may have.
func (k *compiler) removed(s *State, i int, path string) (reason string) {
	p, err := rawjson.ParsePath(path)
	if err != nil {
		return "" // reported
	}
	for j := range s.Watches {
		w := &s.Watches[j]
		if !takesFrom(s.Routes[i], w.Name) {
			continue
		}
		key, _ := p.Key()
		switch gone := removedBy(w.Edits.Drop, path); {
		case gone != "":
			reason = fmt.Sprintf("%s is never there, since watch %s drops %s", p, w.Name, gone)
		case w.MetadataOnly && !slices.Contains([]string{"", "apiVersion", "kind", "metadata"}, key):
			reason = fmt.Sprintf("%s is never there, since watch %s has metadataOnly", p, w.Name)
		default:
			return ""
		}
	}
	return reason
}

// owners are the resources whose objects control others.
func owners() []string {
	return []string{
		"replicasets.apps", "deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicationcontrollers", "jobs.batch", "cronjobs.batch",
	}
}

// involved are the resources that Kubernetes Events are mostly about, owners aside.
func involved() []string {
	return []string{
		"pods", "nodes", "services", "persistentvolumeclaims", "horizontalpodautoscalers.autoscaling",
		"poddisruptionbudgets.policy", "ingresses.networking.k8s.io",
	}
}

// CachedResource is a resource whose metadata the `enrich` of routes reads.
type CachedResource struct {
	Resource   string   // a pattern
	Namespaces []string // nil: the whole cluster
	Routes     []string
}

// Cached are the resources that the routes read in addition to what they forward, in the
// namespaces of their watches.
func (s *State) Cached() (list []CachedResource) {
	add := func(resource string, namespaces []string, route string) {
		i := slices.IndexFunc(list, func(c CachedResource) bool { return c.Resource == resource })
		if i < 0 {
			list = append(list, CachedResource{resource, namespaces, []string{route}})
			return
		}
		c := &list[i]
		if c.Routes = append(c.Routes, route); c.Namespaces != nil && namespaces != nil {
			c.Namespaces = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Namespaces, namespaces))))
		} else {
			c.Namespaces = nil
		}
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		if len(r.Enrich) == 0 {
			continue
		}
		namespaces := s.namespacesOf(r)
		resources := owners()
		if slices.Contains(r.Enrich, config.EnrichInvolvedObject) {
			resources = slices.Concat(resources, involved())
		}
		for _, resource := range resources {
			add(resource, namespaces, r.Name)
		}
	}
	return list
}

// namespacesOf are the namespaces of a route's watches, nil for the whole cluster.
func (s *State) namespacesOf(r *route.Spec) (namespaces []string) {
	for i := range s.Watches {
		w := &s.Watches[i]
		switch {
		case !takesFrom(*r, w.Name):
		case len(w.Namespaces) == 0:
			return nil
		default:
			namespaces = append(namespaces, w.Namespaces...)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(namespaces)))
}

// warnings are probable mistakes: watches that one sink gets the same objects from, in no order, sinks with
// one output, watches that no route takes, sinks that nothing reaches, resources that a route waits for in vain.
func (k *compiler) warnings(s *State) []*config.Error {
	c, specs := k.config, s.Routes
	list := k.apart(s)
	outputs := map[string]string{}
	for i, s := range c.Sinks {
		o, ok := s.Settings.(interface{ Output() string })
		if !ok {
			continue
		}
		if other := outputs[o.Output()]; other != "" {
			list = append(list, c.ErrorAt(item("sinks", i)+"."+s.Kind, "sink %s writes to %s, too: a file that both get events for is written by one of them alone", other, o.Output()))
		}
		outputs[o.Output()] = s.Name
	}
	if len(c.Routes) == 0 {
		return list
	}
	for i, w := range c.Watches {
		if !slices.ContainsFunc(specs, func(s route.Spec) bool { return takesFrom(s, w.Name) }) {
			list = append(list, c.ErrorAt(item("watches", i)+".name", "no route takes from watch %s: its changes reach no sink", w.Name))
		}
	}
	for i, s := range c.Sinks {
		if !slices.ContainsFunc(specs, func(r route.Spec) bool { return slices.Contains(r.Sinks, s.Name) }) {
			list = append(list, c.ErrorAt(item("sinks", i)+".name", "no route leads to sink %s", s.Name))
		}
	}
	for i, s := range specs {
		for j, wanted := range s.Resources {
			if !k.watched(s, plural(wanted)) {
				list = append(list, c.ErrorAt(item(item("routes", i)+".resources", j), "no watch of this route names %s; a watch that does so by a short name or kind should name the plural", plural(wanted)))
			}
		}
	}
	return list
}

// apart reports the watches that watch the same objects by requests of their own, and lead to one sink.
func (k *compiler) apart(s *State) (list []*config.Error) {
	for i := range s.Watches {
		for j := range i + 1 {
			w, earlier := &s.Watches[i], &s.Watches[j]
			n, gr, ok := w.readApart(earlier)
			if !ok {
				continue
			}
			if sink := commonSink(s.Routes, w.Name, earlier.Name, gr.Resource); sink != "" {
				list = append(list, k.config.ErrorAt(item(item("watches", i)+".resources", n), "sink %s gets %s from watch %s, too, with another version or another selector of selectorSide server: it gets each change twice, "+
					"in no order between the two, so that a deletion may come after the next object of its name; keep them apart by namespaces, or lead them to different sinks", sink, gr, earlier.Name))
			}
		}
	}
	return list
}

// commonSink is a sink that routes lead a resource to from two watches, "" if there is none.
func commonSink(specs []route.Spec, watch, other, resource string) string {
	sinks := func(watch string) (list []string) {
		for _, s := range specs {
			if takesFrom(s, watch) && (resource == "*" || len(s.Resources) == 0 || slices.ContainsFunc(s.Resources, func(r string) bool {
				return plural(r) == "*" || plural(r) == resource
			})) {
				list = append(list, s.Sinks...)
			}
		}
		return list
	}
	others := sinks(other)
	for _, sink := range sinks(watch) {
		if slices.Contains(others, sink) {
			return sink
		}
	}
	return ""
}

func takesFrom(s route.Spec, watch string) bool {
	return len(s.Watches) == 0 || slices.Contains(s.Watches, watch)
}

// watched reports whether a watch of the route names the resource.
func (k *compiler) watched(s route.Spec, resource string) bool {
	for _, w := range k.config.Watches {
		if takesFrom(s, w.Name) && slices.ContainsFunc(w.Resources, func(r config.Resource) bool {
			p := plural(r.String())
			return p == "*" || resource == "*" || p == resource
		}) {
			return true
		}
	}
	return false
}

// plural is the first part of a resource pattern.
func plural(pattern string) string {
	name, _, _ := strings.Cut(pattern, ".")
	return name
}
