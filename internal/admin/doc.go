// Package admin is the HTTP side of the daemon: health, metrics, status, the
// objects that the watches see, the event log as a stream, and the commands behind
// `watcherd replay` and its like.
//
// Guarantees:
//
//   - On loopback, without further protection, only programs of this machine are
//     answered: a browser that some web site directs here (DNS rebinding, forged
//     posts) is not.
//   - Elsewhere nothing is answered without a bearer token, where one is
//     configured, or a client certificate of the configured authority, by name where
//     names are configured. All files are followed as they change.
//   - The page below /ui/ is for everybody, because it holds no data: a browser has no token
//     before it, and comes by links of other sites. What it shows it asks for as any client.
//   - Reading and commands are separate rights. A command is everything but GET, HEAD and
//     what is below /at/, where nothing can be changed. The log has each with its client,
//     before it begins and when it ends.
//   - The probes listener has /livez, /readyz and /metrics only, and its health
//     answers name what is wrong without saying why.
//   - Nothing is unbounded: connections, headers, bodies, pages, streams, and
//     commands at a time; a reader of the stream that does not read is cut off.
//   - Errors are application/problem+json (RFC 9457) with a detail that a person
//     can act on.
//
// What is served is read from caches and the log. For two answers the API server is asked, once and within a few
// seconds: for the managed fields of the object of a blame, and for the definition of a custom resource whose
// columns a list wants.
//
// The package is larger than others: its handlers are one each for a command or a kind of
// answer, and share the guard, the bounds and the description of the interface.
//
// Caveats: addresses, TLS and token settings take effect at a restart (their files'
// contents at once). Pages of a list are not of one moment. A client that may read the
// listener reads every object that a watch sees, with what the watch does not
// redact.
package admin
