package delivery

import (
	"log/slog"
	"time"
)

// A journal logs each change of state once and everything that may repeat at
// most so often a minute; what it leaves out it counts. It belongs to one
// goroutine.
type journal struct {
	*slog.Logger

	repeats map[string]*repeated // by message
}

type repeated struct {
	since   time.Time // when the minute began
	lines   int       // of this minute
	skipped int       // since the last line
}

const (
	repeatsPerMinute = 1
	lettersPerMinute = 20
)

func newJournal(l *slog.Logger) *journal {
	return &journal{Logger: l, repeats: map[string]*repeated{}}
}

// allow reports whether message may be logged, and how often it was not.
func (j *journal) allow(message string, perMinute int) (skipped int, ok bool) {
	r := j.repeats[message]
	if r == nil {
		r = &repeated{}
		j.repeats[message] = r
	}
	if now := time.Now(); now.Sub(r.since) >= time.Minute {
		r.since, r.lines = now, 0
	}
	if r.lines >= perMinute {
		r.skipped++
		return 0, false
	}
	r.lines++
	skipped, r.skipped = r.skipped, 0
	return skipped, true
}

// repeat logs a failure that is likely not the last of its kind.
func (j *journal) repeat(message string, err error) {
	if skipped, ok := j.allow(message, repeatsPerMinute); ok {
		j.Warn(message, "error", err, "skippedLines", skipped)
	}
}

// letter logs a dead letter.
func (j *journal) letter(args ...any) {
	const message = "an event became a dead letter"
	if skipped, ok := j.allow(message, lettersPerMinute); ok {
		j.Warn(message, append(args, "skippedLines", skipped)...)
	}
}

func (j *journal) backingOff(cause error, retryIn time.Duration) {
	j.Warn("the sink fails, backing off", "error", cause, "retryIn", retryIn)
}

func (j *journal) paused(cause error, retryIn time.Duration) {
	j.Error("the sink is paused until somebody acts; its backlog is kept", "error", cause, "probeIn", retryIn)
}

func (j *journal) recovered() { j.Info("the sink answers again") }
