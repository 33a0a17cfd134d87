package outbox

import (
	"sync"
	"time"
)

// logLimit keeps what the storage engine reports several times a second from
// filling a log: a line a subject, and then one in a while.
type logLimit struct {
	mu       sync.Mutex
	subjects map[string]*limited // guarded by mu
}

type limited struct {
	last       time.Time
	suppressed int
}

const (
	logEvery         = time.Minute
	maxLimitSubjects = 1024
)

// allow reports whether a line about the subject is due, and how many were left
// out since the last.
func (l *logLimit) allow(subject string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := l.subjects[subject]
	if s == nil {
		if l.subjects == nil || len(l.subjects) >= maxLimitSubjects {
			l.subjects = make(map[string]*limited)
		}
		l.subjects[subject] = &limited{last: now}
		return 0, true
	}
	if now.Sub(s.last) < logEvery {
		s.suppressed++
		return 0, false
	}
	suppressed = s.suppressed
	s.last, s.suppressed = now, 0
	return suppressed, true
}
