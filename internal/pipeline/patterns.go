package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// resolvedMeta and the key of a pattern say which resource the pattern means.
const resolvedMeta = "resolved/"

// patternKey names a pattern of a watch.
func patternKey(watch, pattern string) string { return watch + "/" + pattern }

// ambiguity is a name without a group that several groups have.
type ambiguity struct {
	watch, pattern string
	means          string   // the resource that it is taken for
	also           []string // the others
}

func (a *ambiguity) String() string {
	return fmt.Sprintf("%s means %s; %s goes by the same name: write the one that is meant with its group",
		a.pattern, a.means, strings.Join(a.also, ", "))
}

// resolve returns the resources that a pattern of a watch means. What a name without
// a wildcard means is kept for as long as that resource is served: a definition that
// is installed later under the same name in another group does not move the watch.
func (m *Manager) resolve(d desired, w *plan.Watch, pattern string) ([]dynamicfactory.Resource, error) {
	found, err := m.cfg.Resolver.Resolve(pattern)
	if p, perr := selector.ParseResource(pattern); perr != nil || p.Wildcard() {
		return found, err
	}
	key := patternKey(w.Name, pattern)
	before := m.resolved[key]
	var also []string
	if err == nil {
		for _, gr := range found[0].Also {
			also = append(also, gr.String())
		}
	}
	if before != "" && (err != nil || found[0].GVR.GroupResource().String() != before) && !strings.Contains(pattern, ".") {
		if kept, kerr := m.cfg.Resolver.Resolve(before); kerr == nil {
			if err == nil {
				also = append(also, found[0].GVR.GroupResource().String())
			}
			found, err = kept, nil
		}
	}
	if err != nil {
		if before != "" {
			d.resolved[key] = before
		}
		return nil, err
	}
	means := found[0].GVR.GroupResource()
	d.resolved[key] = means.String()
	also = slices.DeleteFunc(also, func(gr string) bool { return gr == means.String() })
	if len(also) > 0 && means.Group != "" { // names of the core group come first for everybody
		d.ambiguous[key] = ambiguity{w.Name, pattern, means.String(), also}
	}
	return found, nil
}

// excluded returns a function that reports whether a watch leaves out a resource.
func (m *Manager) excluded(w *plan.Watch) func(schema.GroupResource) bool {
	return w.Excluder(func(name string) (schema.GroupResource, bool) {
		found, err := m.cfg.Resolver.Resolve(name)
		if err != nil {
			return schema.GroupResource{}, false
		}
		return found[0].GVR.GroupResource(), true
	})
}

// loadResolved returns what patterns meant in earlier lives.
func loadResolved(st *store.Store) (map[string]string, error) {
	resolved := map[string]string{}
	err := st.ScanMeta(resolvedMeta, func(key string, value []byte) error {
		resolved[strings.TrimPrefix(key, resolvedMeta)] = string(value)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load resolved names: %w", err)
	}
	return resolved, nil
}

// noteResolved makes durable what the patterns of the state mean, and logs once what
// is ambiguous about it. Only the owner goroutine calls it.
func (m *Manager) noteResolved(d desired) error {
	b := m.store.NewBatch()
	defer b.Discard()
	for key, means := range d.resolved {
		if m.resolved[key] != means {
			b.PutMeta(resolvedMeta+key, []byte(means))
		}
	}
	for key := range m.resolved {
		if _, ok := d.resolved[key]; !ok {
			b.DeleteMeta(resolvedMeta + key)
		}
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: note resolved names: %w", ledger.ErrStore, err)
	}
	m.mu.Lock()
	m.resolved = d.resolved
	before := m.ambiguous
	m.ambiguous = d.ambiguous
	m.mu.Unlock()
	for key, a := range d.ambiguous {
		if was, ok := before[key]; !ok || was.String() != a.String() {
			m.log.Warn("a resource name is ambiguous", "watch", a.watch, "resource", a.pattern, "means", a.means, "also", strings.Join(a.also, ", "))
		}
	}
	return nil
}

// wantedOf reports whether a watch of the state means a part of the ledger, or would
// if the cluster served its resource, and in which namespaces; "" among them stands
// for all. Only the owner goroutine calls it.
func (m *Manager) wantedOf(st *plan.State, partition string) (namespaces map[string]bool, wanted bool) {
	gr, scope := ledger.SplitPartition(partition)
	namespaces = map[string]bool{}
	for i := range st.Watches {
		w := &st.Watches[i]
		if !m.wants(w, gr, scope) {
			continue
		}
		wanted = true
		if len(w.Namespaces) == 0 {
			namespaces[""] = true
		}
		for _, ns := range w.Namespaces {
			namespaces[ns] = true
		}
	}
	return namespaces, wanted
}

// wants reports whether a watch means a resource in a scope.
func (m *Manager) wants(w *plan.Watch, gr schema.GroupResource, scope string) bool {
	return m.wantsAs(m.resolved, w, gr, scope)
}

// wantsAs is wants with what the patterns mean. Any goroutine may call it.
func (m *Manager) wantsAs(resolved map[string]string, w *plan.Watch, gr schema.GroupResource, scope string) bool {
	return !m.excluded(w)(gr) && slices.ContainsFunc(w.Resources, func(pattern string) bool {
		return meansAs(resolved, w, pattern, gr) && scope == ledger.ScopeOf(commit.PinnedVersion(pattern, gr.Group), w.ServerLabels, w.ServerFields)
	})
}

// meansAs reports whether a pattern of a watch means the resource: as it was resolved
// or, if it never was, by its spelling.
func meansAs(resolved map[string]string, w *plan.Watch, pattern string, gr schema.GroupResource) bool {
	if means, ok := resolved[patternKey(w.Name, pattern)]; ok {
		return means == gr.String()
	}
	p, err := selector.ParseResource(pattern)
	return err == nil && p.Names(gr)
}

// notServed reports whether an error of the resolver proves that the
// cluster does not serve a resource.
func notServed(err error) bool {
	return errors.Is(err, dynamicfactory.ErrNotServed) && !errors.Is(err, dynamicfactory.ErrUncertain)
}
