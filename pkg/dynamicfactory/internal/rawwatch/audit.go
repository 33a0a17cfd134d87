package rawwatch

import "context"

// errAsked ends a watch because somebody doubts what it has shown.
type errAsked struct{ cause string }

func (e errAsked) Error() string { return "asked to list again: " + e.cause }

// Relist has the reflector list the resource again, as after a loss of history
// with that cause. A watch that runs is ended; one that cannot be established
// lists when it can.
func (s *Source) Relist(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = cause
	if s.interrupt != nil {
		s.interrupt(errAsked{cause})
	}
}

// interruptible lets Relist end a request by its context; nil takes that back. A
// wish that came before is returned as an error.
func (s *Source) interruptible(cancel context.CancelCauseFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = cancel
	if cancel != nil && s.asked != "" {
		return errAsked{s.asked}
	}
	return nil
}
