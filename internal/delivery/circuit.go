package delivery

import (
	"math"
	"time"
)

// phase is the state of the sink as a whole.
type phase int

const (
	flowing phase = iota
	backingOff
	paused
)

// circuit bounds the size of the next write by the outcomes of earlier ones. It is not
// safe for concurrent use.
//
// While the sink flows, there is no bound. After a failure of the whole sink nothing is
// written for a delay, then one event at a time (a probe). The first answered probe
// closes the circuit. Batches then double from there: a receiver that restarts gets a
// gradual load, and one that fails on large batches still makes progress.
type circuit struct {
	retry *Retry

	phase    phase
	reason   string    // of a phase other than flowing
	since    time.Time // when the phase began
	down     time.Time // when the outage began, in phases other than flowing
	until    time.Time // nothing is written before
	attempts int       // failures, or refused probes, in a row
	probing  bool      // the probe is in flight
	ramp     int       // most events in one write; 0: no limit

	// epoch numbers the outages. Writes of several lanes that fail together belong to
	// one epoch, and count as one failure.
	epoch uint64
}

// ticket is the state of the circuit at the start of a write.
type ticket struct {
	epoch uint64
	probe bool
}

// admit returns how many events the next write may hold; 0: none now.
func (c *circuit) admit(now time.Time) int {
	switch {
	case c.phase == flowing && c.ramp == 0:
		return math.MaxInt
	case c.phase == flowing:
		return c.ramp
	case c.probing || now.Before(c.until):
		return 0
	default:
		return 1
	}
}

func (c *circuit) start() ticket {
	c.probing = c.phase != flowing
	return ticket{epoch: c.epoch, probe: c.probing}
}

// end notes that a write has returned. One of answered, fail and pause follows, if the
// outcome shows anything about the sink.
func (c *circuit) end(t ticket) {
	if t.probe {
		c.probing = false
	}
}

// answered notes that the destination accepted or refused events. If that ended an outage,
// it returns its duration, which is not 0. full is the size from which the ramp is no limit.
//
// A write sent before the outage proves nothing about the time after it.
func (c *circuit) answered(t ticket, now time.Time, full int) (outage time.Duration) {
	if t.epoch != c.epoch {
		return 0
	}
	if c.phase == flowing {
		if c.ramp *= 2; c.ramp >= full {
			c.ramp = 0
		}
		return 0
	}
	c.phase, c.since, c.until = flowing, now, time.Time{}
	c.attempts, c.reason = 0, ""
	if c.ramp = 2; c.ramp >= full {
		c.ramp = 0
	}
	return max(now.Sub(c.down), 1)
}

// fail notes a failure of the whole sink that may pass. after is the delay that the
// destination asked for; 0: none. It reports whether the phase changed.
func (c *circuit) fail(t ticket, now time.Time, after time.Duration, reason string) bool {
	late := t.epoch != c.epoch && c.phase != flowing
	if late {
		if after > 0 && c.phase == backingOff {
			if until := now.Add(asked(after)); until.After(c.until) {
				c.until = until
			}
		}
		return false
	}
	changed := c.enter(backingOff, now, reason)
	d := c.retry.delay(c.attempts)
	if after > 0 {
		d = asked(after)
	}
	c.until = now.Add(d)
	return changed
}

// pause notes a failure that an operator must fix. It reports whether the phase changed.
func (c *circuit) pause(t ticket, now time.Time, reason string) bool {
	if t.epoch != c.epoch && c.phase == paused {
		return false
	}
	changed := c.enter(paused, now, reason)
	c.until = now.Add(c.retry.probe(c.attempts))
	return changed
}

func (c *circuit) enter(p phase, now time.Time, reason string) (changed bool) {
	c.epoch++
	c.ramp = 1
	c.reason = reason
	if c.phase == flowing {
		c.down = now
	}
	if changed = c.phase != p; changed {
		c.phase, c.since, c.attempts = p, now, 0
	}
	c.attempts++
	return changed
}

func (c *circuit) resume(now time.Time) {
	if c.phase != flowing {
		c.until = now
	}
}

// restore continues the schedule of an earlier run. A paused sink is probed at once:
// operators restart to force an attempt. down is when the outage began, zero if that is not known.
func (c *circuit) restore(p phase, now, down time.Time, attempts int, next time.Time, reason string) {
	if p == flowing {
		return
	}
	c.enter(p, now, reason)
	if !down.IsZero() && down.Before(now) {
		c.down = down
	}
	c.attempts = max(attempts, 1)
	c.until = now
	if p == backingOff {
		c.until = next
	}
}

// clampTime keeps t within [now, now+most], and measures it from now on by the monotonic clock: the wall
// clock may be set back.
func clampTime(t, now time.Time, most time.Duration) time.Time {
	switch {
	case t.Before(now):
		return now
	case t.After(now.Add(most)):
		return now.Add(most)
	default:
		return now.Add(t.Sub(now))
	}
}

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

// next returns when so many events may be written, at most Events; zero without a bound.
func (r *rate) next(events int) time.Time {
	if r.Events == 0 {
		return time.Time{}
	}
	return r.full.Add(-time.Duration(r.Events-events) * r.interval())
}

// within returns how many events may be written together after so long, at least one.
func (r *rate) within(wait time.Duration) int {
	if r.Events == 0 {
		return math.MaxInt
	}
	return min(max(int(wait/r.interval()), 1), r.Events)
}

// reasonOnRequest is the reason of a pause that an operator asked for.
const reasonOnRequest = "on request; 'watcherd sinks resume' ends it"

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
	case s.State == Running && e.held+s.Blocked > e.inFlightEvents && e.rate.admit(now) < e.worth():
		s.State, s.NextAttempt = RateLimited, e.rate.next(e.worth())
	}
}
