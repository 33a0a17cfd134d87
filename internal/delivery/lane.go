package delivery

import (
	"container/heap"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// lane is one of the sink's `concurrency` lanes: the events of its share of the
// objects, and at most one write in flight. All fields but work, and batch while it is
// in flight, belong to the engine's goroutine.
type lane struct {
	pending  fifo     // events in queue order, without those of detached objects
	detached detached // objects outside of that order

	batch batch // the write in flight; reused
	busy  bool  // batch is in flight

	cut  [sources]int // most events of a source in a write during the search for a refused one; 0: no limit
	turn int          // the first source for the next write

	work chan *batch // to the lane's goroutine; closed by the engine at the end
}

func newLane() *lane {
	l := &lane{
		detached: detached{
			byLane: map[uint64]*object{},
			due: objectHeap{less: func(a, b *object) bool {
				return a.due.Before(b.due) || a.due.Equal(b.due) && a.position() < b.position()
			}},
			free: objectHeap{less: func(a, b *object) bool { return a.position() < b.position() }},
		},
		work: make(chan *batch, 1),
	}
	l.batch.lane = l
	return l
}

// empty reports whether no event waits for a write.
func (l *lane) empty() bool {
	return l.pending.len() == 0 && l.detached.due.Len() == 0 && l.detached.free.Len() == 0
}

// flying returns the events that are being written.
func (l *lane) flying() []*entry {
	if !l.busy {
		return nil
	}
	return l.batch.entries
}

// batch is one Write. While it is in flight, the lane's goroutine reads its events and sets
// took and err, and the engine's only reads the entries. These
// are in no queue; settle requeues those that are left.
type batch struct {
	lane    *lane
	entries []*entry       // nil: accepted, a dead letter, or detached
	events  []*event.Event // of the entries
	objects []*object      // of the entries, each in one run, if they came from detached objects; else empty
	bytes   int
	from    source // of the entries
	beat    bool   // the event is a heartbeat, and there are no entries
	ticket  ticket
	number  int64  // among the writes of all lanes
	hidden  uint64 // Config.Hidden when it was sent

	began time.Time
	took  time.Duration
	err   error
}

func (b *batch) reset() {
	clear(b.entries)
	clear(b.events)
	clear(b.objects)
	b.entries, b.events, b.objects = b.entries[:0], b.events[:0], b.objects[:0]
	b.bytes, b.err = 0, nil
}

// add appends an event; o is nil if it comes from the lane's own order.
func (b *batch) add(e *entry, o *object) {
	b.entries = append(b.entries, e)
	b.events = append(b.events, e.event)
	b.bytes += e.size
	if o != nil {
		b.objects = append(b.objects, o)
	}
}

func (b *batch) holds(lane uint64) bool {
	return slices.ContainsFunc(b.entries, func(e *entry) bool { return e.item.Lane == lane })
}

// leave removes the i-th event, which was accepted or became a dead letter.
func (b *batch) leave(i int) {
	b.entries[i] = nil
	if o := b.object(i); o != nil {
		o.passed()
	}
}

// object returns the detached object of the i-th event, or nil.
func (b *batch) object(i int) *object {
	if len(b.objects) == 0 {
		return nil
	}
	return b.objects[i]
}

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
func (o *object) free() bool       { return !o.alone && o.failedAt < 0 }
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

func (d *detached) nextFree() *object {
	if d.free.Len() == 0 {
		return nil
	}
	return heap.Pop(&d.free).(*object)
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

// entry is one queue item in the engine.
type entry struct {
	item    store.Item   // without payload once decoded
	event   *event.Event // nil until decoded
	decoded uint64       // Config.Decoding then
	size    int          // estimate of the encoded event; set with event
	payload int          // bytes of payload as read
	held    bool         // counts as read ahead
	arrived time.Time    // when it was read
	away    bool         // held as a position only, to be read again
	fetched bool         // was read again
	limit   int          // bytes to truncate the event to, after a refusal; 0: none

	tries    int       // writes that failed because of this event
	refusals int       // those that refused it
	first    time.Time // of the first of them
}

func (e *entry) failed(now time.Time) {
	e.tries++
	e.met(now)
}

func (e *entry) met(now time.Time) {
	if e.first.IsZero() {
		e.first = now
	}
}

// fifo is a queue of entries that also takes entries back at the front.
type fifo struct {
	entries []*entry
	head    int
}

func (f *fifo) remove(i int) {
	f.entries = slices.Delete(f.entries, f.head+i, f.head+i+1)
	f.cut(0)
}

func (f *fifo) len() int        { return len(f.entries) - f.head }
func (f *fifo) at(i int) *entry { return f.entries[f.head+i] }

func (f *fifo) push(e *entry) {
	if f.head > len(f.entries)/2 && len(f.entries) == cap(f.entries) {
		n := copy(f.entries, f.entries[f.head:])
		clear(f.entries[n:])
		f.entries, f.head = f.entries[:n], 0
	}
	f.entries = append(f.entries, e)
}

func (f *fifo) cut(n int) {
	clear(f.entries[f.head : f.head+n])
	f.head += n
	if f.head == len(f.entries) {
		f.entries, f.head = f.entries[:0], 0
	}
}

func (f *fifo) unshift(es ...*entry) {
	if f.head < len(es) {
		grown := make([]*entry, len(es)+f.len(), 2*len(es)+f.len())
		copy(grown[len(es):], f.entries[f.head:])
		f.entries, f.head = grown, len(es)
	}
	f.head -= len(es)
	copy(f.entries[f.head:], es)
}
