package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// desired is the set of feeds that a state asks for, given what the cluster
// serves. The owner's goroutine makes it, and hands it on at barriers.
type desired struct {
	feeds   map[commit.Key]*commit.Feed
	missing map[string]query.Missing

	lookup func(pattern string) ([]dynamicfactory.Resource, error) // of one moment: a resource has one version

	// resolved are the resources that patterns without a wildcard mean, by watch and
	// pattern, and ambiguous the warnings about some of them.
	resolved  map[string]string
	ambiguous map[string]ambiguity

	overlaps []error // of watches that discovery shows to edit the same objects differently
}

// undiscovered reports whether the cluster's resources are not known yet, so that d
// has nothing about them.
func (d desired) undiscovered() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(d.missing)), func(x query.Missing) bool { return errors.Is(x.Err, dynamicfactory.ErrNotReady) })
}

// desire works out the feeds of a state. It starts nothing; its only inputs are
// the state and the resolver's answers, now and before. The error joins what makes
// the state unusable: an edit that cannot be compiled, a missing resource that the
// watch insists on. Of watches that overlap and edit differently the later one does
// not get the resource.
func (m *Manager) desire(st *plan.State) (desired, error) {
	d := desired{
		feeds: map[commit.Key]*commit.Feed{}, missing: map[string]query.Missing{},
		resolved: map[string]string{}, ambiguous: map[string]ambiguity{}, lookup: m.cfg.Resolver.Table(),
	}
	var claims plan.Claims
	var errs []error
	for i := range st.Watches {
		w := &st.Watches[i]
		rules := func(string) (*plan.Watch, error) { return w, nil }
		if w.Filter.NeedsNamespaces() && !m.committer.NamespacesReady() {
			d.missing[w.Name] = query.Missing{Watch: w.Name, Pattern: "namespaces", Err: errNamespacesUnknown}
			if running := m.inForce(w); running != nil {
				w = running
			}
			rules = m.formerRules(w)
		}
		excluded := excluded(w, d.lookup)
		for _, pattern := range w.Resources {
			resources, err := m.resolve(d, w, pattern)
			if err != nil {
				missing := query.Missing{Watch: w.Name, Pattern: pattern, Err: err}
				if w.FailOnMissing && !errors.Is(err, dynamicfactory.ErrNotReady) {
					errs = append(errs, fmt.Errorf("watch %s: resource %s: %s", w.Name, pattern, missing.Reason()))
				}
				d.missing[patternKey(w.Name, pattern)] = missing
			}
			for _, r := range resources {
				gr := r.GVR.GroupResource()
				if excluded(gr) {
					continue
				}
				fed, err := rules(ledger.Partition(gr, ledger.ScopeOf(plan.PinnedVersion(pattern, gr.Group), w.ServerLabels, w.ServerFields)))
				if err != nil {
					return d, err
				}
				named := cmp.Or(fed, w)
				if len(named.Namespaces) > 0 && !r.Namespaced {
					continue // the watch is about namespaces and the resource is not in any
				}
				if err := claims.Add(named, gr); err != nil {
					d.overlaps = append(d.overlaps, err)
					d.missing[patternKey(w.Name, gr.String())] = query.Missing{Watch: w.Name, Pattern: gr.String(), Err: err}
					continue
				}
				if fed == nil {
					continue // it cannot judge objects yet
				}
				if err := m.want(d, fed, pattern, r); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	widen(d.feeds)
	return d, errors.Join(errs...)
}

// inForce is the watch of next's name by which running feeds judge, nil if there is
// none. It is an older one than the state's while the labels of namespaces, by which the
// new one selects, are not known. Only its selection is: edits do not wait.
func (m *Manager) inForce(next *plan.Watch) *plan.Watch {
	for _, s := range m.informerList() {
		if h, ok := s.WatchNamed(next.Name); ok {
			return edited(h.Watch, next)
		}
	}
	return nil
}

// formerRules returns a function that gives the watch by which a watch judges the objects
// of a part of the ledger until the labels of namespaces are known: that of a running
// feed, or the one by which it was given them in an earlier life. nil: it was given
// none.
func (m *Manager) formerRules(next *plan.Watch) func(partition string) (*plan.Watch, error) {
	found := map[string]*plan.Watch{} // one for each part, however many patterns mean it
	var given ledger.Selections
	return func(partition string) (*plan.Watch, error) {
		if w, ok := found[partition]; ok {
			return w, nil
		}
		for _, s := range m.informerList() {
			if h, ok := s.WatchNamed(next.Name); ok && s.Partition == partition {
				found[partition] = edited(h.Watch, next)
				return found[partition], nil
			}
		}
		var err error
		if given == nil {
			if given, err = m.ledger.Selections(); err != nil {
				return nil, err
			}
		}
		found[partition], err = given.Watch(partition, next)
		return found[partition], err
	}
}

// edited is a watch with the edits of the next one.
func edited(w, next *plan.Watch) *plan.Watch {
	if reflect.DeepEqual(w.Edits, next.Edits) && w.MetadataOnly == next.MetadataOnly {
		return w
	}
	c := *w
	c.Edits, c.MetadataOnly = next.Edits, next.MetadataOnly
	return &c
}

// want adds the feeds that feed watch w with resource r, which pattern means.
func (m *Manager) want(d desired, w *plan.Watch, pattern string, r dynamicfactory.Resource) error {
	namespaces := []string{""}
	if len(w.Namespaces) > 0 {
		namespaces = w.Namespaces
	}
	fed := commit.NewWatchRef(w)
	pinned := plan.PinnedVersion(pattern, r.GVR.Group)
	for _, ns := range namespaces {
		s, ok := d.feeds[commit.KeyOf(w, r.GVR, pinned, ns)]
		if !ok {
			id, err := commit.IdentityOf(w, r, pinned, ns, m.redactKey)
			if err != nil {
				return fmt.Errorf("watch %s: %w", w.Name, err)
			}
			s = m.committer.NewFeed(id)
			d.feeds[id.Key] = s
		}
		s.AddWatch(fed)
	}
	return nil
}

// widen drops the namespaced feeds beside which a feed of the whole cluster
// exists, and gives it their watches: feeds of one partition must not overlap,
// or one would find in the ledger what the other recorded and stay silent.
func widen(feeds map[commit.Key]*commit.Feed) {
	for _, k := range slices.Collect(maps.Keys(feeds)) {
		if k.Namespace == "" {
			continue
		}
		wide := k
		wide.Namespace = ""
		if all, ok := feeds[wide]; ok {
			for _, h := range feeds[k].Watches() {
				all.AddWatch(h)
			}
			delete(feeds, k)
		}
	}
}

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
	found, err := d.lookup(pattern)
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
		if kept, kerr := d.lookup(before); kerr == nil {
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
func excluded(w *plan.Watch, lookup func(pattern string) ([]dynamicfactory.Resource, error)) func(schema.GroupResource) bool {
	return w.Excluder(func(name string) (schema.GroupResource, bool) {
		found, err := lookup(name)
		if err != nil {
			return schema.GroupResource{}, false
		}
		return found[0].GVR.GroupResource(), true
	})
}

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
		return ledger.StoreError(err, "note resolved names")
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
	return m.means(resolved, w, gr, func(pattern string) bool {
		return scope == ledger.ScopeOf(plan.PinnedVersion(pattern, gr.Group), w.ServerLabels, w.ServerFields)
	})
}

// means reports whether one of the patterns of a watch that are in question means a resource, in any scope. Any goroutine may call it.
func (m *Manager) means(resolved map[string]string, w *plan.Watch, gr schema.GroupResource, inQuestion func(pattern string) bool) bool {
	return !excluded(w, m.cfg.Resolver.Resolve)(gr) && slices.ContainsFunc(w.Resources, func(pattern string) bool {
		return meansAs(resolved, w, pattern, gr) && inQuestion(pattern)
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
