// Package solo runs blocking I/O one piece at a time, for callers that must not
// block past their context: a write to a full pipe or a sync on a hung disk takes
// no context of its own.
package solo

import (
	"context"
	"fmt"
)

// Runner runs functions one after the other.
type Runner struct {
	turn chan struct{} // holds a token while a function runs
}

// New makes a Runner. It starts nothing.
func New() *Runner { return &Runner{turn: make(chan struct{}, 1)} }

// Do waits for its turn, runs f and returns f's error. When ctx ends first it
// returns at once with ctx's cause: f is then not run, or runs on alone, so
// it must touch nothing that the caller reuses.
func (r *Runner) Do(ctx context.Context, f func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier write: %w", context.Cause(ctx))
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-r.turn }()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("write not finished: %w", context.Cause(ctx))
	}
}

// Last is Do of the function that releases what the others use: it runs in any case, once its turn
// comes. When ctx ends first, Last returns at once with ctx's cause, and f runs on alone.
func (r *Runner) Last(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() {
		r.turn <- struct{}{}
		defer func() { <-r.turn }()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("not closed yet: %w", context.Cause(ctx))
	}
}
