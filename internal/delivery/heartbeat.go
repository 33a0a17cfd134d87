package delivery

import (
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// Heartbeat are events that the worker makes itself, so that a receiver distinguishes a sink without
// events from one that has ended. They are in no queue: one that fails is not repeated.
type Heartbeat struct {
	Every time.Duration // 0: none
	// Make makes the next one; nil: not now. It is called from one goroutine at a time.
	Make func() *event.Event
}

// beat sends a heartbeat if one is due, as long as the sink flows. It takes the first lane, whose
// events wait for it.
func (e *engine) beat(now time.Time) {
	if !e.beats() || now.Before(e.nextBeat) {
		return
	}
	e.nextBeat = now.Add(e.cfg.Heartbeat.Every)
	ev := e.cfg.Heartbeat.Make()
	if ev == nil {
		return
	}
	b := &e.lanes[0].batch
	b.reset()
	b.events, b.beat = append(b.events, ev), true
	e.send(b.lane, now)
}

// beats reports whether a heartbeat could be sent.
func (e *engine) beats() bool {
	return e.cfg.Heartbeat.Every > 0 && e.circuit.phase == flowing && !e.onRequest.Load() && !e.lanes[0].busy
}

// settleBeat settles a heartbeat. What it shows of the sink, the next write of an event shows too.
func (e *engine) settleBeat(b *batch) {
	b.lane.busy, b.beat = false, false
	e.inFlight--
	e.circuit.end(b.ticket)
	switch {
	case b.err == nil:
		e.metrics.heartbeats.Inc()
	case !e.cancelled:
		e.log.repeat("a heartbeat failed; the next one follows", b.err)
	}
}
