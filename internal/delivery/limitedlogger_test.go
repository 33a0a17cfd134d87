package delivery

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestLongCause: what a receiver answers does not become a line of megabytes.
func TestLongCause(t *testing.T) {
	for name, say := range map[string]func(l *limitedLogger, err error){
		"backing off": func(l *limitedLogger, err error) { l.backingOff(err, time.Second) },
		"paused":      func(l *limitedLogger, err error) { l.paused(err, time.Second) },
		"repeat":      func(l *limitedLogger, err error) { l.repeat(stillFails, err) },
	} {
		var log bytes.Buffer
		say(newLimitedLogger(slog.New(slog.NewTextHandler(&log, nil))), errors.New("refused: "+strings.Repeat("\x00", 1<<20)))
		if log.Len() > 32<<10 || !strings.Contains(log.String(), "refused: ") {
			t.Errorf("%s: %d bytes: %.100s", name, log.Len(), &log)
		}
	}
}
