package pipeline

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/enrich"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// cacheKey identifies an informer that no watch has and the enrichment of routes reads.
type cacheKey struct {
	dynamicfactory.Key
	edits uint64
}

// metadataCache is such an informer: of metadata alone, under the edits of the resource.
type metadataCache struct {
	enrich.Cache
	edits redact.Edits
	sub   *dynamicfactory.DurableSubscription
}

// followCaches makes the caches those that a state's routes read: the informers of its
// watches, and of metadata alone where these do not have a resource. Only the owner calls
// it. An informer that cannot start is missing in events, as one that is not allowed to
// list.
func (m *Manager) followCaches(ctx context.Context, st *plan.State, d desired) {
	wanted := map[cacheKey]*metadataCache{}
	for _, c := range st.Cached() {
		resources, err := m.cfg.Resolver.Resolve(c.Resource)
		if err != nil || len(resources) != 1 {
			continue // reconcile calls again when it is served
		}
		namespaces := c.Namespaces
		if namespaces == nil {
			namespaces = []string{""}
		}
		for _, ns := range namespaces {
			if r := resources[0]; (ns == "" || r.Namespaced) && !d.hasAll(r, ns) {
				k, of := m.metadataOf(r, ns)
				wanted[k] = of
			}
		}
	}
	for k, c := range m.caches {
		if _, ok := wanted[k]; !ok {
			delete(m.caches, k)
			m.useCaches(st)
			c.sub.Close()
			m.log.Info("metadata is no longer cached for routes", "informer", k.Key.String())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cacheWait)
	defer cancel()
	var begun []*metadataCache
	for k, c := range wanted {
		if m.caches[k] == nil && m.startCache(ctx, k, c) {
			m.caches[k] = c
			begun = append(begun, c)
		}
	}
	for _, c := range begun {
		select {
		case <-c.sub.Synced():
		case <-ctx.Done():
		}
	}
	m.useCaches(st)
}

// cacheWait bounds how long watches wait for new caches before they start, so that their
// first events are complete where possible.
const cacheWait = 5 * time.Second

// cached returns the resources that a state's routes read in caches, as far as they are
// served.
func (m *Manager) cached(st *plan.State) (list []schema.GroupResource) {
	for _, c := range st.Cached() {
		if resources, err := m.cfg.Resolver.Resolve(c.Resource); err == nil && len(resources) == 1 {
			list = append(list, resources[0].GVR.GroupResource())
		}
	}
	return list
}

// hasAll reports whether a watch's informer has all objects of a resource in a namespace.
func (d desired) hasAll(r dynamicfactory.Resource, namespace string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(d.feeds)), func(k commit.Key) bool {
		return k.GVR.GroupResource() == r.GVR.GroupResource() && (k.Namespace == "" || k.Namespace == namespace) && k.LabelSelector+k.FieldSelector == ""
	})
}

// metadataOf describes the cache of a resource. Its edits hide what any watch of the
// resource hides, present or former.
func (m *Manager) metadataOf(r dynamicfactory.Resource, namespace string) (cacheKey, *metadataCache) {
	gr := r.GVR.GroupResource()
	all, known := redact.DefaultEdits(), false
	for i := range m.accepted.Resources {
		switch of := &m.accepted.Resources[i]; {
		case of.GroupResource() != gr:
		case known:
			all = of.Edits.Union(all)
		default:
			all, known = of.Edits, true
		}
	}
	c := &metadataCache{edits: all, Cache: enrich.Cache{
		Resource: event.Resource{Group: gr.Group, Version: r.GVR.Version, Resource: gr.Resource, Kind: r.Kind},
		Edits:    all.Fingerprint(gr),
	}}
	return cacheKey{dynamicfactory.Key{GVR: r.GVR, Namespace: namespace}, c.Edits}, c
}

func (m *Manager) startCache(ctx context.Context, k cacheKey, c *metadataCache) bool {
	gr := k.GVR.GroupResource()
	editor, err := c.edits.Editor(gr, m.redactKey)
	if err == nil {
		c.sub, err = m.factory.SubscribeDurable(context.WithoutCancel(ctx), k.Key, cache.ResourceEventHandlerFuncs{}, dynamicfactory.DurableOptions{
			MetadataOnly: true, Edit: editor.AppendChange, Codec: (&commit.Key{MetadataOnly: true, Key: k.Key, Variant: c.edits.Variant(gr)}).Codec(m.dicts),
		})
	}
	if err != nil {
		m.log.Error("metadata cannot be cached for routes", "informer", k.Key.String(), "error", err)
		return false
	}
	c.Store = func() cache.Store { return c.sub.Informer().GetStore() }
	m.log.Info("caching metadata for routes", "informer", k.Key.String())
	return true
}

// useCaches puts the caches in place, none if no route reads any. Those of watches come
// first.
func (m *Manager) useCaches(st *plan.State) {
	if len(st.Cached()) == 0 {
		m.enricher.Use(nil)
		return
	}
	var list []enrich.Cache
	for _, s := range m.informerList() {
		list = append(list, enrich.Cache{Resource: s.Resource, Edits: s.Edits, Store: func() cache.Store {
			if sub := s.sub.Load(); sub != nil {
				return sub.Informer().GetStore()
			}
			return nil
		}})
	}
	slices.SortFunc(list, func(a, b enrich.Cache) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })
	for _, c := range m.caches {
		list = append(list, c.Cache)
	}
	m.enricher.Use(list)
}

func (m *Manager) closeCaches() {
	m.enricher.Use(nil)
	for _, k := range slices.Collect(maps.Keys(m.caches)) {
		m.caches[k].sub.Close()
		delete(m.caches, k)
	}
}
