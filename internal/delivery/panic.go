package delivery

import (
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
)

// panicError is a panic of a sink or a decoder.
type panicError struct {
	value any
	stack []byte
	hash  string // identifies the place of the panic
}

func (p *panicError) Error() string { return fmt.Sprintf("panic at %s: %v", p.hash, p.value) }

func isPanic(err error) bool {
	_, ok := errors.AsType[*panicError](err)
	return ok
}

// stackHash hashes the functions and lines of the calling goroutine's stack, so that one
// bug has one hash in every process. Call it while recovering.
func stackHash() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	h := fnv.New32a()
	for {
		f, more := frames.Next()
		fmt.Fprintf(h, "%s:%d\n", f.Function, f.Line)
		if !more {
			return fmt.Sprintf("%08x", h.Sum32())
		}
	}
}

// meetPanic logs a panic, with the stack the first time.
func (e *engine) meetPanic(err error) {
	p, ok := errors.AsType[*panicError](err)
	if !ok {
		return
	}
	if _, known := e.stacks[p.hash]; known {
		e.log.repeat("the sink panicked again", err)
		return
	}
	if len(e.stacks) < 64 {
		e.stacks[p.hash] = struct{}{}
	}
	e.log.Error("the sink panicked", "stackHash", p.hash, "panic", fmt.Sprint(p.value), "stack", string(p.stack))
}
