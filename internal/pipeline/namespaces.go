package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// namespaceKey selects the objects of the informer for watches that select namespaces by
// label.
var namespaceKey = dynamicfactory.Key{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}

// errNamespacesUnknown keeps a watch that selects namespaces by label from judging
// objects before the labels are known. Until then the selection that it had stays.
var errNamespacesUnknown = errors.New("the watch selects namespaces by label, and they are not listed yet (it needs list and watch on namespaces); until then a selection that it had stays in force")

// namespaces is the informer of namespaces, while a watch needs their labels. It is the
// owner's.
type namespaces struct {
	sub     *dynamicfactory.DurableSubscription
	stopped chan struct{}
	waiting sync.WaitGroup
}

// followNamespaces starts or stops the informer as the state needs. It does not
// wait for its first list: Committer.NamespacesKnown reports it.
//
// It is called after the state's sources have started: what their watches had
// selected in an earlier life goes by the labels of that time, and a label that
// changed since is a change like any other.
func (m *Manager) followNamespaces(ctx context.Context, st *plan.State) error {
	n := &m.namespaces
	needed := slices.ContainsFunc(st.Watches, func(w plan.Watch) bool { return w.Filter.NeedsNamespaces() })
	switch {
	case needed && n.sub == nil:
		stopped := make(chan struct{})
		h := m.committer.NamespaceHandler(stopped)
		sub, err := m.factory.SubscribeDurable(context.WithoutCancel(ctx), namespaceKey, h, dynamicfactory.DurableOptions{
			MetadataOnly: true, Codec: compact.NewCodecFor(m.dicts, "namespaces metadata"), Window: window,
		})
		if err != nil {
			return err
		}
		h.Subscribed(sub)
		n.sub, n.stopped = sub, stopped
		n.waiting.Go(func() {
			select {
			case <-sub.Synced():
				h.Synced(listed(sub.Informer().GetStore()))
			case <-stopped:
			}
		})
	case !needed && (n.sub != nil || m.committer.NamespacesReady()):
		n.close()
		m.committer.Flush() // nothing of the informer is pending
		var err error
		ended := m.committer.AtBarrier(func(b commit.Barrier) { err = b.ForgetNamespaces(st.Watches) })
		return errors.Join(err, ended)
	}
	return nil
}

func listed(store cache.Store) map[string]struct{} {
	names := map[string]struct{}{}
	for _, key := range store.ListKeys() {
		names[key] = struct{}{}
	}
	return names
}

func (n *namespaces) close() {
	if n.sub == nil {
		return
	}
	close(n.stopped)
	n.waiting.Wait()
	n.sub.Close()
	n.sub = nil
}
