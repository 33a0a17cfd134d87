package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/ledger"
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
	b := m.store.NewBatch()
	defer b.Discard()
	if defined {
		b.PutMeta(key, noteTime(m.cfg.Now()))
	} else {
		b.DeleteMeta(key)
	}
	return ledger.StoreError(m.store.Commit(b), "note the definition of %s", partition)
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
