package feed

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// source is one informer and the watches that are fed from it.
type Feed struct {
	key       dynamicfactory.Key
	id        string // names the source in the store
	partition string // the part of the ledger that the source's objects are recorded in
	scope     string // what makes this feed's content differ from the default; part of event ids
	form      string // the form in which it records states
	resource  event.Resource
	edit      dynamicfactory.EditFunc
	edits     uint64 // the fingerprint of what edit does; 0: states are handed on as they are recorded
	log       *slog.Logger
	observed  prometheus.Counter
	repaired  prometheus.Counter

	watches atomic.Pointer[[]WatchRef]
	sub  atomic.Pointer[dynamicfactory.Subscription]

	complete atomic.Pointer[string] // the version up to which everything is committed

	// Set before the informer starts.
	resume checkpoint // where an earlier life had come to
	start  start      // what the informer begins with

	begun   atomic.Bool    // the informer has asked for what it begins with; before that nothing happens to the source
	ready   chan struct{}  // closed when sub is set
	stopped chan struct{}  // closed by the owner: what is handed over from then on is dropped
	waiting sync.WaitGroup // what waits for the first list

	// handed are the ledger's objects that the informer was started with, in the
	// order in which it hands them on, without those that have come. Set before the
	// first of them comes, from then on the committer's.
	warmObjects []*compact.Object

	// listed are the hashes of the keys that the informer has handed over, for the sweep
	// behind the first list; nil if there is nothing to sweep. Set before the informer
	// starts, from then on the committer's, as is floor: the highest version that was
	// recorded by then, "" once the informer is past it.
	listed map[uint64]struct{}
	floor  string
	// ahead are the namespaces of which more is recorded than the first list shows: all
	// up to a version; "" stands for all namespaces. nil once the source has come as far.
	ahead map[string]string

	// Owned by the committer.
	position     uint64                // highest stream position seen
	newest       *compact.Object       // at that position; nil: none since the start
	saved        checkpoint            // as last written to the store
	synced       bool                  // a complete list has been committed, now or in an earlier life
	epoch        int                   // how often the cluster was set back; part of event ids
	pending      []*dynamicfactory.Gap // gaps whose lists have not begun
	open         *dynamicfactory.Gap   // a gap whose list has shown no difference yet
	repair       uint64                // the position of the list that an audit asked for; 0: none
	list         list                  // the list that is being taken in
	first        string                // the version of the first list
	rewind       bool                  // the next list is the first after a rollback
	forgot       bool                  // a part of what an earlier life recorded cannot be read
	damaged      bool                  // an unreadable entry of the ledger has been logged
	recordedForm string                // the form of all recorded states; "" if they may differ
	codec        *compact.Codec        // of former states; nil until one is needed

	// gaining are the snapshots that leave out what is delivered meanwhile.
	gaining []*Snapshot
}

// start is what an informer begins with.
type start uint8

const (
	cold   start = iota // a list of now
	relist              // a list of the resource as it was at resume's version
	warm                // the ledger's objects, at resume's version
)

// list is a list that a source's objects come from. Its mark is in the checkpoint as
// long as only a part of it is committed.
type list struct {
	mark *listing
	end  uint64 // the position of its last object
}

// listing marks a list in a checkpoint: a start that finds it begins with the list of
// that version.
type listing struct {
	ResourceVersion string `json:"resourceVersion"`
	Rewound         bool   `json:"rewound,omitempty"` // it is the first after a rollback
}

// hit is a watch that a source feeds.
type WatchRef struct {
	watch      *plan.Watch
	namespaces map[string]struct{} // nil: all
}

// newHit is a watch by its rules.
func newWatchRef(w *plan.Watch) WatchRef {
	h := WatchRef{watch: w}
	if len(w.Namespaces) > 0 {
		h.namespaces = make(map[string]struct{}, len(w.Namespaces))
		for _, ns := range w.Namespaces {
			h.namespaces[ns] = struct{}{}
		}
	}
	return h
}

func (h WatchRef) sameWatch(other WatchRef) bool { return h.watch.Name == other.watch.Name }

// hit is the source's watch of that name.
func (s *Feed) watch(watch string) (h WatchRef, ok bool) {
	for _, h := range *s.watches.Load() {
		if h.watch.Name == watch {
			return h, true
		}
	}
	return h, false
}

// isRecorded reports whether the object's state belongs to history that another source
// has recorded.
func (s *Feed) isRecorded(o *compact.Object) bool {
	version := later(s.ahead[o.GetNamespace()], s.ahead[""])
	return version != "" && !newer(o.GetResourceVersion(), version)
}

// recorded is the newest version of which anything is recorded, "" if that is the
// complete version.
func (s *Feed) recorded(complete string) string {
	version := later(complete, s.floor)
	if s.newest != nil {
		version = later(version, s.newest.GetResourceVersion())
	}
	if version == complete {
		return ""
	}
	return version
}

// caughtUp reports whether the source has come as far as all that it has taken over.
func (s *Feed) caughtUp(version string) bool {
	for _, v := range s.ahead {
		if newer(v, version) {
			return false
		}
	}
	return s.synced
}

// ended reports whether the owner has stopped the source.
func (s *Feed) ended() bool { return isClosed(s.stopped) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// logger returns l with what names the source to people.
func (s *Feed) logger(l *slog.Logger) *slog.Logger {
	l = l.With("resource", s.resource.String())
	if s.key.Namespace != "" {
		l = l.With("namespace", s.key.Namespace)
	}
	return l
}

// fromLedger reports whether o is the very object that the ledger gave the informer
// to start with, so that nothing can have happened to it and the ledger need not be
// read again. An object that the watch tells of meanwhile is another one. A no says
// nothing: it is that of the last object too, which the factory copies.
func (s *Feed) fromLedger(o *compact.Object) bool {
	if len(s.warmObjects) == 0 || s.warmObjects[0] != o {
		return false
	}
	s.warmObjects = s.warmObjects[1:]
	return true
}

// reads reports whether the watch is about a namespace.
func (h WatchRef) reads(namespace string) bool {
	if h.namespaces == nil {
		return true
	}
	_, ok := h.namespaces[namespace]
	return ok
}

// covers reports whether the object belongs to the watch at all.
func (h WatchRef) covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool {
	if o == nil || !h.reads(o.GetNamespace()) {
		return false
	}
	return h.watch.Filter.Match(o, nsLabels)
}

// selection tells what an observation means to the watch. ok is false if it
// means nothing.
func (h WatchRef) selection(t event.Type, before, after *compact.Object, nsLabels func(string) (labels.Set, bool)) (s event.Selection, ok bool) {
	if t == event.Updated {
		was, is := h.covers(before, nsLabels), h.covers(after, nsLabels)
		switch {
		case was && is:
			return event.Inside, true
		case is:
			return event.Entered, true
		case was:
			return event.Left, true
		default:
			return event.Inside, false
		}
	}
	o := after
	if t == event.Deleted {
		o = before
	}
	if !h.covers(o, nsLabels) {
		return event.Inside, false
	}
	if h.watch.ServerLabels+h.watch.ServerFields != "" && t != event.Sync {
		return event.Unknown, true
	}
	return event.Inside, true
}
