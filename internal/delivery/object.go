package delivery

import (
	"container/heap"
	"slices"
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

	// The first event failed when the engine had sent so many writes; -1: nothing
	// is known against it.
	failedAt int64
}

// passed notes that the first event was accepted or given up: nothing is known
// against the one after it.
func (o *object) passed() { o.alone, o.failedAt = false, -1 }

// free reports whether nothing is known against the first event.
func (o *object) free() bool { return !o.alone && o.failedAt < 0 }

// position is that of the first event.
func (o *object) position() uint64 { return o.queue.at(0).item.Position }

// most is how many events of the object may go out in one write. While the first
// one's fate is open the others have no business in it.
func (o *object) most(limit int) int {
	if o.free() {
		return limit
	}
	return 1
}

// suspect reports whether a write that was sent after the first event failed was
// fruitful: then the failure is likely the event's own and not the sink's.
func (o *object) suspect(fruitful int64) bool {
	return o.failedAt >= 0 && o.failedAt < fruitful
}

// detached holds a lane's objects with queues of their own. Those of which no event
// is in flight are in one of the heaps.
type detached struct {
	byLane map[uint64]*object
	due    objectHeap // first event failed; by when it is due, then by position
	free   objectHeap // the others; by the position of the first event
}

func newDetached() detached {
	return detached{
		byLane: map[uint64]*object{},
		due: objectHeap{less: func(a, b *object) bool {
			return a.due.Before(b.due) || a.due.Equal(b.due) && a.position() < b.position()
		}},
		free: objectHeap{less: func(a, b *object) bool { return a.position() < b.position() }},
	}
}

func (d *detached) get(lane uint64) *object { return d.byLane[lane] }

// add gives the object of e a queue of its own, with e as its first event.
func (d *detached) add(e *entry, due time.Time, alone bool, failedAt int64) {
	o := &object{lane: e.item.Lane, due: due, alone: alone, failedAt: failedAt}
	d.byLane[o.lane] = o
	o.queue.push(e)
	d.back(o)
}

// nextDue takes the object that is due first out of its heap, if it is due.
func (d *detached) nextDue(now time.Time) *object {
	if d.due.Len() == 0 || d.due.objects[0].due.After(now) {
		return nil
	}
	return heap.Pop(&d.due).(*object)
}

// nextFree takes the free object with the oldest event out of its heap.
func (d *detached) nextFree() *object {
	if d.free.Len() == 0 {
		return nil
	}
	return heap.Pop(&d.free).(*object)
}

// older reports whether a free object has an event older than this one.
func (d *detached) older(en *entry) bool {
	return d.free.Len() > 0 && d.free.objects[0].position() < en.item.Position
}

// back takes in an object that is in no heap. One of which nothing is left to
// deliver returns to its lane.
func (d *detached) back(o *object) {
	switch {
	case o.queue.len() == 0:
		delete(d.byLane, o.lane)
	case o.free():
		heap.Push(&d.free, o)
	default:
		heap.Push(&d.due, o)
	}
}

// take takes an object out of its heap. Not ok: an event of it is in flight.
func (d *detached) take(o *object) (ok bool) {
	for _, h := range [...]*objectHeap{&d.due, &d.free} {
		if i := slices.Index(h.objects, o); i >= 0 {
			heap.Remove(h, i)
			return true
		}
	}
	return false
}

// hurry makes every object due.
func (d *detached) hurry(now time.Time) {
	for _, o := range d.due.objects {
		o.due = now
	}
	heap.Init(&d.due)
}

// objectHeap is for container/heap.
type objectHeap struct {
	objects []*object
	less    func(a, b *object) bool
}

func (h *objectHeap) Len() int           { return len(h.objects) }
func (h *objectHeap) Less(i, j int) bool { return h.less(h.objects[i], h.objects[j]) }
func (h *objectHeap) Swap(i, j int)      { h.objects[i], h.objects[j] = h.objects[j], h.objects[i] }
func (h *objectHeap) Push(x any)         { h.objects = append(h.objects, x.(*object)) }

func (h *objectHeap) Pop() any {
	last := len(h.objects) - 1
	o := h.objects[last]
	h.objects[last] = nil
	h.objects = h.objects[:last]
	return o
}
