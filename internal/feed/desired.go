package feed

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// missing is why a watch's pattern has no informer.
type missing struct {
	watch, pattern string
	err            error
}

// desired is the set of sources that a state asks for, given what the cluster
// serves.
type desired struct {
	sources map[dynamicfactory.Key]*source
	missing map[string]missing
}

// undiscovered reports whether the cluster's resources are not known yet, so that d
// says nothing about them.
func (d desired) undiscovered() bool {
	for _, x := range d.missing {
		if errors.Is(x.err, dynamicfactory.ErrNotReady) {
			return true
		}
	}
	return false
}

// desire works out the sources of a state. It starts nothing; its only inputs are
// the state and the resolver's answers. The error joins what makes the state
// unusable: an edit that cannot be compiled, a missing resource that the watch
// insists on.
func (m *Manager) desire(st *plan.State) (desired, error) {
	d := desired{sources: map[dynamicfactory.Key]*source{}, missing: map[string]missing{}}
	var errs []error
	for i := range st.Watches {
		w := &st.Watches[i]
		if w.Filter.NeedsNamespaces() && !m.namespaces.ready() {
			d.missing[w.Name] = missing{w.Name, "namespaces", errNamespacesUnknown}
			if w = m.inForce(w.Name); w == nil {
				continue
			}
		}
		for _, pattern := range w.Resources {
			resources, err := m.cfg.Resolver.Resolve(pattern)
			if err != nil {
				if w.FailOnMissing && !errors.Is(err, dynamicfactory.ErrNotReady) {
					errs = append(errs, fmt.Errorf("watch %s: resource %s: %w", w.Name, pattern, err))
				}
				d.missing[w.Name+"/"+pattern] = missing{w.Name, pattern, err}
			}
			for _, r := range resources {
				if err := m.want(d, w, r); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	widen(d.sources)
	return d, errors.Join(errs...)
}

// inForce is the watch of that name by which running sources judge, nil if there is
// none. It is an older one than the state's while the labels of namespaces, by which the
// new one selects, are not known.
func (m *Manager) inForce(name string) *plan.Watch {
	for _, s := range m.sourceList() {
		if h, ok := s.hit(name); ok {
			return h.watch
		}
	}
	return nil
}

// want adds the sources that feed watch w with resource r.
func (m *Manager) want(d desired, w *plan.Watch, r dynamicfactory.Resource) error {
	namespaces := []string{""}
	var only map[string]struct{}
	if len(w.Namespaces) > 0 {
		if !r.Namespaced {
			return nil // the watch is about namespaces, the resource is not in any
		}
		namespaces = w.Namespaces
		only = make(map[string]struct{}, len(namespaces))
		for _, ns := range namespaces {
			only[ns] = struct{}{}
		}
	}
	for _, ns := range namespaces {
		k := dynamicfactory.Key{
			GVR: r.GVR, Namespace: ns, LabelSelector: w.ServerLabels, FieldSelector: w.ServerFields,
			MetadataOnly: w.MetadataOnly, Variant: w.Edits.Variant(r.GVR.GroupResource()),
		}
		s, ok := d.sources[k]
		if !ok {
			if err := k.Validate(); err != nil {
				return fmt.Errorf("watch %s: %w", w.Name, err)
			}
			edit, err := w.Edits.Func(r.GVR, m.redactKey)
			if err != nil {
				return fmt.Errorf("watch %s: %w", w.Name, err)
			}
			partition := partitionOf(k, m.pinned(r.GVR))
			s = &source{
				key: k, partition: partition, id: sourceID(partition, k), scope: scopeOf(k), edit: edit,
				resource: event.Resource{Group: r.GVR.Group, Version: r.GVR.Version, Resource: r.GVR.Resource, Kind: r.Kind},
			}
			s.log = s.logger(m.log)
			s.observed, s.repaired = m.metrics.observed(s), m.metrics.repaired(s)
			s.hits.Store(&[]hit{})
			d.sources[k] = s
		}
		s.addHit(hit{watch: w, namespaces: only})
	}
	return nil
}

// addHit adds a watch to the source, once. Only for sources that do not run yet.
func (s *source) addHit(h hit) {
	hits := *s.hits.Load()
	for _, known := range hits {
		if known.watch == h.watch {
			return
		}
	}
	hits = append(slices.Clone(hits), h)
	s.hits.Store(&hits)
}

// pinned reports whether the version is one that the cluster does not prefer, so
// that it was asked for by name and is a feed of its own.
func (m *Manager) pinned(gvr schema.GroupVersionResource) bool {
	preferred, err := m.cfg.Resolver.Resolve(gvr.GroupResource().String())
	return err == nil && len(preferred) == 1 && preferred[0].GVR.Version != gvr.Version
}

// widen drops the namespaced sources beside which a source of the whole cluster
// exists, and gives it their watches: sources of one partition must not overlap,
// or one would find in the ledger what the other recorded and stay silent.
func widen(sources map[dynamicfactory.Key]*source) {
	for _, k := range slices.Collect(maps.Keys(sources)) {
		if k.Namespace == "" {
			continue
		}
		wide := k
		wide.Namespace = ""
		if all, ok := sources[wide]; ok {
			for _, h := range *sources[k].hits.Load() {
				all.addHit(h)
			}
			delete(sources, k)
		}
	}
}
