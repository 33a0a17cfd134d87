package feed

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// namespaceKey is the informer for watches that select namespaces by label. Its
// variant keeps it apart from a watch on namespaces that a user configures.
var namespaceKey = dynamicfactory.Key{
	GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, MetadataOnly: true, Variant: "selector",
}

// errNamespacesUnknown keeps a watch that selects namespaces by label from judging
// objects before the labels are known. Until then it goes on by the selection that it had.
var errNamespacesUnknown = errors.New("the watch selects namespaces by label, and they are not listed yet (it needs list and watch on namespaces); until then a selection that it had stays in force")

// namespaces knows the labels of all namespaces, live, while a watch needs them.
type namespaces struct {
	namespaceTable
	factory *dynamicfactory.Factory
	synced  chan struct{} // gets a value when the labels have become known

	// Owned by the goroutine that applies states.
	loaded  bool // the table holds what the store remembers
	sub     *dynamicfactory.Subscription
	stopped chan struct{}
	waiting sync.WaitGroup
}

func newNamespaces(f *dynamicfactory.Factory) *namespaces {
	return &namespaces{factory: f, synced: make(chan struct{}, 1)}
}

// followNamespaces starts or stops the informer as the state needs. It does not
// wait for its first list: namespaces.synced says when it is there.
//
// It is called after the state's sources have started: what their watches had
// selected in an earlier life goes by the labels of that time, and a label that
// changed since is a change like any other.
func (m *Manager) followNamespaces(ctx context.Context, st *plan.State) error {
	n := m.namespaces
	needed := false
	for i := range st.Watches {
		needed = needed || st.Watches[i].Filter.NeedsNamespaces()
	}
	switch {
	case needed && n.sub == nil:
		stopped := make(chan struct{})
		h := &namespaceHandler{m: m, stopped: stopped}
		sub, err := n.factory.Subscribe(context.WithoutCancel(ctx), namespaceKey, h)
		if err != nil {
			return err
		}
		h.ready(sub)
		n.sub, n.stopped = sub, stopped
		n.waiting.Go(func() {
			select {
			case <-sub.Synced():
				m.send(stopped, &namespacesSynced{listed(sub.Informer().GetStore()), m.cfg.Now()})
			case <-stopped:
			}
		})
	case !needed && (n.sub != nil || n.ready()):
		n.close()
		m.flush() // nothing of the informer is on its way
		return m.forgetNamespaces()
	}
	return nil
}

// listed are the names of the namespaces that exist.
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

// namespaceHandler hands namespaces to the committer. What it hands over counts as
// done for the informer: a namespace that did not get into the store is found
// different by the next list.
type namespaceHandler struct {
	m       *Manager
	stopped <-chan struct{}

	mu   sync.Mutex
	sub  *dynamicfactory.Subscription
	seen uint64
}

func (h *namespaceHandler) ready(sub *dynamicfactory.Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sub = sub
	sub.Ack(h.seen)
}

func (h *namespaceHandler) handle(obj any, what func(*compact.Object, time.Time) change) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	o, ok := obj.(*compact.Object)
	if !ok {
		return
	}
	h.m.send(h.stopped, what(o, h.m.cfg.Now()))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, o.Position())
	if h.sub != nil {
		h.sub.Ack(h.seen)
	}
}

func (h *namespaceHandler) OnAdd(obj any, _ bool) { h.handle(obj, seenNamespace) }
func (h *namespaceHandler) OnUpdate(_, obj any)   { h.handle(obj, seenNamespace) }
func (h *namespaceHandler) OnDelete(obj any)      { h.handle(obj, goneNamespace) }

func seenNamespace(o *compact.Object, at time.Time) change { return &namespaceSeen{o, at} }
func goneNamespace(o *compact.Object, at time.Time) change { return &namespaceGone{o, at} }
