package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
)

// A custom resource whose definition is deleted takes its objects along, and their
// deletions may not have been read when the watch ends, or happen while nothing
// is watched. The recorded objects of a resource are reported as deleted once it is
// certain that its definition is gone: complete discovery does not have the resource,
// and the API server has no such definition. A version that is not served, discovery
// that fails and a server that does not answer prove nothing.

const (
	// unservedMeta and the name of a part of the ledger say since when its resource is
	// not served, where the API server may not be asked about definitions.
	unservedMeta = "unserved/"

	// goneRetry is how soon a definition is looked for again that was still there, or
	// about which no answer came.
	goneRetry = 30 * time.Second

	// goneTimeout bounds one look at all definitions.
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
	for _, p := range m.store.Partitions() {
		gr, scope := ledger.SplitPartition(p)
		if running[p] != nil || !custom(gr.Group) {
			continue
		}
		if j := m.farewells[p]; j != nil {
			if j.Over() {
				delete(m.farewells, p)
				if err := m.dropPartition(p); err != nil {
					return false, err
				}
			}
			continue
		}
		if _, wanted := m.wantedOf(st, p); !wanted {
			continue // it expires
		}
		if m.blind(st, p) {
			again = true // the watches concerned are not known yet
			continue
		}
		if _, err := m.cfg.Resolver.Resolve(gr.String()); !notServed(err) {
			continue
		}
		gone, err := m.definitionGone(ctx, st, p, gr)
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
// good. Where the API server may not be asked, it counts as gone when it has not been
// served for as long as delivered events are kept.
func (m *Manager) definitionGone(ctx context.Context, st *plan.State, partition string, gr schema.GroupResource) (bool, error) {
	_, err := m.definitions.Get(ctx, gr.String(), metav1.GetOptions{})
	switch {
	case err == nil:
		return false, nil
	case apierrors.IsNotFound(err):
		return true, nil
	case !apierrors.IsForbidden(err):
		return false, err
	}
	since, marked, err := m.unwatchedSince(unservedMeta + partition)
	if err != nil {
		return false, err
	}
	if !marked {
		if err := ledger.PutMeta(m.store, unservedMeta+partition, noteTime(m.cfg.Now())); err != nil {
			return false, fmt.Errorf("%w: note %s: %w", ledger.ErrStore, partition, err)
		}
		return false, nil
	}
	return m.cfg.Now().Sub(since) > max(st.Store.RetentionMaxAge, leastKept), nil
}

// endFarewells ends those of parts of the ledger that sources are about to read.
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
