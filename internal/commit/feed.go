package commit

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/unseen"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Key identifies a feed among those that run: the objects that its informer watches, and
// their form.
type Key struct {
	dynamicfactory.Key
	MetadataOnly bool
	Variant      string // of the edits; "" for the default edits
}

// Codec returns a codec for the objects of a feed. Those of one resource and form share
// dictionaries across namespaces.
func (k *Key) Codec(d *compact.Dictionaries) *compact.Codec {
	name := k.GVR.GroupResource().String()
	if k.MetadataOnly {
		name += " metadata"
	}
	if k.Variant != "" {
		name += " " + k.Variant
	}
	return compact.NewCodecFor(d, name)
}

// Identity is what a feed is. It does not change.
type Identity struct {
	Key       Key
	ID        string // names the feed in the store
	Partition string // the part of the ledger that the feed's objects are recorded in
	Scope     string // what makes this feed's content differ from the default; part of event IDs
	Form      string // the form in which it records states
	Resource  event.Resource
	Edit      dynamicfactory.EditFunc
	Usage     func() []redact.Usage // of the configured paths
	Edits     uint64                // the fingerprint of what edit does; 0: states are passed on as they are recorded
}

// Feed is what one informer reports, and the watches that are fed from it.
//
// A feed passes through three goroutines, one after the other: the owner prepares it and
// subscribes it to its informer, the informer asks what to begin with, and from then on
// its progress is the committer's, of which a part is from the beginning. The rest is
// constant, atomic or a channel.
type Feed struct {
	Identity
	Log      *slog.Logger
	observed prometheus.Counter
	repaired prometheus.Counter

	watches  atomic.Pointer[[]WatchRef] // replaced at a barrier once the informer runs
	edit     dynamicfactory.EditFunc    // Edit of recorded states, which do not count: they lack what an earlier form left out
	edited   atomic.Uint64              // objects that were edited
	complete atomic.Pointer[string]     // the version up to which everything is committed
	taken    atomic.Bool                // progress.synced, as it is committed
	sweeps   atomic.Uint64              // progress.lists, as it is committed
	doubts   atomic.Uint64              // how often a rollback has put the feed in doubt
	settled  atomic.Uint64              // how many of those a check has settled
	begun    atomic.Bool                // the informer has asked for what it begins with; before that nothing happens to the feed

	unrecorded unrecorded

	acks    Acknowledger  // set before ready is closed; nil: the informer could not be subscribed
	ready   chan struct{} // closed by the owner, as is stopped
	stopped chan struct{} // later notifications are dropped

	progress
}

// Acknowledger is the informer of a feed as the committer sees it.
// *dynamicfactory.DurableSubscription implements it.
type Acknowledger interface {
	// Ack opens the informer's window: everything up to the position is durable.
	Ack(position uint64)
	// Checkpoint returns the version to resume from when everything up to the position
	// is committed; "": there is none yet.
	Checkpoint(position uint64) string
	// Known returns the time up to which nothing is missing by the version of Quiet, or else by that of
	// Checkpoint; zero: it is not known.
	Known(position uint64) time.Time
	// Quiet returns a later version that shows no difference, for where that of Checkpoint
	// has expired; "": there is none.
	Quiet(position uint64) string
	// NextList returns the first list that ends after the position; withObjects: the first
	// that has any.
	NextList(position uint64, withObjects bool) (dynamicfactory.List, bool)
	// Informer has the cache of the objects.
	Informer() cache.SharedIndexInformer
	// Watch is the status of the informer's watch.
	Watch() dynamicfactory.WatchStatus
}

// IdentityOf is the identity of the feed that a watch asks for: of a resource, at the
// version that the watch insists on, if pinned is not empty, in a namespace.
func IdentityOf(w *plan.Watch, r dynamicfactory.Resource, pinned, namespace string, redactKey []byte) (Identity, error) {
	k := KeyOf(w, r.GVR, pinned, namespace)
	if err := k.Validate(); err != nil {
		return Identity{}, err
	}
	editor, err := w.Edits.Editor(r.GVR.GroupResource(), redactKey)
	if err != nil {
		return Identity{}, err
	}
	scope := ledger.ScopeOf(pinned, w.ServerLabels, w.ServerFields)
	partition := ledger.Partition(r.GVR.GroupResource(), scope)
	return Identity{
		Key: k, Partition: partition, ID: ledger.FeedID(partition, namespace), Scope: scope, Form: formOf(w, r.GVR, redactKey),
		Edit: editor.AppendChange, Usage: func() []redact.Usage { return w.Edits.Usage(editor) }, Edits: w.Edits.Fingerprint(r.GVR.GroupResource()),
		Resource: event.Resource{Group: r.GVR.Group, Version: r.GVR.Version, Resource: r.GVR.Resource, Kind: r.Kind},
	}, nil
}

// NewFeed makes a feed that feeds the watches. It does not run.
func (c *Committer) NewFeed(id Identity, watches ...WatchRef) *Feed {
	s := &Feed{Identity: id, ready: make(chan struct{}), stopped: make(chan struct{})}
	s.Log = s.logger(c.log)
	if id.Edit != nil {
		s.edit, s.Edit = id.Edit, s.counting(id.Edit)
	}
	s.observed, s.repaired = c.metrics.observed(s), c.metrics.repaired(s)
	s.watches.Store(&watches)
	return s
}

// counting counts the objects that are edited, and logs once the paths that none of many had.
func (s *Feed) counting(edit dynamicfactory.EditFunc) dynamicfactory.EditFunc {
	return func(dst, raw []byte, by *rawjson.Change) ([]byte, error) {
		if s.edited.Add(1) == unseen.Enough+1 { // those before it are edited
			for _, u := range s.Usage() {
				if u.Suspicious() {
					s.Log.Warn("a path that a watch names was in no object so far; it may be wrong", "key", u.Key, "field", u.Path, "objects", unseen.Enough)
				}
			}
		}
		return edit(dst, raw, by)
	}
}

// Edited is the number of objects that were edited since the informer began.
func (s *Feed) Edited() uint64 { return s.edited.Load() }

// Subscribed sets the feed's informer, nil if there is none. Notifications wait for it.
func (s *Feed) Subscribed(a Acknowledger) {
	s.acks = a
	close(s.ready)
}

// informer is nil before the feed is subscribed.
func (s *Feed) informer() Acknowledger {
	if isClosed(s.ready) {
		return s.acks
	}
	return nil
}

// watching reports whether the informer's watch is established.
func (s *Feed) watching() bool {
	sub := s.informer()
	return sub != nil && sub.Watch().State == dynamicfactory.StateWatching
}

// Watches are the watches that are fed.
func (s *Feed) Watches() []WatchRef { return *s.watches.Load() }

// kept are the rules of the watches that keep the history of the feed's objects.
func (s *Feed) kept() (rules []ledger.Kept) {
	for _, h := range s.Watches() {
		if !h.Watch.History {
			continue
		}
		k := ledger.Kept{Namespaces: h.Watch.Namespaces, Rules: h.Watch.Selection}
		if s.Key.Namespace != "" {
			k.Namespaces = nil // the feed's is among them
		}
		rules = append(rules, k)
	}
	return rules
}

// Complete is the version up to which everything is committed; "": there is none yet, or a list is swept.
func (s *Feed) Complete() string {
	if v := s.complete.Load(); v != nil {
		return *v
	}
	return ""
}

// Listed reports whether a complete list is committed, now or in an earlier life.
func (s *Feed) Listed() bool { return s.taken.Load() }

// Swept is how many lists are committed with all that they show, deletions among them: the first one, each that
// the consistency check asked for, and each of a feed that has not come as far as what it took over. A list that
// shows a rollback counts when it begins.
func (s *Feed) Swept() uint64 { return s.sweeps.Load() }

// Doubts is how often a rollback has put the feed in doubt.
func (s *Feed) Doubts() uint64 { return s.doubts.Load() }

// Settle notes that a check which began when the feed had come so often into doubt found it to have followed the cluster.
func (s *Feed) Settle(doubts uint64) { s.settled.Store(doubts) }

// Stop makes the committer drop the informer's later notifications.
func (s *Feed) Stop() { close(s.stopped) }

// Stopped is closed by Stop.
func (s *Feed) Stopped() <-chan struct{} { return s.stopped }

// progress is how far the committer has come with a feed.
type progress struct {
	// What the feed begins with, decided by Committer.Prepare and completed by
	// Committer.Begin.
	resume ledger.Checkpoint // where an earlier life had come to
	start  start             // what the informer begins with

	// warmObjects are the ledger's objects that the informer was started with, in the
	// order of its notifications, without those that have come.
	warmObjects []*compact.Object

	// listed are the hashes of the keys that the informer has listed, for the sweep
	// behind a list; nil if there is nothing to sweep.
	listed map[uint64]struct{}
	// relisted is the position behind the list that listed is of, 0 if that is the first one.
	relisted uint64
	swept    bool   // the sweep of relisted has begun
	lists    uint64 // see Feed.Swept
	repairs  bool   // it is of a list that the consistency check asked for
	// floor is the highest version that was recorded when the informer began, "" once it is
	// past it.
	floor string
	// ahead are the namespaces of which more is recorded than the first list shows: all
	// up to a version; "" stands for all namespaces. nil once the feed has come as far.
	ahead map[string]string

	position     uint64                // highest stream position seen
	newest       *compact.Object       // at that position; nil: none since the start
	saved        ledger.Checkpoint     // as last written to the store
	synced       bool                  // a complete list has been committed, now or in an earlier life
	epoch        int                   // how often the cluster was set back; part of event IDs
	pending      []*dynamicfactory.Gap // gaps whose lists have not begun
	open         *dynamicfactory.Gap   // a gap whose list has shown no difference yet
	blindTo      uint64                // the position of the list after the last loss of history; 0: the feed is past it
	repair       uint64                // the position of the list that the consistency check asked for; 0: none
	list         list                  // the list that is being taken in
	first        string                // the version of the list that is swept, the first at first
	rewind       bool                  // the next list is the first after a rollback
	forgot       bool                  // a part of what an earlier life recorded cannot be read
	doubt        *dynamicfactory.Gap   // see ledger.Checkpoint
	rewoundAt    time.Time             // when it found the last rollback in this life
	lost         bool                  // of an object that such a part had, the end may be in no record, and no checkpoint has that yet
	damaged      bool                  // an unreadable entry of the ledger has been logged
	recordedForm string                // the form of all recorded states; "" if they may differ
	historySince time.Time             // see ledger.Checkpoint
	sweeping     time.Time             // since when listed is not nil, as it is committed

	// The committer's also before the informer begins.
	codec   *compact.Codec // of former states; nil until one is needed
	doubted bool           // the saved checkpoint is marked: see setBack
	moved   []movedWatch   // to be reported when the first list is taken in
	gaining []*snapshot    // that leave out what is delivered meanwhile
}

// start is what an informer begins with.
type start uint8

const (
	cold   start = iota // a list of now
	relist              // a list of the resource as it was at resume's version
	warm                // the ledger's objects, at resume's version
)

// list is a list that a feed's objects come from. Its mark is in the checkpoint as
// long as only a part of it is committed.
type list struct {
	mark *ledger.Listing
	end  uint64 // the position of its last object; 0: it has not begun

	objects bool // one has come
}

// WatchRef is a watch that a feed feeds.
type WatchRef struct {
	Watch      *plan.Watch
	namespaces map[string]struct{} // nil: all
}

// NewWatchRef is a watch by its rules.
func NewWatchRef(w *plan.Watch) WatchRef {
	h := WatchRef{Watch: w}
	if len(w.Namespaces) > 0 {
		h.namespaces = make(map[string]struct{}, len(w.Namespaces))
		for _, ns := range w.Namespaces {
			h.namespaces[ns] = struct{}{}
		}
	}
	return h
}

func (h WatchRef) sameWatch(other WatchRef) bool { return h.Watch.Name == other.Watch.Name }

// WatchNamed is the feed's watch of that name.
func (s *Feed) WatchNamed(watch string) (h WatchRef, ok bool) {
	for _, h := range s.Watches() {
		if h.Watch.Name == watch {
			return h, true
		}
	}
	return h, false
}

// isRecorded reports whether the object's state belongs to history that another feed
// has recorded.
func (s *Feed) isRecorded(o *compact.Object) bool {
	version := ledger.Later(s.ahead[o.GetNamespace()], s.ahead[""])
	return version != "" && !ledger.Newer(o.GetResourceVersion(), version)
}

// recorded is the newest version of which anything is recorded, "" if that is the
// complete version.
func (s *Feed) recorded(complete string) string {
	version := ledger.Later(complete, s.floor)
	if s.newest != nil {
		version = ledger.Later(version, s.newest.GetResourceVersion())
	}
	if version == complete {
		return ""
	}
	return version
}

// caughtUp reports whether the feed has come as far as all that it has taken over.
func (s *Feed) caughtUp(version string) bool {
	for _, v := range s.ahead {
		if ledger.Newer(v, version) {
			return false
		}
	}
	return s.synced && !ledger.Newer(s.resume.RecordedUpTo(), version)
}

func (s *Feed) ended() bool { return isClosed(s.stopped) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// logger returns l with what names the feed to people.
func (s *Feed) logger(l *slog.Logger) *slog.Logger {
	l = l.With("resource", s.Resource.String())
	if s.Key.Namespace != "" {
		l = l.With("namespace", s.Key.Namespace)
	}
	return l
}

// fromLedger reports whether o is the very object that the ledger gave the informer
// to start with, so that nothing can have happened to it and the ledger need not be
// read again. An object that the watch reports meanwhile is another one. false is
// inconclusive: the last object is a copy.
func (s *Feed) fromLedger(o *compact.Object) bool {
	if len(s.warmObjects) == 0 || s.warmObjects[0] != o {
		return false
	}
	s.warmObjects = s.warmObjects[1:]
	return true
}

// Reads reports whether the watch is about a namespace.
func (h WatchRef) Reads(namespace string) bool {
	if h.namespaces == nil {
		return true
	}
	_, ok := h.namespaces[namespace]
	return ok
}

// Covers reports whether the object belongs to the watch at all.
func (h WatchRef) Covers(o *compact.Object, nsLabels func(string) (labels.Set, bool)) bool {
	if o == nil || !h.Reads(o.GetNamespace()) {
		return false
	}
	return h.Watch.Filter.Match(o, nsLabels)
}

func (h WatchRef) byLabels() bool { return h.Watch.Filter.NeedsNamespaces() }

func (h *WatchRef) of(string) []WatchRef { return []WatchRef{*h} }

// Selection is the meaning of an observation to the watch. ok is false if it has none.
func (h WatchRef) Selection(t event.Type, before, after *compact.Object, nsLabels func(string) (labels.Set, bool)) (s event.Selection, ok bool) {
	if t == event.Updated {
		was, is := h.Covers(before, nsLabels), h.Covers(after, nsLabels)
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
	if !h.Covers(o, nsLabels) {
		return event.Inside, false
	}
	if h.Watch.ServerLabels+h.Watch.ServerFields != "" && t != event.Sync {
		return event.Unknown, true
	}
	return event.Inside, true
}

// KeyPrefix begins the keys of the ledger entries in the feed's scope.
func (s *Identity) KeyPrefix() string {
	if s.Key.Namespace == "" {
		return ""
	}
	return ledger.Key(s.Key.Namespace, "")
}

// idScope is the part of event ids that is not of the object. After the cluster
// was set back to an older state, versions are used again for something else.
func (s *Feed) idScope() string {
	if s.epoch == 0 {
		return s.Scope
	}
	return s.Scope + "#" + strconv.Itoa(s.epoch)
}

// AddWatch adds a watch to a feed that does not run, once.
func (s *Feed) AddWatch(h WatchRef) {
	hits := s.Watches()
	for _, known := range hits {
		if known.Watch == h.Watch {
			return
		}
	}
	hits = append(slices.Clone(hits), h)
	s.watches.Store(&hits)
}

// KeyOf is the informer's key of a watch for a resource in a namespace.
func KeyOf(w *plan.Watch, gvr schema.GroupVersionResource, pinned, namespace string) Key {
	variant := w.Edits.Variant(gvr.GroupResource())
	if pinned != "" {
		variant = strings.TrimSpace("pinned " + variant) // a feed of its own beside the preferred version's
	}
	return Key{
		Key:          dynamicfactory.Key{GVR: gvr, Namespace: namespace, LabelSelector: w.ServerLabels, FieldSelector: w.ServerFields},
		MetadataOnly: w.MetadataOnly, Variant: variant,
	}
}

// formOf is the form in which a feed records states: the API version, what the watches'
// edits leave, and the key of the hashes.
func formOf(w *plan.Watch, gvr schema.GroupVersionResource, redactKey []byte) string {
	form := gvr.Version
	if w.MetadataOnly {
		form += " metadata"
	}
	if variant := w.Edits.Variant(gvr.GroupResource()); variant != "" {
		form += " edits " + variant
	}
	return form + " key " + redact.KeyID(redactKey)
}
