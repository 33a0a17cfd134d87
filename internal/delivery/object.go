package delivery

import (
	"container/heap"
	"time"
)

// object is a queue of its own for the events of one object, from the moment
// one of them failed until all of them are through. Its lane goes on without it.
type object struct {
	lane  uint64 // the Item.Lane of its events
	queue fifo   // not in flight; empty only while the rest of them are
	due   time.Time

	// alone: the sink refused the first event without naming it, so it must not
	// take others down again.
	alone bool

	// The first event failed when the engine had counted so many fruitful
	// writes; -1: it did not fail.
	failedAt int64
}

// passed notes that the first event was accepted or given up: nothing is known
// against the one after it.
func (o *object) passed() { o.alone, o.failedAt = false, -1 }

// most is how many events of the object may go out in one write. While the first
// one's fate is open the others have no business in it.
func (o *object) most(limit int) int {
	if o.alone || o.failedAt >= 0 {
		return 1
	}
	return limit
}

// suspect reports whether writes were fruitful after the first event failed: then
// its failures are likely its own and not the sink's.
func (o *object) suspect(fruitful int64) bool {
	return o.failedAt >= 0 && o.failedAt < fruitful
}

// detached holds a lane's objects with queues of their own.
type detached struct {
	byLane map[uint64]*object
	due    dueHeap // those of which no event is in flight
}

func newDetached() detached { return detached{byLane: map[uint64]*object{}} }

func (d *detached) get(lane uint64) *object { return d.byLane[lane] }

// add gives the object of e a queue of its own, with e as its first event.
func (d *detached) add(e *entry, due time.Time, alone bool, failedAt int64) {
	o := &object{lane: e.item.Lane, due: due, alone: alone, failedAt: failedAt}
	d.byLane[o.lane] = o
	o.queue.push(e)
	heap.Push(&d.due, o)
}

// next takes the object that is due first out of the heap, if it is due.
func (d *detached) next(now time.Time) *object {
	if len(d.due) == 0 || d.due[0].due.After(now) {
		return nil
	}
	return heap.Pop(&d.due).(*object)
}

// back takes in an object that next returned. One of which nothing is left to
// deliver returns to its lane.
func (d *detached) back(o *object) {
	if o.queue.len() == 0 {
		delete(d.byLane, o.lane)
		return
	}
	heap.Push(&d.due, o)
}

// hurry makes every object due.
func (d *detached) hurry(now time.Time) {
	for _, o := range d.due {
		o.due = now
	}
	heap.Init(&d.due)
}

// dueHeap sorts objects by when they are due.
type dueHeap []*object

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is for container/heap.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(*object)) }

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	o := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return o
}
