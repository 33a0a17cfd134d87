package dynamicfactory

import (
	"cmp"
	"slices"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

// State is the activity of an informer.
type State = rawwatch.State

// The states of an informer.
const (
	StateWaiting    = rawwatch.Waiting    // not started, or the resource is not served
	StateListing    = rawwatch.Listing    // the first list, or one after lost history
	StateWatching   = rawwatch.Watching   // live
	StateForbidden  = rawwatch.Forbidden  // rejected with 401 or 403; retried
	StateBackingOff = rawwatch.BackingOff // another failure; retried
	StateForeign    = rawwatch.Foreign    // ErrForeignCluster; retried
	StateStopped    = rawwatch.Stopped
)

// WatchStatus is the status of an informer's lists and watches. An informer of New has
// State (waiting, listing, watching or stopped) and ResourceVersion alone.
type WatchStatus = rawwatch.Status

// Counters count since the start of an informer.
type Counters = rawwatch.Counters

// Status is the status of an informer.
type Status struct {
	Key           Key   `json:"-"`
	Subscriptions int   `json:"-"`
	Objects       int   `json:"objects"` // in the cache
	Bytes         int64 `json:"bytes"`   // of compact objects in the cache; 0 for others
	WatchStatus
}

// Statuses returns the status of every informer, in the order of their keys. It visits
// every cached object: call it every few seconds at most.
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
	s.WatchStatus = i.source.Status()
	return s
}
