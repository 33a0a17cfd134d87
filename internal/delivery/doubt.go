package delivery

import (
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

const (
	// panicsInARow is the number of events that may panic, with none accepted in
	// between, before the sink pauses.
	panicsInARow = 3

	// refusedInARow is the same for objects with a refused event.
	refusedInARow = 20

	// doubtTime is how long refused events of several objects are retried, with none
	// accepted in between and no other object to try, before they become dead letters.
	doubtTime = 20 * time.Second
)

// doubt counts a refusal that may be the sink's fault: no event was accepted since this
// one failed first.
func (e *engine) doubt(en *entry, cause error) {
	e.heard[en.item.Lane] = struct{}{}
	if !isPanic(cause) {
		e.refused[en.item.Lane] = struct{}{}
		e.refusedErr = cause
	} else if en.refusals == 0 {
		e.panics++
	}
}

// tripped returns the reason to pause after failures in a row, or nil.
func (e *engine) tripped() error {
	switch {
	case e.panics >= panicsInARow:
		return fmt.Errorf("the sink panicked on %d events in a row", panicsInARow)
	case len(e.refused) >= refusedInARow:
		return fmt.Errorf("the receiver refused events of %d objects in a row, the last one with: %w", refusedInARow, e.refusedErr)
	}
	return nil
}

// foresee counts the refusals of a batch without an accepted event, before its events
// are judged. Refusals for size do not count: the event may be truncated.
func (e *engine) foresee(b *batch, named map[int]error) {
	for i, en := range b.entries {
		o, err := b.object(i), failure(i, named, nil)
		if class, _ := sinks.Classify(err); class == sinks.ClassPoison && !sinks.IsTooLarge(err) && (o == nil || !o.suspect(e.fruitful)) {
			e.doubt(en, err)
		}
	}
}

// convicts reports whether a refused event becomes a dead letter although no other was
// accepted since: no other object is left to try, and it is the only one or time is up.
func (e *engine) convicts(en *entry, now time.Time) bool {
	return (len(e.refused) <= 1 || now.Sub(en.first) >= doubtTime) && !e.unheard()
}

// unheard reports whether there is an event of an object without a refusal since the
// last acceptance.
func (e *engine) unheard() bool {
	is := func(lane uint64) bool {
		_, heard := e.heard[lane]
		return !heard
	}
	for _, l := range e.lanes {
		for i := range l.pending.len() {
			if is(l.pending.at(i).item.Lane) {
				return true
			}
		}
		for lane := range l.detached.byLane {
			if is(lane) {
				return true
			}
		}
		if l.busy && slices.ContainsFunc(l.batch.entries, func(en *entry) bool { return is(en.item.Lane) }) {
			return true
		}
	}
	return false
}
