package rawwatch

import (
	"sync"
	"time"
)

// State is what a source is doing.
type State string

// The states of a source.
const (
	Waiting    State = "waiting"     // not begun, or the resource is not served
	Listing    State = "listing"     // reading a list
	Watching   State = "watching"    // the watch is established
	Forbidden  State = "forbidden"   // the server refuses: 401 or 403
	BackingOff State = "backing-off" // a failure; the next attempt comes by itself
	Foreign    State = "foreign"     // the server belongs to another cluster than the stored state
	Stopped    State = "stopped"
)

// Stats is what a source has been through. The counters only grow.
type Stats struct {
	State           State
	Reason, Message string    // why it is in that state, if it is not a good one
	Since           time.Time // when it came into that state
	LastContact     time.Time // when the server last answered or sent something
	PausedSince     time.Time // since when the window has been full; zero: it is not
	Known           time.Time // up to when nothing can have been missed: the last event, bookmark, list or look at a quiet watch

	Relists       uint64 // lists after the first
	Expired410    uint64 // times that the server no longer had the history
	Forbidden     uint64 // requests refused with 401 or 403
	NotFound      uint64 // requests refused with 404
	DecodeErrors  uint64 // events, objects and lists that could not be read
	Skipped       uint64 // objects and events that were left out because they could not be read
	WatchRestarts uint64 // watches established after the first
	Repeated      uint64 // events that came twice and were handed on once
	Events        uint64 // events received
	Bookmarks     uint64 // bookmarks received
}

// stats guards Stats.
type stats struct {
	mu      sync.Mutex
	s       Stats
	failing bool
}

func newStats() *stats {
	return &stats{s: Stats{State: Waiting, Since: time.Now()}}
}

// well moves to a state in which nothing is wrong. It reports whether something was.
func (t *stats) well(state State) (recovered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	recovered, t.failing = t.failing, false
	t.moveLocked(state, "", "")
	return recovered
}

// attempt moves to a state unless the last attempt failed: then it has to succeed
// first, or the state would jump to and fro.
func (t *stats) attempt(state State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.failing {
		t.moveLocked(state, "", "")
	}
}

// fail moves to a state in which something is wrong. It reports whether that is
// news: only the change is worth a log line.
func (t *stats) fail(state State, reason, message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := !t.failing || t.s.State != state || t.s.Reason != reason
	t.failing = true
	t.moveLocked(state, reason, message)
	return news
}

func (t *stats) moveLocked(state State, reason, message string) {
	if t.s.State != state {
		t.s.Since = time.Now()
	}
	t.s.State, t.s.Reason, t.s.Message = state, reason, message
}

// contact notes that the server answered, and count may change the counters.
func (t *stats) contact(count func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.LastContact = time.Now()
	if count != nil {
		count(&t.s)
	}
}

// pause notes that the stream is not read because the window is full.
func (t *stats) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.PausedSince = time.Now()
}

func (t *stats) unpause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.PausedSince = time.Time{}
}

// heard is contact by which the source knows what happened up to now.
func (t *stats) heard(count func(*Stats)) {
	t.contact(func(s *Stats) {
		s.Known = s.LastContact
		if count != nil {
			count(s)
		}
	})
}

func (t *stats) get() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}
