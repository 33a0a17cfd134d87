package delivery

import (
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// lane is one of the sink's `concurrency` lanes: the events of its share of the
// objects, and at most one write in flight. All fields but work belong to the
// engine's goroutine.
type lane struct {
	pending  fifo     // events in queue order, without those of detached objects
	detached detached // objects outside of that order

	batch batch // the write in flight; reused
	busy  bool  // batch is in flight

	cut  int // most events in a write during the search for a refused one; 0: no limit
	turn int // the first source for the next write

	work chan *batch // to the lane's goroutine; closed by the engine at the end
}

func newLane() *lane {
	l := &lane{
		detached: newDetached(),
		work:     make(chan *batch, 1),
	}
	l.batch.lane = l
	return l
}

// batch is one Write. While it is in flight only the lane's goroutine uses it. Its
// entries are in no queue; settle requeues those that are left.
type batch struct {
	lane    *lane
	entries []*entry       // nil: accepted, a dead letter, or detached
	events  []*event.Event // of the entries
	objects []*object      // of the entries, each in one run, if they came from detached objects; else empty
	bytes   int
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
