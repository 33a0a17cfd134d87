package feed

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// change is one thing for the committer to do. Changes of one source arrive in
// the order in which its informer made them.
type change interface {
	// process decides what the change means and adds its consequences to the batch.
	process(g *group) error
}

// sighting is what a notification about an object says.
type sighting struct {
	src     *Feed
	obj     *compact.Object // the state after the change; in a deletion the last one known
	unknown bool            // a deletion found by comparison
	at      time.Time       // when it was observed

	// Set by the committer.
	repair  bool // what an audit found
	rewound bool // of a list after a rollback
}

// The kinds of changes.
type (
	// objectSeen is an object that exists: added, updated, or found by a list.
	objectSeen struct {
		sighting
		old     *compact.Object // in an update the state before, which this source had recorded
		initial bool            // part of the informer's initial list
	}
	// objectGone is an object that exists no more.
	objectGone struct{ sighting }
	// feedSynced is the end of a source's initial list: all of it was handed over before.
	feedSynced struct {
		src *Feed
		at  time.Time
	}
	// gapFound is a loss of history.
	gapFound struct {
		src *Feed
		gap *dynamicfactory.Gap
		at  time.Time
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
		names map[string]struct{} // those that exist
		at    time.Time
	}
	// barrier is nothing: everything before it is committed when done closes.
	barrier struct{ done chan<- struct{} }
)

// handler hands an informer's notifications to the committer. It blocks when the
// committer is behind; the factory's window then stops the watch.
type handler struct {
	src *Feed
	m   *Manager
}

func (h handler) send(c change) {
	<-h.src.ready
	h.m.send(h.src.stopped, c)
}

func (h handler) sighting(o *compact.Object) sighting {
	return sighting{src: h.src, obj: o, at: h.m.cfg.Now()}
}

var _ cache.ResourceEventHandler = handler{}

func (h handler) OnAdd(obj any, initial bool) {
	if o, ok := obj.(*compact.Object); ok {
		h.send(&objectSeen{sighting: h.sighting(o), initial: initial})
	}
}

func (h handler) OnUpdate(oldObj, newObj any) {
	o, ok := newObj.(*compact.Object)
	if !ok {
		return
	}
	before, _ := oldObj.(*compact.Object)
	h.send(&objectSeen{sighting: h.sighting(o), old: before})
}

func (h handler) OnDelete(obj any) {
	tombstone, unknown := obj.(cache.DeletedFinalStateUnknown)
	if unknown {
		obj = tombstone.Obj
	}
	if o, ok := obj.(*compact.Object); ok {
		c := &objectGone{h.sighting(o)}
		c.unknown = unknown
		h.send(c)
	}
}

// send hands a change to the committer. Once stopped is closed, or after the
// committer has ended, it drops the change: nothing later of its source is committed
// then, and both are read again by whoever resumes from what is.
func (m *Manager) send(stopped <-chan struct{}, c change) {
	select {
	case <-stopped: // of what comes after a dropped change, nothing may be taken
		return
	default:
	}
	select {
	case m.changes <- c:
	case <-stopped:
	case <-m.committerDone:
	}
}
