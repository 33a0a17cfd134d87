package rawwatch

import (
	"sync"
	"time"
)

// State is the activity of a source.
type State string

// The states of a source.
const (
	Waiting    State = "waiting"     // not started, or the resource is not served
	Listing    State = "listing"     // reading a list
	Watching   State = "watching"    // the watch is established
	Forbidden  State = "forbidden"   // rejected with 401 or 403; retried
	BackingOff State = "backing-off" // another failure; retried
	Foreign    State = "foreign"     // the server belongs to another cluster than the recorded state; retried
	Stopped    State = "stopped"
)

// Status is the status of a source.
type Status struct {
	State           State     `json:"state"`
	Reason          string    `json:"reason,omitempty"`               // of a failure, in one word
	Message         string    `json:"message,omitempty"`              // of a failure, in full
	Since           time.Time `json:"since,omitzero"`                 // start of the state
	LastContact     time.Time `json:"lastContact,omitzero"`           // the last answer or event from the server
	ResourceVersion string    `json:"resourceVersion,omitempty"`      // from which a watch resumes
	Quiet           string    `json:"quietResourceVersion,omitempty"` // from which it resumes if that one has expired
	Seen            string    `json:"-"`                              // the newest that is known to have been the server's
	InFlight        int       `json:"inFlight"`                       // events forwarded and not acknowledged, with a window
	ListInFlight    bool      `json:"-"`                              // so is a list
	Apart           bool      `json:"-"`                              // the resource has a storage of its own, with later versions than that of the others
	// UnreadSince is the time up to which nothing can have been missed, while the watch fails,
	// lists again or is paused; zero: it is read, or nothing was.
	UnreadSince time.Time `json:"unreadSince,omitzero"`
	// PausedSince is the time since which the watch is not read because the window is full;
	// zero: it is read. A watch that is paused for long may lose its history.
	PausedSince time.Time `json:"pausedSince,omitzero"`

	Counters
}

// Counters count since the start of a source.
type Counters struct {
	Events       uint64 `json:"events"`       // events received
	Bookmarks    uint64 `json:"bookmarks"`    // bookmarks received
	Repeated     uint64 `json:"repeated"`     // events, or objects of a list, received again and forwarded once
	Relists      uint64 `json:"relists"`      // lists after the first
	Restarts     uint64 `json:"restarts"`     // watches established after the first
	Expired      uint64 `json:"expired"`      // requests whose history the server no longer had (410)
	Forbidden    uint64 `json:"forbidden"`    // requests rejected with 401 or 403
	NotFound     uint64 `json:"notFound"`     // requests rejected with 404
	DecodeErrors uint64 `json:"decodeErrors"` // unreadable events, objects and lists
	Skipped      uint64 `json:"skipped"`      // objects and events skipped as unreadable
}

// Add adds the counters of another source.
func (c *Counters) Add(o *Counters) {
	c.Events += o.Events
	c.Bookmarks += o.Bookmarks
	c.Repeated += o.Repeated
	c.Relists += o.Relists
	c.Restarts += o.Restarts
	c.Expired += o.Expired
	c.Forbidden += o.Forbidden
	c.NotFound += o.NotFound
	c.DecodeErrors += o.DecodeErrors
	c.Skipped += o.Skipped
}

// stats guards a source's Status, without the fields that Source.Status adds.
type stats struct {
	mu      sync.Mutex
	s       Status
	failing time.Time // since when; zero: the last attempt did not fail
	known   time.Time // up to which nothing can have been missed: the last event, bookmark, list or check of a quiet watch
	late    time.Time // when the last delay ended, or the pause that lasts began; zero: there was none since the last list
	heard   time.Time // when the last event or bookmark came
}

// drainTime is the time after a delay in which events may be those that were kept for the watch
// meanwhile: they say nothing about the present.
const drainTime = 30 * time.Second

// stallTime is the silence that counts as a delay. For most resources an API server sends a bookmark about
// once a minute.
const stallTime = 90 * time.Second

// healthy moves to a state without a failure. It returns how long there was one.
func (t *stats) healthy(state State) (failing time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.failing.IsZero() {
		failing = max(time.Since(t.failing), 1)
		t.late = time.Now()
	}
	t.failing = time.Time{}
	t.moveLocked(state, "", "")
	return failing
}

// attempt moves to a state unless the last attempt failed: that failure stays until a
// success, or the state would alternate.
func (t *stats) attempt(state State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failing.IsZero() {
		t.moveLocked(state, "", "")
	}
}

// fail moves to the state of a failure. It reports whether the failure is a new one,
// which is logged.
func (t *stats) fail(state State, reason, message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.failing.IsZero() || t.s.State != state || t.s.Reason != reason
	if t.failing.IsZero() {
		t.failing = time.Now()
	}
	t.moveLocked(state, reason, message)
	return changed
}

func (t *stats) moveLocked(state State, reason, message string) {
	if t.s.State != state {
		t.s.Since = time.Now()
	}
	t.s.State, t.s.Reason, t.s.Message = state, reason, message
}

// contact notes an answer of the server. count may change the counters.
func (t *stats) contact(count func(*Counters)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.contactLocked(count)
}

// received is contact by an event or a bookmark, by which the source has everything that happened until now,
// except soon after a delay. After a long silence it may be an old one, of a watch that was stalled. It returns
// the time up to which nothing was missed.
func (t *stats) received(count func(*Counters)) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.contactLocked(count)
	now := t.s.LastContact
	if elapsed(t.heard, now) >= stallTime && elapsed(t.known, now) >= stallTime {
		t.late = now
	}
	t.heard = now
	if now.Sub(t.late) >= drainTime {
		t.known = now
	}
	return t.known
}

// elapsed is the time between two moments, by the clock that shows more of it: the monotonic one does not
// count the time in which the machine is suspended.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// unchanged notes that the source had everything at a time, which may be before the last contact.
func (t *stats) unchanged(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.known) {
		t.known = at
	}
}

// listed is contact by a list of the state at a time.
func (t *stats) listed(at time.Time, count func(*Counters)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.contactLocked(count)
	t.known, t.late = at, time.Time{}
}

func (t *stats) contactLocked(count func(*Counters)) {
	t.s.LastContact = time.Now()
	if count != nil {
		count(&t.s.Counters)
	}
}

// knownUntil sets the time up to which nothing was missed.
func (t *stats) knownUntil(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.LastContact, t.known = at, at
}

// delayed notes that what is received next may be old.
func (t *stats) delayed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = time.Now()
}

func (t *stats) setPaused(since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.s.PausedSince, t.late = since, time.Now()
}

// get returns the status and the time up to which nothing was missed.
func (t *stats) get() (Status, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s
	if !t.failing.IsZero() || !s.PausedSince.IsZero() || s.State == Listing {
		if s.UnreadSince = t.known; !s.PausedSince.IsZero() && s.PausedSince.Before(t.known) {
			s.UnreadSince = s.PausedSince
		}
	}
	return s, t.known
}

func (t *stats) bookmarks() uint64 {
	s, _ := t.get()
	return s.Bookmarks
}
