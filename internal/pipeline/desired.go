package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// desired is the set of sources that a state asks for, given what the cluster
// serves.
type desired struct {
	feeds   map[commit.Key]*commit.Feed
	missing map[string]query.Missing

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

// desire works out the sources of a state. It starts nothing; its only inputs are
// the state and the resolver's answers, now and before. The error joins what makes
// the state unusable: an edit that cannot be compiled, a missing resource that the
// watch insists on. Of watches that overlap and edit differently the later one does
// not get the resource.
func (m *Manager) desire(st *plan.State) (desired, error) {
	d := desired{
		feeds: map[commit.Key]*commit.Feed{}, missing: map[string]query.Missing{},
		resolved: map[string]string{}, ambiguous: map[string]ambiguity{},
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
		excluded := m.excluded(w)
		for _, pattern := range w.Resources {
			resources, err := m.resolve(d, w, pattern)
			if err != nil {
				if w.FailOnMissing && !errors.Is(err, dynamicfactory.ErrNotReady) {
					errs = append(errs, fmt.Errorf("watch %s: resource %s: %w", w.Name, pattern, err))
				}
				d.missing[patternKey(w.Name, pattern)] = query.Missing{Watch: w.Name, Pattern: pattern, Err: err}
			}
			for _, r := range resources {
				gr := r.GVR.GroupResource()
				if excluded(gr) {
					continue
				}
				fed, err := rules(ledger.Partition(gr, ledger.ScopeOf(commit.PinnedVersion(pattern, gr.Group), w.ServerLabels, w.ServerFields)))
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

// inForce is the watch of next's name by which running sources judge, nil if there is
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
// source, or the one by which it was given them in an earlier life. nil: it was given
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

// want adds the sources that feed watch w with resource r, which pattern means.
func (m *Manager) want(d desired, w *plan.Watch, pattern string, r dynamicfactory.Resource) error {
	namespaces := []string{""}
	if len(w.Namespaces) > 0 {
		namespaces = w.Namespaces
	}
	fed := commit.NewWatchRef(w)
	pinned := commit.PinnedVersion(pattern, r.GVR.Group)
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

// widen drops the namespaced sources beside which a source of the whole cluster
// exists, and gives it their watches: sources of one partition must not overlap,
// or one would find in the ledger what the other recorded and stay silent.
func widen(sources map[commit.Key]*commit.Feed) {
	for _, k := range slices.Collect(maps.Keys(sources)) {
		if k.Namespace == "" {
			continue
		}
		wide := k
		wide.Namespace = ""
		if all, ok := sources[wide]; ok {
			for _, h := range sources[k].Watches() {
				all.AddWatch(h)
			}
			delete(sources, k)
		}
	}
}
