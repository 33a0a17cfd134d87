// Package plugin gives batches of events to a program of the user's, over HTTP on a Unix socket or at a URL. The program
// answers with a results document ([sinks.ParseResults]), in which each event has a result of its own.
//
// Guarantees:
//
//   - Accepted means that the document has accepted for the event. An answer without a document that is understood in
//     full proves nothing: the events come again.
//   - A batch that the program refuses as a whole with 400, 413 or 422 is sent in halves until the event is found.
//   - A program that `command` starts ends with the sink, with all that it has started, and is started again when it
//     has ended or its socket was deleted. It gets no variable of watcherd's environment that may be a secret.
//   - Nothing of a Write is sent after it has returned.
//
// Caveats: what a program does late with a request that was cancelled is up to it. The events come again, with the same
// ids.
//
// [Check] is the suite that a program passes before it is used.
package plugin
