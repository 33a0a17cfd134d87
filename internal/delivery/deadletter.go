package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// The reasons of dead letters: values of a metric's label.
const (
	letterRefused     = "refused"
	letterPanic       = "panic"
	letterOversize    = "oversize"
	letterUndecodable = "undecodable"
	letterBody        = "body"
	letterSkipped     = "skipped"
)

var letterReasons = [...]string{letterRefused, letterPanic, letterOversize, letterUndecodable, letterBody, letterSkipped}

func letterReason(cause error) string {
	switch {
	case isPanic(cause):
		return letterPanic
	case sinks.IsTooLarge(cause):
		return letterOversize
	default:
		return letterRefused
	}
}

// maxReason bounds the text of a dead letter and of a status, in bytes.
const maxReason = 512

// deadLetter moves an event to the dead letters and releases its entry. On
// [store.ErrDeadLettersFull] the entry is unchanged.
func (e *engine) deadLetter(en *entry, reason string, cause error) error {
	now := time.Now()
	text := excerpt(cause)
	if en.event != nil && en.decoded != e.decoding() {
		text = textWithheld // the event that was sent may have more
	}
	letter := store.Letter{Reason: reason + ": " + text, Attempts: en.tries, First: en.first, Time: now}
	if letter.First.IsZero() {
		letter.First = now
	}
	if err := e.cfg.Queue.DeadLetter(en.item.Position, letter); err != nil {
		return fmt.Errorf("move an event to the dead letters: %w", err)
	}
	e.deadLetters++
	e.metrics.letters.WithLabelValues(reason).Inc()
	args := []any{"reason", letter.Reason, "attempts", en.tries, "position", en.item.Position, "sequence", en.item.Sequence}
	if ev := en.event; ev != nil {
		args = append(args, "id", ev.ID, "type", ev.Type, "subject", cut(ev.Subject(), maxShown))
	}
	e.log.letter(args...)
	e.forget(en)
	return nil
}

// excerpt returns an error's text, bounded and valid UTF-8.
func excerpt(err error) string {
	return cut(err.Error(), maxReason)
}

func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// The text of an error may quote the event. When Config.Hidden changes, the texts of
// earlier errors are withheld. The schedule of retries, which outlives the process, has
// none.

const (
	textWithheld = "the text is withheld, since the configuration hides more than it did then"
	textOfBefore = "as before the restart; the next attempt has the reason"
)

func (c *Config) hiddenNow() uint64 {
	if c.Hidden == nil {
		return 0
	}
	return c.Hidden()
}

func (e *engine) withhold() {
	now := e.cfg.hiddenNow()
	if now == e.hidden {
		return
	}
	e.hidden = now
	withholdText(&e.lastError)
	withholdText(&e.circuit.reason)
	if e.refusedErr != nil {
		e.refusedErr = errors.New(textWithheld)
	}
	e.failures.withhold()
}

func withholdText(text *string) {
	if *text != "" {
		*text = textWithheld
	}
}

func (f *failures) withhold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.byLane {
		withholdText(&known.LastError)
	}
}

func (s *Status) withhold() {
	withholdText(&s.Reason)
	withholdText(&s.LastError)
	for i := range s.Failing {
		withholdText(&s.Failing[i].LastError)
	}
}

// The errors of [Worker.Skip] that the caller may act on.
var (
	ErrNotDelivering = errors.New("the sink is not open")
	ErrNothingToSkip = errors.New("no event blocks the sink")
	ErrNotSkippable  = errors.New("no such event among those read from the sink's queue")
	ErrInFlight      = errors.New("the event is being written; retry when the write has ended")
)

// Skipped is an event that became a dead letter on request.
type Skipped struct {
	Sequence uint64
	Position uint64 // of the dead letter
	ID       string
	Type     string
	Subject  string
	Reason   string // of its failure
}

// skipRequest asks the engine to skip an event.
type skipRequest struct {
	sequence uint64 // 0: the event that blocks
	outcome  chan skipOutcome
}

type skipOutcome struct {
	skipped Skipped
	err     error
}

func (r *skipRequest) answer(s Skipped, err error) { r.outcome <- skipOutcome{s, err} }

// Skip moves the event with this sequence to the dead letters. 0 is the event that has
// been failing for the longest time; if there is none and the sink is paused or backing
// off, the first of the queue. The events behind it are then tried.
func (w *Worker) Skip(ctx context.Context, sequence uint64) (Skipped, error) {
	if !w.open.Load() {
		return Skipped{}, ErrNotDelivering
	}
	r := skipRequest{sequence: sequence, outcome: make(chan skipOutcome, 1)}
	select {
	case w.skips <- r:
	case <-w.ended:
		return Skipped{}, ErrNotDelivering
	case <-ctx.Done():
		return Skipped{}, ctx.Err()
	}
	out := <-r.outcome // the engine answers every request
	return out.skipped, out.err
}

func (e *engine) skip(sequence uint64, now time.Time) (Skipped, error) {
	l, o, i, err := e.find(sequence)
	if err != nil {
		return Skipped{}, err
	}
	q := &l.pending
	if o != nil {
		if !l.detached.take(o) {
			return Skipped{}, ErrInFlight
		}
		defer l.detached.back(o)
		q = &o.queue
	}
	en := q.at(i)
	s, err := e.describe(en)
	if err != nil {
		return Skipped{}, err
	}
	if err := e.deadLetter(en, letterSkipped, errors.New(s.Reason)); err != nil {
		return Skipped{}, err
	}
	q.remove(i)
	if o != nil && i == 0 {
		o.passed()
	}
	e.log.Warn("event skipped on request", "sequence", s.Sequence, "position", s.Position, "id", s.ID, "type", s.Type, "subject", s.Subject, "reason", s.Reason)
	e.circuit.resume(now)
	return s, nil
}

// find returns the lane of the event to skip, its detached object if it has one, and its
// index in the queue of either.
func (e *engine) find(sequence uint64) (l *lane, o *object, i int, err error) {
	if sequence == 0 {
		return e.blocking()
	}
	for _, l := range e.lanes {
		for _, en := range l.flying() { // the queue may have a replay of it behind
			if en.item.Sequence == sequence {
				return nil, nil, 0, ErrInFlight
			}
		}
	}
	for _, l := range e.lanes {
		for _, o := range l.detached.byLane {
			for i := range o.queue.len() {
				if o.queue.at(i).item.Sequence == sequence {
					return l, o, i, nil
				}
			}
		}
		for i := range l.pending.len() {
			if l.pending.at(i).item.Sequence == sequence {
				return l, nil, i, nil
			}
		}
	}
	return nil, nil, 0, fmt.Errorf("sequence %d: %w", sequence, ErrNotSkippable)
}

// blocking finds the event that has been failing for the longest time, or the first of
// the queue while the sink does not flow. That may be one that is being written.
func (e *engine) blocking() (l *lane, o *object, i int, err error) {
	err = ErrNothingToSkip
	var first time.Time
	for _, in := range e.lanes {
		for _, at := range in.detached.due.objects {
			if f := at.queue.at(0).first; err != nil || f.Before(first) {
				l, o, first, err = in, at, f, nil
			}
		}
	}
	for _, in := range e.lanes {
		for _, en := range in.flying() {
			if !en.first.IsZero() && (err != nil || en.first.Before(first)) {
				return nil, nil, 0, ErrInFlight
			}
		}
	}
	if err == nil || e.circuit.phase == flowing {
		return l, o, 0, err
	}
	for _, in := range e.lanes {
		if in.pending.len() == 0 || err == nil && in.pending.at(0).item.Position > l.pending.at(0).item.Position {
			continue
		}
		l, err = in, nil
	}
	for _, in := range e.lanes {
		for _, en := range in.flying() {
			if err != nil || en.item.Position < l.pending.at(0).item.Position {
				return nil, nil, 0, ErrInFlight
			}
		}
	}
	return l, nil, 0, err
}

// describe returns the identity of an entry's event and the reason of its failure.
func (e *engine) describe(en *entry) (Skipped, error) {
	s := Skipped{Sequence: en.item.Sequence, Position: en.item.Position, Reason: "skipped on request"}
	if e.lastError != "" {
		s.Reason = e.lastError
	}
	if f := e.failures.byLane[en.item.Lane]; f != nil && f.LastError != "" {
		s.Reason = f.LastError
	}
	if en.away {
		if _, err := e.fetch(en); err != nil {
			return s, err
		}
	}
	if en.event == nil && !en.away {
		if err := e.decode(en); err != nil {
			s.Reason = excerpt(err)
			return s, nil
		}
	}
	if en.event != nil {
		s.ID, s.Type, s.Subject = en.event.ID, string(en.event.Type), en.event.Subject()
	}
	return s, nil
}
