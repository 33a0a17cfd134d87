package delivery

import (
	"slices"
	"sync"
	"time"
)

// Failure is an object with a failed event that waits for a retry.
type Failure struct {
	Subject   string    `json:"subject,omitempty"` // empty: not yet known, after a restart
	Sequence  uint64    `json:"sequence"`          // of the event
	Since     time.Time `json:"since"`             // when the event failed first
	Attempts  int       `json:"attempts"`          // of the event, failed ones
	LastError string    `json:"lastError,omitempty"`
	Next      time.Time `json:"next"`   // when the event is due
	Behind    int       `json:"behind"` // later events of the object that wait
}

const (
	maxFailures     = 1024 // failing objects known by name
	maxFailureError = 256
)

// failures are the failing objects of a status. The engine writes them, any goroutine
// reads them.
type failures struct {
	mu     sync.Mutex
	byLane map[uint64]*Failure // guarded by mu for others than the engine
}

func (f *failures) add(en *entry, next time.Time, cause error, behind int) {
	known := f.byLane[en.item.Lane]
	if known == nil {
		if len(f.byLane) >= maxFailures {
			return
		}
		known = &Failure{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byLane[en.item.Lane] = known
	if en.event != nil {
		known.Subject = en.event.Subject()
	}
	if cause != nil {
		known.LastError = cut(excerpt(cause), maxFailureError)
	}
	known.Sequence, known.Since, known.Attempts = en.item.Sequence, en.first, en.tries
	known.Next, known.Behind = next, max(known.Behind, behind)
}

// follow notes that one more event waits behind one that failed.
func (f *failures) follow(lane uint64) {
	if known := f.byLane[lane]; known != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		known.Behind++
	}
}

// remove notes that a failed event was delivered or became a dead letter.
func (f *failures) remove(en *entry) {
	if len(f.byLane) == 0 {
		return
	}
	if known := f.byLane[en.item.Lane]; known != nil && known.Sequence == en.item.Sequence {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.byLane, en.item.Lane)
	}
}

// longest returns the number of failing objects, and those that fail the longest.
func (f *failures) longest(most int) (n int, list []Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.byLane {
		list = append(list, *known)
	}
	slices.SortFunc(list, func(a, b Failure) int { return a.Since.Compare(b.Since) })
	return len(list), list[:min(len(list), most)]
}
