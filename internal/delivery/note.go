package delivery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

const (
	noteVersion  = 1
	noteEvents   = 1024        // most events in a note
	noteInterval = time.Second // between two writes, unless the sink's own schedule changes
	notePart     = 8 << 10     // bytes of a note that each interval allows: a long one is written less often
)

// note keeps the schedule of retries with the queue, so that a restart neither ignores a
// receiver's Retry-After nor resets the count of refusals.
//
// Delivery does not depend on it: an unreadable note, one of another configuration and
// events that left the queue are ignored. Every time in it is bounded, for a clock that was wrong.
type note struct {
	queue       Queue
	fingerprint string

	events   map[uint64]noteEvent // by position: events that wait for a retry
	restored map[uint64]noteEvent // by position: of an earlier run, not yet read again
	dirty    bool
	urgent   bool // to be written at once
	written  time.Time
	size     int // of what was written
}

// noteEvent is one event that failed on its own.
type noteEvent struct {
	Position uint64    `json:"position"`
	Tries    int       `json:"tries,omitempty"`
	Refusals int       `json:"refusals,omitempty"`
	First    time.Time `json:"first,omitzero"`
	Next     time.Time `json:"next"`
	Alone    bool      `json:"alone,omitempty"`
}

// noteContent is the note as stored.
type noteContent struct {
	Version     int         `json:"version"`
	Fingerprint string      `json:"fingerprint,omitempty"`
	State       State       `json:"state,omitempty"` // BackingOff, Paused or empty
	Down        time.Time   `json:"down,omitzero"`   // when the outage began
	Attempts    int         `json:"attempts,omitempty"`
	Next        time.Time   `json:"next,omitzero"`
	Events      []noteEvent `json:"events,omitempty"`
}

func newNote(q Queue, fingerprint string) *note {
	return &note{
		queue: q, fingerprint: fingerprint,
		events: map[uint64]noteEvent{}, restored: map[uint64]noteEvent{},
	}
}

// load reads the note of an earlier run; not ok if there is none for this configuration.
// unusable is the reason for ignoring an unreadable one. Times of attempts to come are brought
// into [now, now+most], those of first ones before now.
func (n *note) load(now time.Time, most time.Duration) (c noteContent, ok bool, unusable, err error) {
	raw, found, err := n.queue.Note()
	if errors.Is(err, store.ErrUnreadable) {
		return c, false, err, nil
	}
	if err != nil {
		return c, false, nil, fmt.Errorf("read the schedule of retries: %w", err)
	}
	if !found || len(raw) == 0 {
		return c, false, nil, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, false, err, nil
	}
	if c.Version != noteVersion || c.Fingerprint != n.fingerprint {
		return c, false, nil, nil
	}
	c.Next = clampTime(c.Next, now, most)
	for _, ev := range c.Events[:min(len(c.Events), noteEvents)] {
		ev.Next = clampTime(ev.Next, now, most)
		if ev.First.After(now) {
			ev.First = now
		}
		if ev.Tries >= 0 && ev.Refusals >= 0 {
			n.restored[ev.Position] = ev
		}
	}
	return c, true, nil, nil
}

// met returns an event of an earlier run, on the first call for it.
func (n *note) met(position uint64) (noteEvent, bool) {
	if len(n.restored) == 0 {
		return noteEvent{}, false
	}
	ev, ok := n.restored[position]
	if ok {
		delete(n.restored, position)
		n.events[position] = ev
	}
	return ev, ok
}

func (n *note) remember(en *entry, next time.Time, alone bool) {
	position := en.item.Position
	if _, known := n.events[position]; !known && len(n.events)+len(n.restored) >= noteEvents {
		return
	}
	n.events[position] = noteEvent{
		Position: position, Tries: en.tries, Refusals: en.refusals, First: en.first, Next: next, Alone: alone,
	}
	n.dirty = true
}

// Events that leave the queue leave the note.
func (n *note) forget(en *entry) {
	if len(n.events) == 0 {
		return
	}
	if _, known := n.events[en.item.Position]; known {
		delete(n.events, en.item.Position)
		n.dirty = true
	}
}

// due returns the time of the next write; false if there is nothing to write.
func (n *note) due() (time.Time, bool) {
	return n.written.Add(noteInterval * time.Duration(1+n.size/notePart)), n.dirty
}

func (n *note) flush(now time.Time, c *circuit) error {
	at, due := n.due()
	if !n.urgent && (!due || now.Before(at)) {
		return nil
	}
	return n.write(now, c)
}

func (n *note) write(now time.Time, c *circuit) error {
	n.forgetGone()
	content := noteContent{Version: noteVersion, Fingerprint: n.fingerprint}
	if c.phase != flowing {
		content.State = c.phase.state()
		content.Down, content.Attempts, content.Next = c.down, c.attempts, c.until
	}
	for _, events := range [...]map[uint64]noteEvent{n.events, n.restored} {
		content.Events = slices.AppendSeq(content.Events, maps.Values(events))
	}
	slices.SortFunc(content.Events, func(a, b noteEvent) int { return cmp.Compare(a.Position, b.Position) })
	raw, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode the schedule of retries: %w", err)
	}
	if err := n.queue.PutNote(raw); err != nil {
		return fmt.Errorf("keep the schedule of retries: %w", err)
	}
	n.dirty, n.urgent, n.written, n.size = false, false, now, len(raw)
	return nil
}

// forgetGone removes events of an earlier run that are no longer in the queue.
func (n *note) forgetGone() {
	if len(n.restored) == 0 {
		return
	}
	head := n.queue.Stats().Head
	maps.DeleteFunc(n.restored, func(position uint64, _ noteEvent) bool { return position < head })
}

func (e *engine) restore(now time.Time) error {
	c, ok, unusable, err := e.note.load(now, e.cfg.Retry.longest())
	if err != nil {
		return err
	}
	if unusable != nil {
		e.log.Warn("the schedule of retries of an earlier run is unreadable; starting without it", "error", unusable)
	}
	if ok {
		e.circuit.restore(c.State.phase(), now, c.Down, c.Attempts, c.Next, textOfBefore)
	}
	if e.circuit.phase != flowing {
		e.log.restored(&e.circuit, now)
	}
	return nil
}

// knows reports whether a restored event is not yet read again.
func (n *note) knows(position uint64) bool {
	_, ok := n.restored[position]
	return ok
}

// recall reports whether the entry's event waits for a retry by the schedule of an
// earlier run.
func (e *engine) recall(l *lane, en *entry, now time.Time) bool {
	ev, ok := e.note.met(en.item.Position)
	if !ok {
		return false
	}
	en.tries, en.refusals, en.first = ev.Tries, ev.Refusals, ev.First
	if !ev.Alone && !ev.Next.After(now) {
		return false
	}
	e.setAside(en)
	l.detached.add(en, ev.Next, ev.Alone, e.sent)
	e.failures.add(en, ev.Next, nil, 0)
	return true
}
