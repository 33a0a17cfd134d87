// Package stdout writes events to the process's standard output: a line an event
// in the format asked for, or a form for people.
//
// Guarantees:
//
//   - A batch is one write. Lines of several sinks on one output do not mix.
//   - When a write ends half-way, the events that were written whole are accepted,
//     and the torn line is ended before anything else is written, by this sink, another
//     on the output, or one that is opened later.
//   - A reader that stops reading holds up the sinks on this output alone, and not their
//     Close. A reader that closes the pipe pauses them.
//
// A Go process ends with SIGPIPE when its own standard output or standard error is a
// closed pipe. A program that runs this sink on os.Stdout calls signal.Notify for SIGPIPE,
// as `watcherd run` does; writes then fail with EPIPE instead.
//
// Caveats: accepted means that the operating system took the bytes. What a
// reader of a pipe does with them is unknown.
package stdout
