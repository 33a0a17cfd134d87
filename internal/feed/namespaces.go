package feed

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
// objects before the labels are known.
var errNamespacesUnknown = errors.New("the watch selects namespaces by label, and they are not listed yet (it needs list and watch on namespaces)")

// namespaces knows the labels of all namespaces, live, while a watch needs them.
type namespaces struct {
	factory *dynamicfactory.Factory
	synced  chan struct{} // gets a value when the labels have become known

	// mu guards what is below.
	mu      sync.RWMutex
	sub     *dynamicfactory.Subscription
	stopped chan struct{}
	waiting sync.WaitGroup
}

func newNamespaces(f *dynamicfactory.Factory) *namespaces {
	return &namespaces{factory: f, synced: make(chan struct{}, 1)}
}

// follow starts or stops the informer as the state needs. It does not wait for
// its first list: synced says when it is there.
func (n *namespaces) follow(ctx context.Context, st *plan.State) error {
	needed := false
	for i := range st.Watches {
		needed = needed || st.Watches[i].Filter.NeedsNamespaces()
	}
	n.mu.RLock()
	sub := n.sub
	n.mu.RUnlock()
	switch {
	case needed && sub == nil:
		ack := &namespaceHandler{}
		sub, err := n.factory.Subscribe(context.WithoutCancel(ctx), namespaceKey, ack)
		if err != nil {
			return err
		}
		ack.ready(sub)
		stopped := make(chan struct{})
		n.mu.Lock()
		n.sub, n.stopped = sub, stopped
		n.mu.Unlock()
		n.waiting.Go(func() {
			select {
			case <-sub.Synced():
				select {
				case n.synced <- struct{}{}:
				default: // told already
				}
			case <-stopped:
			}
		})
	case !needed && sub != nil:
		n.close()
	}
	return nil
}

func (n *namespaces) close() {
	n.mu.Lock()
	sub, stopped := n.sub, n.stopped
	n.sub = nil
	n.mu.Unlock()
	if sub != nil {
		close(stopped)
		n.waiting.Wait()
		sub.Close()
	}
}

// ready reports whether labels gives true answers.
func (n *namespaces) ready() bool {
	n.mu.RLock()
	sub := n.sub
	n.mu.RUnlock()
	if sub == nil {
		return false
	}
	select {
	case <-sub.Synced():
		return true
	default:
		return false
	}
}

// labels returns the labels of a namespace; ok is false if it is not known (any
// more).
func (n *namespaces) labels(namespace string) (labels.Set, bool) {
	n.mu.RLock()
	sub := n.sub
	n.mu.RUnlock()
	if sub == nil {
		return nil, false
	}
	obj, found, err := sub.Informer().GetStore().GetByKey(namespace)
	if err != nil || !found {
		return nil, false
	}
	o, ok := obj.(*compact.Object)
	if !ok {
		return nil, false
	}
	return o.GetLabels(), true
}

// namespaceHandler acknowledges at once: nothing has to be made durable.
type namespaceHandler struct {
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

func (h *namespaceHandler) ack(obj any) {
	o, ok := obj.(*compact.Object)
	if !ok {
		return // a tombstone carries no stream position
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, o.Position())
	if h.sub != nil {
		h.sub.Ack(h.seen)
	}
}

func (h *namespaceHandler) OnAdd(obj any, _ bool) { h.ack(obj) }
func (h *namespaceHandler) OnUpdate(_, obj any)   { h.ack(obj) }
func (h *namespaceHandler) OnDelete(obj any)      { h.ack(obj) }
