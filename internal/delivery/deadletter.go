package delivery

import (
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
		args = append(args, "id", ev.ID, "type", ev.Type, "subject", ev.Subject())
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

// withhold replaces the texts of errors after a change of Config.Hidden.
func (e *engine) withhold() {
	now := e.cfg.hiddenNow()
	if now == e.hidden {
		return
	}
	e.hidden = now
	withholdText(&e.lastError)
	withholdText(&e.circuit.reason)
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

// withhold replaces the texts of errors in an older status.
func (s *Status) withhold() {
	withholdText(&s.Reason)
	withholdText(&s.LastError)
	for i := range s.Failing {
		withholdText(&s.Failing[i].LastError)
	}
}
