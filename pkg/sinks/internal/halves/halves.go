// Package halves finds the event that a destination refuses a batch for, where the answer does not
// name it: it sends each half of the batch, and so on. What is accepted on the way stays so.
package halves

import (
	"errors"
	"slices"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Write sends the batch as a whole and, if the error is the fault of an event ([sinks.Poison]), in halves. Behind a
// refused event no later one of its object is sent. A [sinks.BatchError] has the results of the events that
// were sent. Any other error ends the Write: what was not sent by then fails with it.
func Write(batch []*event.Event, send func(events []*event.Event) error) error {
	w := &write{batch: batch, send: send, accepted: make([]bool, len(batch))}
	all := make([]int, len(batch))
	for i := range all {
		all[i] = i
	}
	return w.failed.End(w.run(all), w.accepted)
}

// Failures are the failures of one batch. Behind a failed event no later one of its object
// is sent. The zero value has none.
type Failures struct {
	failed map[int]error    // by index in the batch
	stuck  map[string]error // by object
}

// Set notes the failure of an event alone.
func (f *Failures) Set(i int, err error) {
	if f.failed == nil {
		f.failed, f.stuck = map[int]error{}, map[string]error{}
	}
	f.failed[i] = err
}

// Add notes the failure of an event and of its object.
func (f *Failures) Add(i int, object string, err error) {
	f.Set(i, err)
	if f.stuck[object] == nil {
		f.stuck[object] = err
	}
}

// Hold fails an event if its object had a failure, and reports whether it had.
func (f *Failures) Hold(i int, object string) bool {
	err := f.stuck[object]
	if err != nil {
		f.failed[i] = sinks.Held(err)
	}
	return err != nil
}

// Round takes, of the events that wait, the first of each object that had no failure.
func (f *Failures) Round(waiting []int, objects []string) (round, later []int) {
	taken := make(map[string]bool, len(waiting))
	for _, i := range waiting {
		switch object := objects[i]; {
		case taken[object]:
			later = append(later, i)
		case !f.Hold(i, object):
			taken[object] = true
			round = append(round, i)
		}
	}
	return round, later
}

// Any reports whether there is a failure.
func (f *Failures) Any() bool { return len(f.failed) > 0 }

// Err is nil without a failure, else a [sinks.BatchError].
func (f *Failures) Err() error {
	if !f.Any() {
		return nil
	}
	return &sinks.BatchError{Failed: f.failed}
}

// End returns what a Write returns that err ended, if it is not nil: what was neither accepted
// nor failed by then fails with it.
func (f *Failures) End(err error, accepted []bool) error {
	if err != nil && !f.Any() && !slices.Contains(accepted, true) {
		return err
	}
	for i, ok := range accepted {
		if err != nil && !ok && f.failed[i] == nil {
			f.Set(i, err)
		}
	}
	return f.Err()
}

// write is one batch in flight.
type write struct {
	batch    []*event.Event
	send     func(events []*event.Event) error
	accepted []bool // by index in the batch
	failed   Failures
}

// run sends the events with these indexes. The error is one that ends the Write.
func (w *write) run(at []int) error {
	due, events := make([]int, 0, len(at)), make([]*event.Event, 0, len(at))
	for _, i := range at {
		e := w.batch[i]
		if w.failed.Any() && w.failed.Hold(i, e.PartitionKey()) {
			continue
		}
		due, events = append(due, i), append(events, e)
	}
	if len(due) == 0 {
		return nil
	}
	err := w.send(events)
	if err == nil {
		for _, i := range due {
			w.accepted[i] = true
		}
		return nil
	}
	if b, ok := errors.AsType[*sinks.BatchError](err); ok {
		for n, i := range due {
			if cause := b.Failed[n]; cause != nil {
				w.failed.Add(i, events[n].PartitionKey(), cause)
			} else {
				w.accepted[i] = true
			}
		}
		return nil
	}
	if class, _ := sinks.Classify(err); class != sinks.ClassPoison {
		return err
	}
	if len(due) > 1 {
		if err := w.run(due[:len(due)/2]); err != nil {
			return err
		}
		return w.run(due[len(due)/2:])
	}
	w.failed.Add(due[0], events[0].PartitionKey(), err)
	return nil
}
