package delivery

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

const (
	noteVersion  = 1
	noteEvents   = 1024        // most events remembered
	noteInterval = time.Second // least time between two writes, but for the sink's own schedule
)

// note keeps the schedule of retries with the queue, so that a restart does not
// hammer a receiver that asked for time, nor start counting refusals anew.
//
// It is an optimisation of behaviour and never a condition of delivery: a note
// that cannot be read, is of another configuration or names events that are
// gone is ignored, and every time in it is bounded by what the worker itself
// would have waited.
type note struct {
	queue       Queue
	fingerprint string

	events   map[uint64]noteEvent // by position: events set aside now
	restored map[uint64]noteEvent // by position: of an earlier run, not met again yet
	dirty    bool
	urgent   bool // to be written at once
	written  time.Time
}

// noteEvent is what is known of one event that failed on its own.
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

// load reads what an earlier run left. Not ok means there is nothing to go by;
// unusable says why, if a note was there.
//
// Every time in it is brought into [now, now+most].
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
		if ev.Tries >= 0 && ev.Refusals >= 0 {
			n.restored[ev.Position] = ev
		}
	}
	return c, true, nil, nil
}

// met returns what an earlier run knew of an event, the first time it is asked.
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

// remember notes an event that was set aside.
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

// forget drops an event that left the queue.
func (n *note) forget(en *entry) {
	if len(n.events) == 0 {
		return
	}
	if _, known := n.events[en.item.Position]; known {
		delete(n.events, en.item.Position)
		n.dirty = true
	}
}

// due is when the note has to be written next, if it has to.
func (n *note) due() (time.Time, bool) {
	return n.written.Add(noteInterval), n.dirty
}

// flush writes the note if it is time.
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
		content.Attempts, content.Next = c.attempts, c.until
	}
	for _, events := range [...]map[uint64]noteEvent{n.events, n.restored} {
		for _, ev := range events {
			content.Events = append(content.Events, ev)
		}
	}
	slices.SortFunc(content.Events, func(a, b noteEvent) int {
		if a.Position < b.Position {
			return -1
		}
		return 1
	})
	raw, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode the schedule of retries: %w", err)
	}
	if err := n.queue.PutNote(raw); err != nil {
		return fmt.Errorf("keep the schedule of retries: %w", err)
	}
	n.dirty, n.urgent, n.written = false, false, now
	return nil
}

// forgetGone drops events of an earlier run that are no longer in the queue, so
// that they take no room forever.
func (n *note) forgetGone() {
	if len(n.restored) == 0 {
		return
	}
	head := n.queue.Stats().Head
	for position := range n.restored {
		if position < head {
			delete(n.restored, position)
		}
	}
}

// restore lets the engine go on where an earlier run stopped.
func (e *engine) restore(now time.Time) error {
	c, ok, unusable, err := e.note.load(now, e.cfg.Retry.longest())
	if err != nil {
		return err
	}
	if unusable != nil {
		e.log.Warn("the schedule of retries of an earlier run is not readable; starting without", "error", unusable)
	}
	if ok {
		e.circuit.restore(c.State.phase(), now, c.Attempts, c.Next, textOfBefore)
	}
	return nil
}

// knows reports whether an earlier run knew an event that was not met again yet.
func (n *note) knows(position uint64) bool {
	_, ok := n.restored[position]
	return ok
}

// recall reports whether an earlier run knew the entry's event, now set aside
// again, to be tried when it is due.
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
