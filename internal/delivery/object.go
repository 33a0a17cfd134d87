package delivery

import (
	"container/heap"
	"slices"
	"time"
)

// object is the queue of one object from the failure of an event until all of them are
// settled. Its lane continues without it.
type object struct {
	lane  uint64 // the Item.Lane of its events
	queue fifo   // not in flight; empty only while the rest of them are
	due   time.Time

	// alone: the sink refused the first event without naming it, so it is sent alone.
	alone bool

	// failedAt is the number of writes sent when the first event failed; -1: it has
	// not failed.
	failedAt int64
}

// passed notes that the first event was settled; the next one has not failed.
func (o *object) passed() { o.alone, o.failedAt = false, -1 }

// free reports whether the first event has not failed.
func (o *object) free() bool { return !o.alone && o.failedAt < 0 }

func (o *object) position() uint64 { return o.queue.at(0).item.Position }

// most returns the number of events of the object for one write: a failed event is sent
// without later ones.
func (o *object) most(limit int) int {
	if o.free() {
		return limit
	}
	return 1
}

// suspect reports whether events of a write sent after the failure of the first event
// were accepted: the cause is then likely the event, not the sink.
func (o *object) suspect(fruitful int64) bool {
	return o.failedAt >= 0 && o.failedAt < fruitful
}

// detached has a lane's objects with queues of their own. Those without an event in
// flight are in one of the heaps.
type detached struct {
	byLane map[uint64]*object
	due    objectHeap // first event failed; by due time, then by position
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

// nextDue removes the object that is due first from its heap, if it is due.
func (d *detached) nextDue(now time.Time) *object {
	if d.due.Len() == 0 || d.due.objects[0].due.After(now) {
		return nil
	}
	return heap.Pop(&d.due).(*object)
}

// nextFree removes the free object with the oldest event from its heap.
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

// back adds an object that is in no heap. One without events returns to its lane.
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

// take removes an object from its heap. Not ok: an event of it is in flight.
func (d *detached) take(o *object) (ok bool) {
	for _, h := range [...]*objectHeap{&d.due, &d.free} {
		if i := slices.Index(h.objects, o); i >= 0 {
			heap.Remove(h, i)
			return true
		}
	}
	return false
}

func (d *detached) force(now time.Time) {
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
