package sinks

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Class is what a failure means for the next step.
type Class int

// The classes, from the mildest to the one that needs a person.
const (
	ClassRetry  Class = iota // try again with backoff, for as long as it takes
	ClassPoison              // this event will never be accepted: dead letter after a few tries
	ClassPause               // nothing will be accepted until an operator acts: stop, keep the backlog
)

func (c Class) String() string {
	switch c {
	case ClassPoison:
		return "poison"
	case ClassPause:
		return "pause"
	default:
		return "retry"
	}
}

// classified is an error with a class and, for retries, a delay.
type classified struct {
	class    Class
	after    time.Duration
	tooLarge bool
	err      error
}

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.err }

// mark returns e, nil if it marks nothing.
func mark(e *classified) error {
	if e.err == nil {
		return nil
	}
	return e
}

// Poison marks err as the fault of the event itself: the destination understood
// and refused it (HTTP 400 or 422). The result is nil if err is, as with [TooLarge], [Pause]
// and [RetryAfter].
func Poison(err error) error { return mark(&classified{class: ClassPoison, err: err}) }

// TooLarge marks err as the refusal of an event for its size alone (HTTP 413, a
// message above the broker's limit). Its class is [ClassPoison]. With `onOversize: truncate`
// the worker sends a smaller copy of the event.
func TooLarge(err error) error {
	return mark(&classified{class: ClassPoison, tooLarge: true, err: err})
}

// IsTooLarge reports whether err is a refusal for size.
func IsTooLarge(err error) bool {
	c, ok := errors.AsType[*classified](err)
	return ok && c.tooLarge
}

// Pause marks err as one that no retry fixes: credentials, a missing stream, an
// endpoint that is gone (HTTP 401, 403, 404, 410). The sink stops and keeps its
// backlog once the next attempt, with another object's event if there is one, ends the same; it
// is retried periodically, and after a reload. Where events of other objects are accepted, the
// error counts as a refusal of this event.
func Pause(err error) error { return mark(&classified{class: ClassPause, err: err}) }

// RetryAfter marks err as temporary, with the delay the destination asked for. The
// delay holds for the whole sink, or for this event alone where events of other
// objects are accepted; the worker caps it at five minutes.
func RetryAfter(err error, d time.Duration) error {
	return mark(&classified{class: ClassRetry, after: d, err: err})
}

// Held is the failure of an event that was not tried because another one of the batch
// failed with err: an earlier one of its object, or one that seems to concern the
// destination. This is a retry, independent of that one's class and delay: the event
// itself was blamed for nothing.
func Held(err error) error {
	return errors.New("not sent, since another event failed: " + err.Error())
}

// Classify returns the class of err and the delay its source asked for (0: none).
// An error without a class is a retry.
func Classify(err error) (Class, time.Duration) {
	if c, ok := errors.AsType[*classified](err); ok {
		return c.class, c.after
	}
	return ClassRetry, 0
}

// BatchError names the events of a batch that failed; all others were
// accepted.
type BatchError struct {
	Failed map[int]error // index in the batch → why
}

func (e *BatchError) Error() string {
	if len(e.Failed) == 0 {
		return "no event failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e.Failed)))
	return fmt.Sprintf("%d events failed, the first: %v", len(e.Failed), e.Failed[first])
}

// FieldError is a problem with one field of a kind's block.
type FieldError struct {
	Path string // key path below the kind's key, such as tls.certFile or subject
	Msg  string // what is wrong and what to do, without the path

	// Line and Column are the place within the field's text, from 1 and in characters; 0:
	// the text as a whole.
	Line, Column int
}

// Within returns the place of the problem in the field's text, for a loader.
func (e *FieldError) Within() (line, column int) { return e.Line, e.Column }
func (e *FieldError) Error() string              { return e.Path + ": " + e.Msg }

// Field returns the two parts of the problem, for a loader that knows the place of the block
// in its file.
func (e *FieldError) Field() (path, msg string) { return e.Path, e.Msg }
