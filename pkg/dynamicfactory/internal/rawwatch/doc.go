// Package rawwatch lists and watches one resource of an API server for a client-go
// reflector, reading the responses as raw JSON.
//
// A [Source] is a cache.ListerWatcher of which the reflector sees a simple world:
// one list, then one watch that never ends. Broken connections, server timeouts,
// refusals and silence are dealt with inside; the watch ends with an "expired"
// error, upon which the reflector lists again, only if history is lost for good:
// after HTTP 410, after the server's versions went backwards, or when an object
// cannot be read although it was sent three times.
//
// What it promises:
//
//   - A list is consistent and complete, or it is an error. A page that is refused
//     for the moment is read again by itself. Nothing but a list or a DELETED event
//     makes an object go.
//   - An object that cannot be read is left out of a list, and its event out of the
//     watch after three attempts; what the informer has of it stays, and the gap is
//     told once. One that cannot even be named makes the whole list an error.
//   - A list may take longer than the server's history lasts: with its first page,
//     the watch begins, whose events are kept until the list is done.
//   - A watch is resumed from a version known to be complete. Several events may
//     share one version, so the version of the last event is not: events that come
//     twice because of that are recognised and handed on once.
//   - At most so many events are handed on and not acknowledged as the window
//     allows; beyond that the stream is not read, and TCP slows the server down.
//   - Every list and every event has a position, and [Source.Checkpoint] says which
//     version is complete once everything up to a position is safe.
//
// A Source runs no goroutine before its first watch, and [Source.Wait] returns when
// there is none left.
package rawwatch
