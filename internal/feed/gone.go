package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// A custom resource whose definition is deleted takes its objects along, and their
// deletions may not have been read when the watch ends, or happen while nobody
// watches. The recorded objects of a resource are reported as deleted once it is
// certain that its definition is gone: complete discovery does not have the resource,
// and the API server has no such definition. A version that is not served, discovery
// that fails and a server that does not answer prove nothing.

const (
	// unservedMeta and the name of a part of the ledger say since when its resource is
	// not served, where the API server does not tell about definitions.
	unservedMeta = "unserved/"

	// goneRetry is how soon a definition is looked for again that was still there, or
	// about which no answer came.
	goneRetry = 30 * time.Second

	// goneTimeout bounds one look at all definitions.
	goneTimeout = 10 * time.Second
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// reportGone reports the objects of resources whose definitions are gone as deleted.
// again says that a definition has to be looked for again soon. Only the owner
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
		gr, _ := splitPartition(p)
		if running[p] != nil || !custom(gr.Group) {
			continue
		}
		if j := m.farewells[p]; j != nil {
			if j.over.Load() {
				delete(m.farewells, p)
				j.src.log.Info("the definition of a resource is gone: its recorded objects are reported as deleted", "objects", j.total)
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
			again = true // nobody knows yet who is to be told
			continue
		}
		if _, err := m.cfg.Resolver.Resolve(gr.String()); !notServed(err) {
			continue
		}
		gone, err := m.definitionGone(ctx, st, p, gr)
		switch {
		case errors.Is(err, ErrStore):
			return false, err
		case err != nil:
			m.log.Info("could not ask whether the definition of a resource is gone", "resource", gr.String(), "error", err)
			return true, nil
		case !gone:
			again = true
			continue
		}
		if err := m.beginFarewell(st, p); err != nil {
			return false, err
		}
	}
	return again, nil
}

// blind reports whether a watch that means a part of the ledger selects namespaces by
// label, and the labels are not known.
func (m *Manager) blind(st *plan.State, partition string) bool {
	gr, scope := splitPartition(partition)
	return !m.namespaces.ready() && slices.ContainsFunc(st.Watches, func(w plan.Watch) bool {
		return w.Filter.NeedsNamespaces() && m.wants(&w, gr, scope)
	})
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
		if err := putMeta(m.store, unservedMeta+partition, []byte(m.cfg.Now().UTC().Format(time.RFC3339))); err != nil {
			return false, fmt.Errorf("%w: note %s: %w", ErrStore, partition, err)
		}
		return false, nil
	}
	return m.cfg.Now().Sub(since) > max(st.Store.RetentionMaxAge, leastKept), nil
}

// farewell reports all recorded objects of a part of the ledger as deleted to the
// watches that were given them. It is the committer's, but for over.
type farewell struct {
	src    *source // does not run
	cursor string
	at     time.Time
	total  int
	over   atomic.Bool // all of it is durable
	notify chan<- struct{}
}

func (j *farewell) step(g *group) (more bool, err error) {
	if j.src.ended() {
		return false, nil // the resource is served again
	}
	n := 0
	err = g.m.scanAfter(j.src, "", j.cursor, func(key string, o *compact.Object) error {
		if n == maxGroup {
			return errEnough
		}
		n++
		j.cursor = key
		return g.deleted(&change{src: j.src, kind: objectDeleted, obj: o, unknown: true, at: j.at})
	})
	j.total += n
	if errors.Is(err, errEnough) {
		return true, nil
	}
	return false, ignoreUnreadable(err)
}

func (j *farewell) end() {
	j.over.Store(true)
	select {
	case j.notify <- struct{}{}:
	default: // there is a value
	}
}

// beginFarewell removes the checkpoints of a part of the ledger, so that a source that
// reads it again lists, and has the committer report its objects as deleted. Of the
// checkpoints only the epoch stays.
func (m *Manager) beginFarewell(st *plan.State, partition string) error {
	s, err := m.formerSource(st, partition, true)
	if err != nil {
		return err
	}
	ids, err := m.idsWith(checkpointMeta(s.id))
	if err != nil {
		return err
	}
	b := m.store.NewBatch()
	defer b.Discard()
	for id := range ids {
		cp, _, err := m.loadCheckpoint(id)
		if ignoreUnreadable(err) != nil {
			return err
		}
		s.epoch = max(s.epoch, cp.Epoch)
		b.DeleteMeta(checkpointMeta(id))
	}
	if s.epoch > 0 {
		b.PutMeta(checkpointMeta(s.id), encodeCheckpoint(checkpoint{Epoch: s.epoch}))
	}
	if err := m.store.Commit(b); err != nil {
		return fmt.Errorf("%w: remove checkpoints of %s: %w", ErrStore, partition, err)
	}
	j := &farewell{src: s, at: m.cfg.Now(), notify: m.farewellOver}
	m.farewells[partition] = j
	return m.between(func(g *group) { g.jobs = append(g.jobs, j) })
}

// endFarewells ends those of parts of the ledger that sources are about to read.
func (m *Manager) endFarewells(start []*source) error {
	for _, s := range start {
		j := m.farewells[s.partition]
		if j == nil {
			continue
		}
		delete(m.farewells, s.partition)
		if err := m.between(func(*group) { close(j.src.stopped) }); err != nil {
			return err
		}
	}
	return nil
}

// recordedResource returns the resource of a source's objects as they are recorded.
func (m *Manager) recordedResource(s *source) (event.Resource, error) {
	r := s.resource
	err := m.scan(s, func(o *compact.Object) error {
		kind := o.GetObjectKind().GroupVersionKind()
		r.Version, r.Kind = kind.Version, kind.Kind
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return r, ignoreUnreadable(err)
}

// formerSource is the source that a part of the ledger had, with the watches of the
// state that mean it, by the rules by which they were given its objects. ungiven adds
// those of which no rules are known, by their own. It does not run.
func (m *Manager) formerSource(st *plan.State, partition string, ungiven bool) (*source, error) {
	gr, scope := splitPartition(partition)
	s := &source{
		partition: partition, id: sourceID(partition, ""), scope: scope, stopped: make(chan struct{}),
		resource: event.Resource{Group: gr.Group, Resource: gr.Resource},
	}
	all, err := m.loadSelections()
	if err != nil {
		return nil, err
	}
	var hits []hit
	for i := range st.Watches {
		w := &st.Watches[i]
		was, err := all.formerly(s, w.Name)
		if err != nil {
			return nil, err
		}
		given := false
		for id, h := range was.known() {
			if h == nil || h.watch.Filter.NeedsNamespaces() && !m.namespaces.ready() {
				continue
			}
			given = true
			s.resource = all[id][w.Name].Resource
			h.watch.ServerLabels, h.watch.ServerFields = w.ServerLabels, w.ServerFields
			if ns := strings.TrimPrefix(id, was.all); ns != "" {
				h.namespaces = map[string]struct{}{ns: {}}
			}
			hits = append(hits, *h)
		}
		if ungiven && !given && m.wants(w, gr, scope) {
			hits = append(hits, newHit(w)) // it may have been given a part, or all under another name, or by labels that nobody knows any more
		}
	}
	if s.resource.Version == "" {
		if s.resource, err = m.recordedResource(s); err != nil {
			return nil, err
		}
	}
	s.key.GVR = gr.WithVersion(s.resource.Version)
	s.hits.Store(&hits)
	s.log = s.logger(m.log)
	s.observed, s.repaired = m.metrics.observed(s), m.metrics.repaired(s)
	return s, nil
}
