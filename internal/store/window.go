package store

import (
	"sort"
	"time"

	"github.com/watcherd/watcherd/internal/store/layout"
)

// window holds the entries of a queue that were read and not acknowledged. Its
// size follows what readers have in flight, not the backlog.
//
// Everything at or below readTo has been read: such an entry is either in the
// window or acknowledged. That makes acks exact (a second ack of an entry finds
// nothing) and gives the head of the queue without looking at the disk.
type window struct {
	slots  []slot // in order of position
	dead   int    // acknowledged slots that are still in the slice
	readTo uint64
}

// slot is an entry in flight.
type slot struct {
	position uint64
	sequence uint64
	time     time.Time
	size     uint32
	kind     byte
	flags    uint32
	acked    bool
}

func (w *window) find(position uint64) int {
	i := sort.Search(len(w.slots), func(i int) bool { return w.slots[i].position >= position })
	if i < len(w.slots) && w.slots[i].position == position && !w.slots[i].acked {
		return i
	}
	return -1
}

// get returns the slot of an entry in flight.
func (w *window) get(position uint64) (slot, bool) {
	if i := w.find(position); i >= 0 {
		return w.slots[i], true
	}
	return slot{}, false
}

// add records an entry that was read; false if it was acknowledged meanwhile.
func (w *window) add(s slot) bool {
	if s.position <= w.readTo {
		return w.find(s.position) >= 0
	}
	w.slots = append(w.slots, s)
	w.readTo = s.position
	return true
}

// ack removes an entry; false if it is not in flight.
func (w *window) ack(position uint64) (slot, bool) {
	i := w.find(position)
	if i < 0 {
		return slot{}, false
	}
	s := w.slots[i]
	w.slots[i].acked = true
	w.dead++
	w.trim()
	return s, true
}

// lose removes what is in flight of [from, next).
func (w *window) lose(from, next uint64) {
	for i := range w.slots {
		if s := &w.slots[i]; !s.acked && from <= s.position && s.position < next {
			s.acked = true
			w.dead++
		}
	}
	w.trim()
}

// trim drops acknowledged slots from the front, and all of them once they are
// the majority, so that a single entry stuck for days does not keep everything
// acknowledged behind it in memory.
func (w *window) trim() {
	front := 0
	for front < len(w.slots) && w.slots[front].acked {
		front++
	}
	w.slots = w.slots[front:]
	w.dead -= front
	if w.dead < 64 || w.dead*2 < len(w.slots) {
		return
	}
	live := make([]slot, 0, len(w.slots)-w.dead)
	for _, s := range w.slots {
		if !s.acked {
			live = append(live, s)
		}
	}
	w.slots, w.dead = live, 0
}

// head is the smallest position that is not known to be acknowledged.
func (w *window) head() uint64 {
	if len(w.slots) > 0 {
		return w.slots[0].position
	}
	return w.readTo + 1
}

// needed is the smallest position whose entry may refer to the log.
func (w *window) needed() uint64 {
	for i := range w.slots {
		if !w.slots[i].acked && w.slots[i].kind != layout.EntryInline {
			return w.slots[i].position
		}
	}
	return w.readTo + 1
}
