package delivery

import (
	"fmt"
	"time"
)

const (
	// panicsInARow is how many different events may make the sink panic, with none
	// accepted in between, before the sink is taken to be at fault and paused.
	panicsInARow = 3

	// refusedInARow is the same for objects of which an event is refused.
	refusedInARow = 20

	// doubtTime is how long refused events of several objects are tried, with none
	// accepted in between, before they become dead letters all the same.
	doubtTime = 20 * time.Second
)

// doubt counts a refusal that may be the sink's fault: nothing was accepted since
// the event failed first.
func (e *engine) doubt(en *entry, cause error) {
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

// convicts reports whether an event that was refused often enough becomes a dead
// letter though nothing was accepted since: it is the only one, or time is up.
func (e *engine) convicts(en *entry, now time.Time) bool {
	return len(e.refused) <= 1 || now.Sub(en.first) >= doubtTime
}
