package rawwatch

import (
	"context"
	"sync"
)

// window bounds how many events are handed on and not acknowledged. It remembers
// the positions that are out, so acknowledging a position frees everything up to
// it: an event that the informer swallows holds a place no longer than until the
// next acknowledgement.
//
// It is safe for concurrent use.
type window struct {
	limit int // 0: no bound

	mu      sync.Mutex
	out     []uint64           // ascending
	readers map[*Reader]uint64 // how far each has acknowledged
	room    chan struct{}      // closed and replaced when places become free
}

func newWindow(limit int) *window {
	return &window{limit: limit, readers: map[*Reader]uint64{}, room: make(chan struct{})}
}

// free tells whether there is a place.
func (w *window) free() bool {
	if w.limit <= 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out) < w.limit
}

// wait returns when there is a place. Without readers there is always one: leave
// and take see to that.
func (w *window) wait(ctx context.Context) error {
	for {
		w.mu.Lock()
		free, room := len(w.out) < w.limit, w.room
		w.mu.Unlock()
		if free {
			return ctx.Err()
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take notes that the event at a position is handed on.
func (w *window) take(position uint64) {
	if w.limit <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.readers) > 0 {
		w.out = append(w.out, position)
	}
}

// join adds a reader that has nothing to acknowledge up to a position.
func (w *window) join(r *Reader, position uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readers[r] = position
}

func (w *window) leave(r *Reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.readers, r)
	w.freeLocked()
}

// ack notes how far a reader has come, and returns how far all have.
func (w *window) ack(r *Reader, position uint64) (all uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.readers[r]; !ok || before >= position {
		return 0, false
	}
	w.readers[r] = position
	w.freeLocked()
	return w.ackedLocked()
}

// ackedLocked is what every reader has acknowledged; ok is false without readers.
func (w *window) ackedLocked() (position uint64, ok bool) {
	for _, p := range w.readers {
		if !ok || p < position {
			position, ok = p, true
		}
	}
	return position, ok
}

func (w *window) freeLocked() {
	acked, ok := w.ackedLocked()
	n := 0
	for n < len(w.out) && (!ok || w.out[n] <= acked) {
		n++
	}
	if n == 0 && ok {
		return
	}
	w.out = w.out[:copy(w.out, w.out[n:])]
	close(w.room)
	w.room = make(chan struct{})
}

// inFlight is how many events are handed on and not acknowledged.
func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out)
}
