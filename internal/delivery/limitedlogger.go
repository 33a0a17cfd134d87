package delivery

import (
	"log/slog"
	"time"
)

// A limitedLogger logs each change of state, and limits repeated messages; the next line has
// the number of skipped ones. It belongs to one goroutine.
type limitedLogger struct {
	*slog.Logger

	repeats map[string]*repeated // by message
}

// quota limits the lines of one message per time.
type quota struct {
	lines int
	per   time.Duration
}

var (
	failureQuota = quota{1, 10 * time.Minute}
	letterQuota  = quota{20, time.Minute}
)

// Messages that repeat during an outage.
const (
	stillFails  = "the sink still fails"
	stillPaused = "the sink is still paused"
)

// repeated is the use of one message's quota.
type repeated struct {
	since   time.Time // begin of the quota's time
	lines   int       // since then
	skipped int       // since the last line
}

func newLimitedLogger(base *slog.Logger) *limitedLogger {
	return &limitedLogger{Logger: base, repeats: map[string]*repeated{}}
}

// allow reports whether message may be logged, and the number of lines skipped since its
// last one.
func (l *limitedLogger) allow(message string, q quota) (skipped int, ok bool) {
	r := l.repeats[message]
	if r == nil {
		r = &repeated{}
		l.repeats[message] = r
	}
	if now := time.Now(); now.Sub(r.since) >= q.per {
		r.since, r.lines = now, 0
	}
	if r.lines >= q.lines {
		r.skipped++
		return 0, false
	}
	r.lines++
	skipped, r.skipped = r.skipped, 0
	return skipped, true
}

// repeat logs a failure that may repeat, with a constant message.
func (l *limitedLogger) repeat(message string, err error) { l.repeatBy(l.Warn, message, err) }

// repeatBy is repeat of another level: that of log.
func (l *limitedLogger) repeatBy(log func(message string, args ...any), message string, err error) {
	if skipped, ok := l.allow(message, failureQuota); ok {
		log(message, withSkipped([]any{"error", shown(err)}, skipped)...)
	}
}

// maxShown bounds the text of an error in a line, in bytes: a receiver may have made it.
const maxShown = 4 << 10

func shown(err error) string { return cut(err.Error(), maxShown) }

func (l *limitedLogger) letter(args ...any) {
	const message = "an event became a dead letter"
	if skipped, ok := l.allow(message, letterQuota); ok {
		l.Warn(message, withSkipped(args, skipped)...)
	}
}

// withSkipped adds the number of lines that were left out, if there are any.
func withSkipped(args []any, skipped int) []any {
	if skipped == 0 {
		return args
	}
	return append(args, "skippedLines", skipped)
}

// backingOff and paused log the begin of an outage, restored that it began in an earlier run. They use
// up the quota of the message that repeats, so its first line comes later.

func (l *limitedLogger) backingOff(cause error, retryIn time.Duration) {
	l.allow(stillFails, failureQuota)
	l.Warn("the sink fails, backing off", "error", shown(cause), "retryIn", retryIn.Round(time.Millisecond))
}

func (l *limitedLogger) paused(cause error, retryIn time.Duration) {
	l.allow(stillPaused, failureQuota)
	l.Error("the sink is paused until its cause is fixed; its backlog is kept", "error", shown(cause), "probeIn", retryIn.Round(time.Millisecond))
}

func (l *limitedLogger) restored(c *circuit, now time.Time) {
	l.allow(stillFails, failureQuota)
	l.allow(stillPaused, failureQuota)
	l.Warn("the sink failed before the restart, retrying", "state", string(c.phase.state()), "since", c.down, "retryIn", max(c.until.Sub(now), 0).Round(time.Millisecond))
}
