package progress

import (
	"context"
	"sync"
)

// Window bounds the events that are forwarded and not acknowledged. It records their
// positions, and an acknowledgement frees all positions up to its own: an event that the
// informer drops holds a place until the next acknowledgement.
//
// It is safe for concurrent use.
type Window struct {
	limit int // 0: no bound

	mu    sync.Mutex
	out   []uint64      // ascending
	acked uint64        // the position acknowledged last
	room  chan struct{} // closed and replaced when places become free
}

// NewWindow returns a window of a limit; 0: no bound.
func NewWindow(limit int) *Window {
	return &Window{limit: limit, room: make(chan struct{})}
}

// Free reports whether there is a place.
func (w *Window) Free() bool {
	if w.limit <= 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out) < w.limit
}

// Wait returns when there is a place.
func (w *Window) Wait(ctx context.Context) error {
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

// Take notes that the event at a position is forwarded.
func (w *Window) Take(position uint64) {
	if w.limit <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, position)
}

// Ack frees the places up to a position. It reports whether the position is a later one
// than before.
func (w *Window) Ack(position uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if position <= w.acked {
		return false
	}
	w.acked = position
	n := 0
	for n < len(w.out) && w.out[n] <= position {
		n++
	}
	if n > 0 {
		w.out = w.out[:copy(w.out, w.out[n:])]
		close(w.room)
		w.room = make(chan struct{})
	}
	return true
}

// InFlight is the number of events forwarded and not acknowledged.
func (w *Window) InFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out)
}
