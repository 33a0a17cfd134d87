package delivery

import (
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

const (
	// panicsInARow is how many different events may make the sink panic, with none
	// accepted in between, before the sink is taken to be at fault and paused.
	panicsInARow = 3

	// refusedInARow is the same for objects of which an event is refused.
	refusedInARow = 20

	// doubtTime is how long refused events of several objects are tried, with none
	// accepted in between and no other object left to try, before they become dead
	// letters all the same.
	doubtTime = 20 * time.Second
)

// doubt counts a refusal that may be the sink's fault: nothing was accepted since
// the event failed first.
func (e *engine) doubt(en *entry, cause error) {
	e.heard[en.item.Lane] = struct{}{}
	if !isPanic(cause) {
		e.refused[en.item.Lane] = struct{}{}
		e.refusedErr = cause
	} else if en.refusals == 0 {
		e.panics++
	}
}

// broken reports whether the sink failed on too many events in a row.
func (e *engine) broken() bool {
	return e.panics >= panicsInARow || len(e.refused) >= refusedInARow
}

// tripped is why the sink has to pause after failures in a row, or nil.
func (e *engine) tripped() error {
	switch {
	case e.panics >= panicsInARow:
		return fmt.Errorf("the sink panicked on %d events in a row", panicsInARow)
	case len(e.refused) >= refusedInARow:
		return fmt.Errorf("the receiver refused events of %d objects in a row, the last one with: %w", refusedInARow, e.refusedErr)
	}
	return nil
}

// foresee counts the refusals of a batch of which nothing was accepted, before its
// events are judged one by one. Those for size may yet lead to smaller events.
func (e *engine) foresee(b *batch, named map[int]error) {
	for i, en := range b.entries {
		o, err := b.object(i), failure(i, named, nil)
		if class, _ := sinks.Classify(err); class == sinks.ClassPoison && !sinks.IsTooLarge(err) && (o == nil || !o.suspect(e.fruitful)) {
			e.doubt(en, err)
		}
	}
}

// convicts reports whether an event that was refused often enough becomes a dead
// letter though nothing was accepted since: no event of another object is left to
// try, and it is the only one, or time is up.
func (e *engine) convicts(en *entry, now time.Time) bool {
	return (len(e.refused) <= 1 || now.Sub(en.first) >= doubtTime) && !e.unheard()
}

// unheard reports whether an event waits, or is in flight, of an object of which the
// sink has refused none since it last accepted one.
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
