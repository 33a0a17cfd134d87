package delivery

import (
	"math"
	"time"
)

// Rate bounds the events that are written, failed ones included: a token bucket that holds
// Events and is filled again in Per. The zero value is no bound.
type Rate struct {
	Events int
	Per    time.Duration
}

// rate is the state of a Rate: exact, without fractions of tokens.
type rate struct {
	Rate
	full time.Time // when the bucket is full again
}

// interval is the time in which one token comes, rounded up.
func (r *rate) interval() time.Duration {
	return (r.Per + time.Duration(r.Events) - 1) / time.Duration(r.Events)
}

// admit returns how many events may be written now.
func (r *rate) admit(now time.Time) int {
	if r.Events == 0 {
		return math.MaxInt
	}
	missing := max(r.full.Sub(now), 0)
	return r.Events - int((missing+r.interval()-1)/r.interval())
}

func (r *rate) take(now time.Time, events int) {
	if r.Events == 0 {
		return
	}
	if r.full.Before(now) {
		r.full = now
	}
	r.full = r.full.Add(time.Duration(events) * r.interval())
}

// next returns when one event may be written; zero without a bound.
func (r *rate) next() time.Time {
	if r.Events == 0 {
		return time.Time{}
	}
	return r.full.Add(-time.Duration(r.Events-1) * r.interval())
}

// reasonOnRequest is the reason of a pause that an operator asked for.
const reasonOnRequest = "paused on request; 'watcherd sinks resume' ends it"

// Pause ends deliveries until Resume. Writes in flight finish. It holds for the worker
// alone: [Config.Paused] makes it last.
func (w *Worker) Pause() {
	w.request(true)
	select {
	case w.pause <- struct{}{}:
	default: // one is pending
	}
}

func (w *Worker) request(pause bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onRequest.Store(pause)
	if w.metrics != nil {
		set(w.metrics.onRequest, pause)
	}
}

// holdBack adds to a status the reason that nothing is written although the sink does not fail.
func (e *engine) holdBack(s *Status, now time.Time) {
	switch {
	case e.onRequest.Load():
		s.State, s.Reason, s.Attempts, s.NextAttempt = Paused, reasonOnRequest, 0, time.Time{}
	case s.State == Running && e.held+s.Blocked > e.inFlightEvents && e.rate.admit(now) <= 0:
		s.State, s.NextAttempt = RateLimited, e.rate.next()
	}
}
