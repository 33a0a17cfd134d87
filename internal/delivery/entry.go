package delivery

import (
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

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
