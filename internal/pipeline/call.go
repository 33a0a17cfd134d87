package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
)

// UnknownError says that nothing of a name is configured.
type UnknownError struct{ What, Name string }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("no %s named %q is configured", e.What, e.Name)
}

// ErrConfigured means that something cannot be removed because it is in use.
var ErrConfigured = errors.New("it is configured")

// call asks the owner goroutine to run something between two changes of state.
type call struct {
	run  func() error
	done chan error
}

// call runs f in the owner goroutine.
func (m *Manager) call(ctx context.Context, f func() error) error {
	c := call{run: f, done: make(chan error, 1)}
	select {
	case m.calls <- c:
	case <-ctx.Done():
		return ctx.Err()
	case <-m.committer.Done():
		return commit.ErrEnded
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PurgeSink forgets a sink that is not configured any more, with its backlog and
// its dead letters. It fails with [ErrConfigured] if the sink is.
func (m *Manager) PurgeSink(ctx context.Context, name string) error {
	return m.call(ctx, func() error {
		if st := m.currentState(); st != nil && st.Sink(name) != nil {
			return fmt.Errorf("sink %s: %w; remove it from the configuration first", name, ErrConfigured)
		}
		if err := m.store.PurgeSink(name); err != nil {
			return err
		}
		m.log.Warn("sink purged: its backlog and its dead letters are gone", "sink", name)
		return nil
	})
}

// SkipEvent moves a sink past the event with this sequence, or with 0 past the one
// that blocks it: it becomes a dead letter.
func (m *Manager) SkipEvent(ctx context.Context, name string, sequence uint64) (delivery.Skipped, error) {
	m.mu.Lock()
	sw, ok := m.sinks[name]
	m.mu.Unlock()
	if !ok {
		return delivery.Skipped{}, &UnknownError{"sink", name}
	}
	s, err := sw.worker.Skip(ctx, sequence)
	if err != nil {
		return s, fmt.Errorf("sink %s: %w", name, err)
	}
	return s, nil
}

// ResumeSink has a sink that waits for its next attempt tried now.
func (m *Manager) ResumeSink(name string) error {
	m.mu.Lock()
	sw, ok := m.sinks[name]
	m.mu.Unlock()
	if !ok {
		return &UnknownError{"sink", name}
	}
	sw.worker.Resume()
	return nil
}
