package webhook

import (
	"sync"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

const (
	// missingGrace is how long an endpoint that answers 404 is retried: an ingress or
	// a gateway does so for a while when its routes or backends are replaced.
	missingGrace = time.Minute

	// missingQuiet is how long there must have been no 404 for the next one to be a
	// new incident. It is longer than the pause between two probes of a paused sink.
	missingQuiet = 10 * time.Minute
)

// missing distinguishes a temporary 404 from a permanent one.
type missing struct {
	mu          sync.Mutex // guards what follows
	began, last time.Time  // of the present incident
}

// class is what a 404 at that time means.
func (m *missing) class(now time.Time) sinks.Class {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.IsZero() || now.Sub(m.last) > missingQuiet {
		m.began = now
	}
	m.last = now
	if now.Sub(m.began) < missingGrace {
		return sinks.ClassRetry
	}
	return sinks.ClassPause
}
