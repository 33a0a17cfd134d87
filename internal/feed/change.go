package feed

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// change is one thing for the committer to do. Changes of one source arrive in
// the order in which its informer made them.
type change struct {
	src  *source
	kind changeKind

	obj *compact.Object // the state after the change; in a deletion the last one known
	old *compact.Object // in an update the state before, which this source had recorded

	initial bool                // part of the informer's initial list
	unknown bool                // a deletion found by comparison
	repair  bool                // what an audit found; set by the committer
	rewound bool                // of a list after a rollback; set by the committer
	gap     *dynamicfactory.Gap // for gapFound
	listed  map[string]struct{} // for namespacesSynced: the namespaces that exist
	done    chan<- struct{}     // for barrier: closed once all before it is committed
	at      time.Time           // when it was observed
}

type changeKind uint8

const (
	objectAdded   changeKind = iota // also: found by a list
	objectUpdated                   // the informer had the object before
	objectDeleted
	sourceSynced // the initial list has been handed over completely
	gapFound     // history was lost

	namespaceSeen    // obj is a namespace as it is now
	namespaceGone    // obj is a namespace that is no more
	namespacesSynced // all namespaces have been seen

	barrier // nothing: everything before it is committed when done closes
)

// handler hands an informer's notifications to the committer. It blocks when the
// committer is behind; the factory's window then stops the watch.
type handler struct {
	src *source
	m   *Manager
}

func (h handler) send(c change) {
	<-h.src.ready
	c.src = h.src
	h.m.send(h.src.stopped, c)
}

var _ cache.ResourceEventHandler = handler{}

func (h handler) OnAdd(obj any, initial bool) {
	if o, ok := obj.(*compact.Object); ok {
		h.send(change{kind: objectAdded, obj: o, initial: initial})
	}
}

func (h handler) OnUpdate(oldObj, newObj any) {
	o, ok := newObj.(*compact.Object)
	if !ok {
		return
	}
	before, _ := oldObj.(*compact.Object)
	h.send(change{kind: objectUpdated, obj: o, old: before})
}

func (h handler) OnDelete(obj any) {
	tombstone, unknown := obj.(cache.DeletedFinalStateUnknown)
	if unknown {
		obj = tombstone.Obj
	}
	if o, ok := obj.(*compact.Object); ok {
		h.send(change{kind: objectDeleted, obj: o, unknown: unknown})
	}
}

// send hands a change to the committer. Once stopped is closed, or after the
// committer has ended, it drops the change: nothing later of its source is committed
// then, and both are read again by whoever resumes from what is.
func (m *Manager) send(stopped <-chan struct{}, c change) {
	c.at = m.cfg.Now()
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
