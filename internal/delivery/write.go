package delivery

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/wait"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// writeAll is a lane's goroutine.
func (e *engine) writeAll(ctx context.Context, l *lane) {
	for b := range l.work {
		b.err = e.write(ctx, b)
		b.took = time.Since(b.began)
		e.results <- b
	}
}

func (e *engine) write(ctx context.Context, b *batch) (err error) {
	defer func() {
		if v := recover(); v != nil {
			// The event counts as the cause first: see engine.refuse.
			err = sinks.Poison(&panicError{value: v, stack: debug.Stack(), hash: stackHash()})
		}
	}()
	if e.cfg.Hold != nil {
		if err := e.cfg.Hold(ctx); err != nil {
			return err
		}
		var end func()
		ctx, end = e.whileFree(ctx)
		defer end()
	}
	err = e.sink.Write(ctx, b.events)
	lookAt(err)
	return err
}

// lookAt uses an error as the engine does later, so that one that panics, such as a nil pointer of
// an error type, does it in the call of the sink.
func lookAt(err error) {
	if err == nil {
		return
	}
	_, _ = err.Error(), sinks.IsTooLarge(err)
	if batch, ok := errors.AsType[*sinks.BatchError](err); ok {
		for _, one := range batch.Failed {
			lookAt(one)
		}
	}
}

// ErrHeld ends a write that is under way when none may begin: it may consist of several requests.
var ErrHeld = errors.New("no delivery may begin now; this one is repeated")

// Free returns ErrHeld if a [Config.Hold] would wait.
func Free(hold func(context.Context) error) error {
	if hold(past) != nil {
		return ErrHeld
	}
	return nil
}

// past is a context that is done.
var past = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// heldPoll is how often Hold is asked during a write.
const heldPoll = 100 * time.Millisecond

// freeContext checks whether a delivery may begin whenever it is asked for its end, as is done at the beginning of a request:
// behind a stop of the process, the next request is often sooner than any timer.
type freeContext struct {
	context.Context
	look func()
}

func (c freeContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c freeContext) Err() error {
	c.look()
	return c.Context.Err()
}

// whileFree returns a context that ends with ErrHeld when Hold would wait. Call end after its last use.
func (e *engine) whileFree(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	look := func() {
		if err := Free(e.cfg.Hold); err != nil {
			cancel(err)
		}
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			_ = wait.For(ctx, heldPoll) // the context is looked at next
			look()
		}
	})
	return freeContext{ctx, look}, func() {
		cancel(nil)
		watching.Wait()
	}
}

// drain settles the writes in flight. After a failure of the store, which failed and the
// result are, no outcome can be recorded, so they are cancelled at once.
func (e *engine) drain(w *Worker, cancelWrites context.CancelFunc, failed error) error {
	s := e.status(time.Now())
	s.State = Draining
	w.publish(s)
	err := failed
	if err == nil {
		err = e.await(e.cfg.DrainTimeout)
	}
	e.cancelled = true
	cancelWrites()
	if err == nil {
		err = e.await(e.cfg.CloseTimeout)
	}
	if err != nil {
		e.discard(e.cfg.CloseTimeout)
		return err
	}
	return e.note.write(time.Now(), &e.circuit)
}

// await settles writes until none is in flight or the time is over, and acknowledges
// accepted events.
func (e *engine) await(most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for over := false; e.inFlight > 0 && !over; {
		select {
		case b := <-e.results:
			if err := e.settleAll(b); err != nil {
				return err
			}
		case <-timer.C:
			over = true
		}
	}
	return e.acknowledge()
}

// discard waits for writes whose outcome can no longer be recorded.
func (e *engine) discard(most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for e.inFlight > 0 {
		select {
		case <-e.results:
			e.inFlight--
		case <-timer.C:
			return
		}
	}
}

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

// Heartbeat are events that the worker makes itself, so that a receiver distinguishes a sink without
// events from one that has ended. They are in no queue: one that fails is not repeated.
type Heartbeat struct {
	Every time.Duration // 0: none
	// Make makes the next one; nil: not now. It is called from one goroutine at a time.
	Make func() *event.Event
}

// beat sends a heartbeat if one is due, as long as the sink flows. It takes the first lane, whose
// events wait for it.
func (e *engine) beat(now time.Time) {
	if !e.beats() || now.Before(e.nextBeat) {
		return
	}
	e.nextBeat = now.Add(e.cfg.Heartbeat.Every)
	ev := e.cfg.Heartbeat.Make()
	if ev == nil {
		return
	}
	b := &e.lanes[0].batch
	b.reset()
	b.events, b.beat = append(b.events, ev), true
	e.send(b.lane, now)
}

// beats reports whether a heartbeat could be sent.
func (e *engine) beats() bool {
	return e.cfg.Heartbeat.Every > 0 && e.circuit.phase == flowing && !e.onRequest.Load() && !e.lanes[0].busy
}

// settleBeat settles a heartbeat. What it shows of the sink, the next write of an event shows too.
func (e *engine) settleBeat(b *batch) {
	b.lane.busy, b.beat = false, false
	e.inFlight--
	e.circuit.end(b.ticket)
	switch {
	case b.err == nil:
		e.metrics.heartbeats.Inc()
	case !e.cancelled:
		e.log.repeat("a heartbeat failed; the next one follows", b.err)
	}
}
