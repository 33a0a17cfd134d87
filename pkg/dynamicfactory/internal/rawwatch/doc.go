// Package rawwatch lists and watches one resource of an API server for a client-go
// reflector, and reads the responses as raw JSON.
//
// A [Source] is a cache.ListerWatcher that shows the reflector one list and then one
// endless watch. It handles broken connections, server timeouts, rejections and silence
// itself. The watch ends with an "expired" error, which makes the reflector list again,
// only if history is lost for good: after HTTP 410, after the server's versions went
// backwards, or after three attempts to read an object.
//
// Guarantees:
//
//   - A list is consistent and complete, or it is an error. A page that fails for the
//     moment is retried on its own. Only a list or a DELETED event deletes an object.
//   - With a check of the cluster, no list and no event is of another cluster: a probe precedes a
//     list, and one follows it if it has no known object; one follows a watch's response before
//     its first event is taken.
//   - A list or a bookmark that is older than what was received before is not taken, unless
//     the server's versions went backwards.
//   - An unreadable object is skipped in a list and in the watch, there after three attempts
//     if it is no JSON. Its cached state stays, and the gap is reported once. An object without a
//     readable name makes the whole list an error.
//   - A list may take longer than the server keeps its history: the watch begins with the
//     first page, and its events are buffered until the list is complete.
//   - A watch resumes from a version known to be complete. Several events may share one
//     version, so the version of the last event is not complete. Events that are therefore
//     received again are recognized and forwarded once.
//   - The window bounds the events forwarded and not acknowledged. A full window stops
//     reading, and TCP slows the server down.
//   - Every list and every event has a position, and [Source.Checkpoint] returns the
//     version that is complete once everything up to a position is durable.
//
// A Source runs no goroutine before its first list, and [Source.Wait] returns when there
// is none left.
//
// # Layout
//
// The requests (package apiclient), the position arithmetic (package progress) and the
// buffers of held watches (package spool) are separate packages. The package is larger than
// others, because its parts share the state of one Source: a list leaves a held watch for the
// stream, a stream and its watchdog decide by the same status and progress, and lists and
// streams skip unreadable objects by the same rules.
package rawwatch
