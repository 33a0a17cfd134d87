// Package waittest has the waits of tests that share the machine with others.
package waittest

import (
	"testing"
	"time"
)

// Patience is how long Until waits. It is no expectation of speed: a loaded machine may take most of it.
const Patience = 2 * time.Minute

const (
	shortest = 2 * time.Millisecond
	longest  = 100 * time.Millisecond
	costly   = time.Second
)

// Until waits until ok holds, and fails the test if it does not in Patience; what describes the condition.
// See Holds for when ok is called.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Holds(ok) {
		t.Fatalf("not in %v: %s", Patience, what)
	}
}

// Holds reports whether ok holds within Patience. It calls ok in the goroutine of the caller, at intervals that grow to
// an eighth of the time waited, at most 100 ms; or to four times what ok takes, at most a second: waiting leaves the machine
// to what is waited for, also if ok reads a whole log. Under testing/synctest, time is the bubble's.
func Holds(ok func() bool) bool {
	began := time.Now()
	for {
		asked := time.Now()
		if ok() {
			return true
		}
		now := time.Now()
		if now.Sub(began) > Patience {
			return false
		}
		time.Sleep(max(shortest, min(now.Sub(began)/8, longest), min(4*now.Sub(asked), costly)))
	}
}
