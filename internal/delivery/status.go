package delivery

import (
	"slices"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

// State is the state of a worker.
type State string

// The states. BackingOff and Paused last until the sink answers, not only until a probe
// is sent.
const (
	Stopped    State = "stopped"     // Run has not been called, or has returned
	Opening    State = "opening"     // the sink is not yet open
	Idle       State = "idle"        // nothing to deliver
	Running    State = "running"     // delivering
	BackingOff State = "backing-off" // the sink fails; retries are scheduled
	Paused     State = "paused"      // the sink fails until an operator fixes it; probed occasionally
	Draining   State = "draining"    // Run is about to return

	RateLimited State = "rate-limited" // events wait for the rate that Config.Rate allows
)

var states = [...]State{Stopped, Opening, Idle, Running, BackingOff, Paused, Draining, RateLimited}

// Status is a snapshot of a worker.
type Status struct {
	Name   string
	State  State
	Reason string    // of BackingOff or Paused
	Since  time.Time // when the state began

	OnRequest bool // [Worker.Pause] holds

	Attempts    int       // failures in a row of the sink as a whole
	NextAttempt time.Time // while BackingOff, Paused or RateLimited

	LastError     string // of any write, fixed or not
	LastErrorTime time.Time
	hidden        uint64    // Config.Hidden at the time of the texts
	LastSuccess   time.Time // when the sink last accepted an event

	InFlight    int    // events being written
	Blocked     int    // events that wait for a retry, or behind one that does
	Stalled     bool   // reading is stopped because too many are blocked
	Delivered   uint64 // events accepted since Run was called
	DeadLetters uint64 // since Run was called

	FailingObjects int       // 1,024 at most
	Failing        []Failure // those that fail the longest

	Queue store.Stats
}

// failingShown is the length of Status.Failing.
const failingShown = 5

func (p phase) state() State {
	switch p {
	case backingOff:
		return BackingOff
	case paused:
		return Paused
	default:
		return Running
	}
}

func (s State) phase() phase {
	switch s {
	case BackingOff:
		return backingOff
	case Paused:
		return paused
	default:
		return flowing
	}
}

func (e *engine) status(now time.Time) Status {
	s := Status{
		State:       e.circuit.phase.state(),
		Reason:      e.circuit.reason,
		Attempts:    e.circuit.attempts,
		NextAttempt: e.circuit.until,
		LastError:   e.lastError, LastErrorTime: e.lastErrorTime, LastSuccess: e.lastSuccess,
		hidden:    e.hidden,
		InFlight:  e.inFlightEvents,
		Blocked:   len(e.away) + e.fetched,
		Stalled:   e.stalled(),
		Delivered: e.delivered, DeadLetters: e.deadLetters,
	}
	if s.State == Running && e.inFlight == 0 && e.held == 0 && s.Blocked == 0 {
		s.State = Idle
	}
	e.holdBack(&s, now)
	return s
}

func (w *Worker) publish(s Status) {
	s.Name = w.cfg.Name
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.Since = w.status.Since; s.State != w.status.State {
		s.Since = time.Now()
	}
	limited := s.State == RateLimited && w.status.State != RateLimited
	w.status = s
	if w.metrics != nil {
		if limited {
			w.metrics.limited.Inc()
		}
		w.metrics.setState(s.State)
		w.metrics.blocked.Set(float64(s.Blocked))
		set(w.metrics.stalled, s.Stalled)
	}
}

// Status returns the worker's status. It may be called at any time.
func (w *Worker) Status() Status {
	w.mu.Lock()
	s, f := w.status, w.failures
	w.mu.Unlock()
	if f != nil && s.State != Stopped {
		s.FailingObjects, s.Failing = f.longest(failingShown)
	}
	if s.hidden != w.cfg.hiddenNow() {
		s.withhold()
	}
	s.OnRequest = w.onRequest.Load()
	s.Queue = w.cfg.Queue.Stats()
	return s
}

// Failure is an object with a failed event that waits for a retry.
type Failure struct {
	Subject   string    // empty: not yet known, after a restart
	Sequence  uint64    // of the event
	Since     time.Time // when the event failed first
	Attempts  int       // of the event, failed ones
	LastError string
	Next      time.Time // when the event is due
	Behind    int       // later events of the object that wait
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
		known.Subject = cut(en.event.Subject(), maxShown)
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

func (f *failures) longest(most int) (n int, list []Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.byLane {
		list = append(list, *known)
	}
	slices.SortFunc(list, func(a, b Failure) int { return a.Since.Compare(b.Since) })
	return len(list), list[:min(len(list), most)]
}
