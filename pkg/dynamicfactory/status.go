package dynamicfactory

import (
	"cmp"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

// The states of an informer.
const (
	StateWaiting    = string(rawwatch.Waiting)    // not started, or the resource is not served
	StateListing    = string(rawwatch.Listing)    // its first list, or one after lost history
	StateWatching   = string(rawwatch.Watching)   // live
	StateForbidden  = string(rawwatch.Forbidden)  // refused with 401 or 403; asked again
	StateBackingOff = string(rawwatch.BackingOff) // another failure; tried again
	StateForeign    = string(rawwatch.Foreign)    // see ErrForeignCluster; asked again
	StateStopped    = string(rawwatch.Stopped)
)

// Status tells how an informer is doing. Without NewForConfig only Key, State,
// ResourceVersion, Objects and Bytes are known, and State is waiting, listing,
// watching or stopped.
type Status struct {
	Key             Key
	State           string
	Reason, Message string    // why it is not watching
	Since           time.Time // when it came into that state
	LastContact     time.Time // when the server last answered or sent something
	ResourceVersion string    // where a watch would be resumed
	Subscriptions   int
	Objects         int   // in the cache
	Bytes           int64 // of compact objects in the cache, 0 for others
	InFlight        int   // events handed on and not acknowledged, if there is a window
	// PausedSince is since when the watch has not been read because the window is full;
	// zero if it is read. A watch that is paused for long may lose its history.
	PausedSince time.Time

	// Counters since the informer was made.
	Relists, Expired410, Forbidden, NotFound, DecodeErrors, Skipped, WatchRestarts, Repeated, Events, Bookmarks uint64
}

// Statuses returns the status of every informer that runs or was asked for, in the
// order of their keys. It looks at every cached object, so it is for a scrape every
// few seconds, not for a loop.
func (f *Factory) Statuses() []Status {
	f.mu.Lock()
	subscriptions := map[*informer]int{}
	for _, i := range f.informers {
		subscriptions[i] = 0
	}
	for _, i := range f.custom {
		subscriptions[i] = 0
	}
	for s := range f.subs {
		subscriptions[s.informer]++
	}
	f.mu.Unlock()
	statuses := make([]Status, 0, len(subscriptions))
	for i, n := range subscriptions {
		s := i.status()
		s.Subscriptions = n
		statuses = append(statuses, s)
	}
	slices.SortFunc(statuses, func(a, b Status) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return statuses
}

func (i *informer) status() Status {
	s := Status{Key: i.key}
	for _, obj := range i.shared.GetStore().List() {
		s.Objects++
		if o, ok := obj.(*compact.Object); ok {
			s.Bytes += int64(o.Size())
		}
	}
	if i.source == nil {
		s.ResourceVersion = i.shared.LastSyncResourceVersion()
		switch {
		case i.shared.IsStopped():
			s.State = StateStopped
		case i.shared.HasSynced():
			s.State = StateWatching
		case s.ResourceVersion == "":
			s.State = StateWaiting
		default:
			s.State = StateListing
		}
		return s
	}
	t := i.source.Stats()
	s.State, s.Reason, s.Message, s.Since, s.LastContact = string(t.State), t.Reason, t.Message, t.Since, t.LastContact
	s.ResourceVersion, s.InFlight = i.source.ResourceVersion(), i.source.InFlight()
	s.Relists, s.Expired410, s.Forbidden, s.NotFound = t.Relists, t.Expired410, t.Forbidden, t.NotFound
	s.DecodeErrors, s.WatchRestarts, s.Repeated = t.DecodeErrors, t.WatchRestarts, t.Repeated
	s.Events, s.Bookmarks, s.Skipped, s.PausedSince = t.Events, t.Bookmarks, t.Skipped, t.PausedSince
	return s
}
