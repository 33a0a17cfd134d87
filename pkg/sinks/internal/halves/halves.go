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
	w := &write{batch: batch, send: send, settled: make([]bool, len(batch)), failed: map[int]error{}}
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
			w.failed[i] = err
		}
	}
	if len(w.failed) == 0 {
		return nil
	}
	return &sinks.BatchError{Failed: w.failed}
}

// write is one batch in flight.
type write struct {
	batch   []*event.Event
	send    func(events []*event.Event) error
	settled []bool // by index in the batch: accepted, or in failed
	failed  map[int]error
	stuck   map[string]error // objects with a failure
}

// run sends the events with these indexes. The error is one that ends the Write.
func (w *write) run(at []int) error {
	due, events := make([]int, 0, len(at)), make([]*event.Event, 0, len(at))
	for _, i := range at {
		e := w.batch[i]
		if w.stuck != nil {
			if err := w.stuck[e.PartitionKey()]; err != nil {
				w.failed[i], w.settled[i] = sinks.Held(err), true
				continue
			}
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
	if w.stuck == nil {
		w.stuck = map[string]error{}
	}
	w.failed[due[0]], w.settled[due[0]], w.stuck[events[0].PartitionKey()] = err, true, err
	return nil
}
