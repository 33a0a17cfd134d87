package delivery

import (
	"fmt"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/outbox"
)

// Why an event became a dead letter: values of a metric's label.
const (
	letterRefused     = "refused"
	letterPanic       = "panic"
	letterOversize    = "oversize"
	letterUndecodable = "undecodable"
)

var letterReasons = [...]string{letterRefused, letterPanic, letterOversize, letterUndecodable}

// maxReason bounds the text kept with a dead letter and shown in a status, in
// bytes.
const maxReason = 512

// deadLetter moves an event to the dead letters and releases its entry.
func (e *engine) deadLetter(en *entry, reason string, cause error) error {
	now := time.Now()
	letter := outbox.Letter{Reason: reason + ": " + excerpt(cause), Attempts: en.tries, First: en.first, Time: now}
	if letter.First.IsZero() {
		letter.First = now
	}
	if err := e.cfg.Queue.DeadLetter(en.item.Position, letter); err != nil {
		return fmt.Errorf("set an event aside: %w", err)
	}
	e.deadLetters++
	e.metrics.letters.WithLabelValues(reason).Inc()
	args := []any{"reason", letter.Reason, "attempts", en.tries, "position", en.item.Position, "sequence", en.item.Sequence}
	if ev := en.event; ev != nil {
		args = append(args, "id", ev.ID, "type", ev.Type, "subject", ev.Subject())
	}
	e.log.letter(args...)
	e.note.forget(en)
	e.release(en)
	return nil
}

// excerpt is an error's text, bounded and valid UTF-8.
func excerpt(err error) string {
	s := err.Error()
	if len(s) > maxReason {
		s = s[:maxReason] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
