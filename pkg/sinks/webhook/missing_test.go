package webhook

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestMissing: 404 is retried while it may be an endpoint that is being replaced, and
// pauses the sink when it stays. The next incident is retried again.
func TestMissing(t *testing.T) {
	var m missing
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		after time.Duration
		want  sinks.Class
	}{
		{0, sinks.ClassRetry},
		{time.Second, sinks.ClassRetry},
		{58 * time.Second, sinks.ClassRetry},
		{time.Second, sinks.ClassPause},
		{30 * time.Second, sinks.ClassPause},
		{5 * time.Minute, sinks.ClassPause}, // the next probe of a paused sink
		{5 * time.Minute, sinks.ClassPause},
		{11 * time.Minute, sinks.ClassRetry},
		{10 * time.Minute, sinks.ClassPause},
	} {
		at = at.Add(step.after)
		if got := m.class(at); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}
