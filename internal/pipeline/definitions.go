package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// definedMeta and the name of a part of the ledger are the key of a note: the API server had a
// definition of the resource while the resource was watched. Without the note a missing
// definition proves nothing, as a resource of an aggregated API never has one.
const definedMeta = "defined/"

// look is what is known of the definition of a resource that is watched.
type look struct {
	over   bool
	absent time.Time // when the definition was missing first; zero: it was not
}

// followDefinitions notes which resources have a definition, until ctx is done. It looks for the
// definition when a feed of the resource has started.
func (m *Manager) followDefinitions(ctx context.Context) {
	looks := map[*informer]look{}
	for {
		again, err := m.noteDefinitions(ctx, looks)
		if err != nil {
			m.fail(err)
			return
		}
		var retry <-chan time.Time
		if again {
			retry = time.After(goneRetry)
		}
		select {
		case <-m.started:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// noteDefinitions looks for the definitions that are due. again reports that others are due later.
// An error is one of the store.
func (m *Manager) noteDefinitions(ctx context.Context, looks map[*informer]look) (again bool, err error) {
	running := m.informerList()
	maps.DeleteFunc(looks, func(s *informer, _ look) bool { return !slices.Contains(running, s) })
	known := map[string]look{} // by part of the ledger
	for s, l := range looks {
		known[s.Partition] = l
	}
	for _, s := range running {
		l := known[s.Partition]
		if !l.over && custom(s.Resource.Group) {
			err := m.findDefinition(ctx, s.Key.GVR.GroupResource())
			switch {
			case err == nil:
				l.over, err = true, m.noteDefinition(s.Partition, true)
			case apierrors.IsForbidden(err):
				known[s.Partition] = look{over: true} // nor may it be asked when the resource is gone
				continue
			case !apierrors.IsNotFound(err):
				return ctx.Err() == nil, nil
			case l.absent.IsZero():
				l.absent, again, err = m.cfg.Now(), true, nil
			case m.cfg.Now().Sub(l.absent) < goneRetry || !s.served(): // it may have been deleted a moment ago
				again, err = true, nil
			default: // an aggregated API serves the resource
				l.over, err = true, m.noteDefinition(s.Partition, false)
			}
			if err != nil {
				return false, err
			}
		}
		looks[s], known[s.Partition] = l, l
	}
	return again, nil
}

func (m *Manager) noteDefinition(partition string, defined bool) error {
	key := definedMeta + partition
	if _, noted, err := m.store.Meta(key); err == nil && noted == defined {
		return nil
	}
	if !defined {
		return ledger.StoreError(ledger.DeleteMeta(m.store, key), "end the note of the definition of %s", partition)
	}
	return ledger.StoreError(ledger.PutMeta(m.store, key, noteTime(m.cfg.Now())), "note the definition of %s", partition)
}

// findDefinition returns nil if the API server has the definition of a resource, and a NotFound
// if it has none. The 404 page of a proxy is another error.
func (m *Manager) findDefinition(ctx context.Context, gr schema.GroupResource) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	_, err := m.definitionMetadata.Get(ctx, gr.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err) {
		return errors.New("not an answer of the API server: " + err.Error())
	}
	return err
}

// served reports whether the API server serves the informer's resource.
func (s *informer) served() bool {
	sub := s.sub.Load()
	return sub != nil && sub.Watch().State == dynamicfactory.StateWatching
}

// A custom resource whose definition is deleted takes its objects along, and their
// deletions may not have been read when the watch ends, or happen while nothing
// is watched. The recorded objects of a resource are reported as deleted once it is
// certain that its definition is gone: complete discovery does not have the resource,
// and the API server has no such definition and had one. A version that is not served,
// discovery that fails, a server that does not answer, one of another cluster and an
// aggregated API, which has no definitions, prove nothing.

const (
	// unservedMeta and the name of a part of the ledger say since when its resource is
	// not served, where definitions prove nothing.
	unservedMeta = "unserved/"

	// goneRetry is how soon a definition is looked for again that was still there, or
	// about which no answer came.
	goneRetry = 30 * time.Second

	// goneTimeout bounds one look at all definitions of resources that are not served, at one
	// of a resource that is, or at kube-system.
	goneTimeout = 10 * time.Second
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// reportGone reports the objects of resources whose definitions are gone as deleted.
// again reports that a definition has to be looked for again soon. Only the owner
// goroutine calls it.
func (m *Manager) reportGone(ctx context.Context) (again bool, err error) {
	st := m.currentState()
	if st == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	running := m.runningIn()
	var waiting []string // parts of the ledger that no feed reads
	for _, p := range m.store.Partitions() {
		if gr, _ := ledger.SplitPartition(p); !custom(gr.Group) {
			continue
		}
		if _, wanted := m.wantedOf(st, p); running[p] == nil && (wanted || m.farewells[p] != nil) {
			waiting = append(waiting, p)
		} else if err := m.endUnserved(p); err != nil {
			return false, err
		}
	}
	for _, p := range waiting {
		gr, scope := ledger.SplitPartition(p)
		if j := m.farewells[p]; j != nil {
			if j.Over() {
				delete(m.farewells, p)
				if err := m.dropPartition(p, time.Time{}); err != nil {
					return false, err
				}
			}
			continue
		}
		if _, over, err := m.store.Meta(ledger.FarewellMeta + p); err != nil {
			return false, ledger.StoreError(err, "note of the farewell of %s", p)
		} else if over { // the process ended behind it
			if err := m.dropPartition(p, time.Time{}); err != nil {
				return false, err
			}
			continue
		}
		if m.blind(st, p) {
			again = true // the watches concerned are not known yet
			continue
		}
		found, err := m.cfg.Resolver.Resolve(gr.String())
		var gone bool
		switch {
		case err == nil && !found[0].Namespaced:
			gone, err = m.definitionReplaced(ctx, p, gr)
			if err == nil && !gone {
				continue
			}
		case notServed(err):
			gone, err = m.definitionGone(ctx, st, p, gr)
		default:
			continue
		}
		switch {
		case errors.Is(err, ledger.ErrStore):
			return false, err
		case err != nil:
			m.log.Info("cannot check whether the definition of a resource is gone", "resource", gr.String(), "error", err)
			return true, nil
		case !gone:
			again = true
			continue
		}
		m.farewells[p], err = m.committer.BeginFarewell(p, st.Watches, func(w *plan.Watch) bool { return m.wants(w, gr, scope) }, m.goneDue)
		if err != nil {
			delete(m.farewells, p)
			return false, err
		}
	}
	return again, nil
}

// blind reports whether a watch that means a part of the ledger selects namespaces by
// label, and the labels are not known.
func (m *Manager) blind(st *plan.State, partition string) bool {
	gr, scope := ledger.SplitPartition(partition)
	return !m.committer.NamespacesReady() && slices.ContainsFunc(st.Watches, func(w plan.Watch) bool {
		return w.Filter.NeedsNamespaces() && m.wants(&w, gr, scope)
	})
}

// Definition returns the CustomResourceDefinition of a resource, as JSON, nil if it has none. It
// asks the API server.
func (m *Manager) Definition(ctx context.Context, gr schema.GroupResource) ([]byte, error) {
	if !custom(gr.Group) {
		return nil, nil
	}
	definition, err := m.definitions.Get(ctx, gr.String(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return definition.MarshalJSON()
}

// custom reports whether a group may be one of custom resources.
func custom(group string) bool {
	return strings.Contains(group, ".") && !scheme.Scheme.IsGroupRegistered(group)
}

// definitionGone reports whether a resource that discovery does not have is gone for
// good. Where it is not known to have had a definition, or the API server may not be asked, it
// counts as gone when it has not been served for as long as delivered events are kept.
func (m *Manager) definitionGone(ctx context.Context, st *plan.State, partition string, gr schema.GroupResource) (bool, error) {
	err := m.findDefinition(ctx, gr)
	switch {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return false, err
	}
	if err := m.factory.CheckCluster(ctx); err != nil {
		return false, err // the definitions of another cluster prove nothing
	}
	if apierrors.IsNotFound(err) {
		_, defined, err := m.store.Meta(definedMeta + partition)
		if ledger.IgnoreUnreadable(err) != nil {
			return false, ledger.StoreError(err, "note of the definition of %s", partition)
		}
		if defined {
			return true, nil
		}
	}
	since, marked, err := m.unwatchedSince(unservedMeta + partition)
	if err != nil {
		return false, err
	}
	if !marked {
		if err := ledger.PutMeta(m.store, unservedMeta+partition, noteTime(m.cfg.Now())); err != nil {
			return false, ledger.StoreError(err, "note %s", partition)
		}
		return false, nil
	}
	return m.store.Age().Sub(since) > max(st.Store.RetentionMaxAge, leastKept), nil
}

// definitionReplaced reports whether the recorded objects of a resource whose objects are in no namespace are all in
// namespaces: the scope of a definition does not change, so that they went with a former one. The watches of
// their namespaces do not list the resource.
func (m *Manager) definitionReplaced(ctx context.Context, partition string, gr schema.GroupResource) (bool, error) {
	empty, err := m.ledger.Empty(partition, ledger.Key("", ""))
	if err != nil || !empty {
		return false, err
	}
	definition, err := m.definitions.Get(ctx, gr.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil // it proves nothing
	}
	if err != nil {
		return false, err
	}
	if scope, _, _ := unstructured.NestedString(definition.Object, "spec", "scope"); scope != "Cluster" {
		return false, nil // discovery is behind
	}
	return true, m.factory.CheckCluster(ctx)
}

// endUnserved ends the note that a resource is not served: it is, or nothing watches it and its states expire.
func (m *Manager) endUnserved(partition string) error {
	if _, marked, err := m.store.Meta(unservedMeta + partition); err == nil && !marked {
		return nil
	}
	return ledger.StoreError(ledger.DeleteMeta(m.store, unservedMeta+partition), "end the note that %s is not served", partition)
}

// endFarewells ends those of parts of the ledger that feeds are about to read.
func (m *Manager) endFarewells(start []*commit.Feed) error {
	for _, s := range start {
		j := m.farewells[s.Partition]
		if j == nil {
			continue
		}
		delete(m.farewells, s.Partition)
		if err := m.committer.AtBarrier(func(commit.Barrier) { j.Stop() }); err != nil {
			return err
		}
	}
	return nil
}
