// Package halves finds the event that a destination refuses a batch for, where the answer does not
// name it: it sends each half of the batch, and so on. What is accepted on the way stays so.
package halves

import (
	"slices"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Write sends the batch as a whole and, if the error is the fault of an event ([sinks.Poison]), in halves. Behind a
// refused event no later one of its object is sent. Any other error ends the Write: what was not
// sent by then fails with it.
func Write(batch []*event.Event, send func(events []*event.Event) error) error {
	w := &write{batch: batch, send: send, settled: make([]bool, len(batch))}
	all := make([]int, len(batch))
	for i := range all {
		all[i] = i
	}
	err := w.run(all)
	if !slices.Contains(w.settled, true) {
		return err
	}
	for i, settled := range w.settled {
		if !settled {
			w.failed.Set(i, err)
		}
	}
	return w.failed.Err()
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

// Any reports whether there is a failure.
func (f *Failures) Any() bool { return len(f.failed) > 0 }

// Err is nil without a failure, else a [sinks.BatchError].
func (f *Failures) Err() error {
	if !f.Any() {
		return nil
	}
	return &sinks.BatchError{Failed: f.failed}
}

// write is one batch in flight.
type write struct {
	batch   []*event.Event
	send    func(events []*event.Event) error
	settled []bool // by index in the batch: accepted, or in failed
	failed  Failures
}

// run sends the events with these indexes. The error is one that ends the Write.
func (w *write) run(at []int) error {
	due, events := make([]int, 0, len(at)), make([]*event.Event, 0, len(at))
	for _, i := range at {
		e := w.batch[i]
		if w.failed.Any() && w.failed.Hold(i, e.PartitionKey()) {
			w.settled[i] = true
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
			w.settled[i] = true
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
	w.settled[due[0]] = true
	return nil
}
