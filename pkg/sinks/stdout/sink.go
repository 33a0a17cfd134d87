package stdout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
)

type sink struct {
	out    io.Writer
	encode func(dst []byte, e *event.Event) []byte
	io     *solo.Runner // one write at a time; what follows is touched in its turn only
	torn   bool         // the output ends in the middle of a line
}

var _ sinks.Sink = (*sink)(nil)

// Write writes the batch. It may be called from several goroutines; they take turns.
func (s *sink) Write(ctx context.Context, batch []*event.Event) error {
	// Encoding happens here and not in the turn: a write that outlives ctx must
	// not touch the events.
	size := 0
	for _, e := range batch {
		size += e.Size()
	}
	buf := make([]byte, 0, size)
	ends := make([]int, len(batch))
	for i, e := range batch {
		buf = s.encode(buf, e)
		ends[i] = len(buf)
	}
	return s.io.Do(ctx, func() error { return s.write(buf, ends) })
}

// write is run in the sink's turn.
func (s *sink) write(buf []byte, ends []int) error {
	if s.torn {
		if _, err := s.out.Write([]byte{'\n'}); err != nil {
			return failure(err)
		}
		s.torn = false
	}
	n, err := s.out.Write(buf)
	if err == nil && n == len(buf) {
		return nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	err = failure(err)
	failed := make(map[int]error)
	s.torn = n > 0
	for i, end := range ends {
		switch {
		case end == n:
			s.torn = false
		case end-1 > n: // an event that lacks only its newline will get it
			failed[i] = err
		}
	}
	switch len(failed) {
	case 0:
		return nil
	case len(ends):
		return err
	}
	return &sinks.BatchError{Failed: failed}
}

// failure classifies the error of a write: a pipe without a reader stays so until
// it is opened again.
func failure(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return sinks.Pause(fmt.Errorf("write to standard output, which has no reader: %w", err))
	}
	return fmt.Errorf("write to standard output: %w", err)
}

// Close waits for a write that outlived its context. Standard output stays open:
// it belongs to the process.
func (s *sink) Close(ctx context.Context) error {
	if err := s.io.Do(ctx, func() error { return nil }); err != nil {
		return fmt.Errorf("close standard output: %w", err)
	}
	return nil
}
