package commit

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// change is one thing for the committer to do. Changes of one feed arrive in
// the order in which its informer made them.
type change interface {
	// process decides what the change means and adds its consequences to the batch.
	process(g *group) error
}

// sighting is a notification about an object.
type sighting struct {
	feed    *Feed
	obj     *compact.Object // the state after the change; in a deletion the last one known
	unknown bool            // a deletion found by comparison
	at      time.Time       // when it was observed

	// Set by the committer.
	repair  bool // found by the consistency check
	rewound bool // of a list after a rollback
	blind   bool // of a list that makes up for lost history
}

// bytes is about what the object takes of a batch, in the log and in the ledger.
func (s *sighting) bytes() int { return 2 * s.obj.Size() }

// The kinds of changes.
type (
	// objectSeen is an object that exists: added, updated, or found by a list.
	objectSeen struct {
		sighting
		old     *compact.Object // in an update the state before, which this feed had recorded
		initial bool            // part of the informer's initial list
	}
	// objectGone is an object that exists no more.
	objectGone struct{ sighting }
	// feedSynced is the end of a feed's initial list: all of its objects came before.
	feedSynced struct {
		feed *Feed
		at   time.Time
	}
	// gapFound is a loss of history.
	gapFound struct {
		feed *Feed
		gap  *dynamicfactory.Gap
		at   time.Time
	}
	// rollbackFound is a rollback before the list that makes up for it.
	rollbackFound struct {
		feed *Feed
		gap  *dynamicfactory.Gap
	}
	// namespaceSeen is a namespace as it is now.
	namespaceSeen struct {
		obj *compact.Object
		at  time.Time
	}
	// namespaceGone is a namespace that exists no more.
	namespaceGone struct {
		obj *compact.Object
		at  time.Time
	}
	// namespacesSynced comes once all namespaces have been seen.
	namespacesSynced struct {
		names map[string]struct{} // those that exist, and some that ended since
		at    time.Time
	}
	// barrier is nothing: everything before it is committed when done closes.
	barrier struct{ done chan<- struct{} }
)

// handler forwards an informer's notifications to the committer. It blocks when the
// committer is behind; the factory's window then stops the watch.
type handler struct {
	feed   *Feed
	c      *Committer
	waited time.Time // when a change last waited in vain for its namespace; the informer's goroutine has it
}

// Handler forwards the notifications of the feed's informer to the committer.
func (c *Committer) Handler(s *Feed) cache.ResourceEventHandler { return &handler{feed: s, c: c} }

// Synced reports the end of the informer's initial list.
func (c *Committer) Synced(s *Feed) {
	c.send(s.stopped, &feedSynced{feed: s, at: s.unrecorded.observe(c.cfg.Now)})
}

// HistoryLost reports a loss of history.
func (c *Committer) HistoryLost(s *Feed, gap dynamicfactory.Gap) {
	s.unrecorded.lose(gap.FromTime)
	c.send(s.stopped, &gapFound{feed: s, gap: &gap, at: c.cfg.Now()})
}

// RollbackFound reports that the cluster was set back. A loss of history follows, once a list has made up for it.
func (c *Committer) RollbackFound(s *Feed, gap dynamicfactory.Gap) {
	c.send(s.stopped, &rollbackFound{s, &gap})
}

func (h *handler) send(c change) {
	<-h.feed.ready
	h.c.send(h.feed.stopped, c)
}

func (h *handler) sighting(o *compact.Object) sighting {
	return sighting{feed: h.feed, obj: o, at: h.feed.unrecorded.observe(h.c.cfg.Now)}
}

var _ cache.ResourceEventHandler = (*handler)(nil)

func (h *handler) OnAdd(obj any, initial bool) {
	if o, ok := obj.(*compact.Object); ok {
		h.send(&objectSeen{sighting: h.sighting(o), initial: initial})
	}
}

func (h *handler) OnUpdate(oldObj, newObj any) {
	o, ok := newObj.(*compact.Object)
	if !ok {
		return
	}
	h.awaitNamespace(o)
	before, _ := oldObj.(*compact.Object)
	h.send(&objectSeen{sighting: h.sighting(o), old: before})
}

func (h *handler) OnDelete(obj any) {
	tombstone, unknown := obj.(cache.DeletedFinalStateUnknown)
	if unknown {
		obj = tombstone.Obj
	}
	if o, ok := obj.(*compact.Object); ok {
		if !unknown { // else it was long ago
			h.awaitNamespace(o)
		}
		c := &objectGone{h.sighting(o)}
		c.unknown = unknown
		h.send(c)
	}
}

// NamespaceHandler forwards namespaces to the committer, and acknowledges them at once: a
// namespace that did not get into the store is found different by the next list.
type NamespaceHandler struct {
	c       *Committer
	stopped <-chan struct{}

	order sync.Mutex          // held while something is sent; guards names
	names map[string]struct{} // of those that were sent; nil behind namespacesSynced

	mu   sync.Mutex // guards what follows
	sub  windowed
	seen uint64
}

// NamespaceHandler makes a handler that drops what comes once stopped is closed.
func (c *Committer) NamespaceHandler(stopped <-chan struct{}) *NamespaceHandler {
	return &NamespaceHandler{c: c, stopped: stopped, names: map[string]struct{}{}}
}

// Synced reports that all namespaces that exist were forwarded.
func (h *NamespaceHandler) Synced() {
	h.order.Lock() // one that is made this moment is among the names, or behind them
	defer h.order.Unlock()
	names := h.names
	h.names = nil
	h.send(func(at time.Time) change { return &namespacesSynced{names, at} })
}

func (h *NamespaceHandler) send(observed func(at time.Time) change) {
	if !h.c.send(h.stopped, observed(h.c.labels.observe(h.c.cfg.Now))) {
		h.c.labels.drop()
	}
}

// Subscribed sets the handler's informer.
func (h *NamespaceHandler) Subscribed(sub windowed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sub = sub
	sub.Ack(h.seen)
}

func (h *NamespaceHandler) handle(obj any, what func(*compact.Object, time.Time) change) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	o, ok := obj.(*compact.Object)
	if !ok {
		return
	}
	h.order.Lock()
	if h.names != nil {
		h.names[o.GetName()] = struct{}{}
	}
	h.send(func(at time.Time) change { return what(o, at) })
	h.order.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, o.Position())
	if h.sub != nil {
		h.sub.Ack(h.seen)
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (h *NamespaceHandler) OnAdd(obj any, _ bool) { h.handle(obj, seenNamespace) }

// OnUpdate implements cache.ResourceEventHandler.
func (h *NamespaceHandler) OnUpdate(_, obj any) { h.handle(obj, seenNamespace) }

// OnDelete implements cache.ResourceEventHandler.
func (h *NamespaceHandler) OnDelete(obj any)               { h.handle(obj, goneNamespace) }
func seenNamespace(o *compact.Object, at time.Time) change { return &namespaceSeen{o, at} }
func goneNamespace(o *compact.Object, at time.Time) change { return &namespaceGone{o, at} }

// windowed is an informer whose window is opened by acknowledgements.
type windowed interface{ Ack(position uint64) }
