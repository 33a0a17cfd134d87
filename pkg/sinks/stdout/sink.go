package stdout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"syscall"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
)

type sink struct {
	*output

	encode func(dst []byte, e *event.Event) []byte
}

// output is what all sinks on one writer share, also those that come later: each ends the line
// that another has torn.
type output struct {
	out  io.Writer
	io   *solo.Runner // one write at a time
	torn bool         // in the turn of io only; the output ends in the middle of a line

	sinks int // guarded by outputs; open ones
}

// outputs are those with an open sink or a torn line.
var outputs = struct {
	sync.Mutex

	of map[io.Writer]*output
}{of: map[io.Writer]*output{}}

// share returns the output of a writer for one more sink.
func share(w io.Writer) *output {
	if !reflect.TypeOf(w).Comparable() { // it cannot be recognized
		return &output{out: w, io: solo.New()}
	}
	outputs.Lock()
	defer outputs.Unlock()
	o := outputs.of[w]
	if o == nil {
		o = &output{out: w, io: solo.New()}
		outputs.of[w] = o
	}
	o.sinks++
	return o
}

// leave is run in the output's turn, when a sink is closed.
func (o *output) leave() {
	if !reflect.TypeOf(o.out).Comparable() {
		return
	}
	outputs.Lock()
	defer outputs.Unlock()
	if o.sinks--; o.sinks == 0 && !o.torn {
		delete(outputs.of, o.out)
	}
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

// write is run in the output's turn.
func (o *output) write(buf []byte, ends []int) error {
	if o.torn {
		if _, err := o.out.Write([]byte{'\n'}); err != nil {
			return failure(err)
		}
		o.torn = false
	}
	n, err := o.out.Write(buf)
	if err == nil && n == len(buf) {
		return nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	err = failure(err)
	failed := make(map[int]error)
	o.torn = n > 0
	for i, end := range ends {
		switch {
		case end == n:
			o.torn = false
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
	err := s.io.Last(ctx, func() error {
		s.leave()
		return nil
	})
	if err != nil {
		return fmt.Errorf("close standard output: %w", err)
	}
	return nil
}
