// Package journal keeps the batches of a store in a JetStream stream, so that the store survives the loss of
// its machine. The stream is the consensus and the fence: an entry is appended only if the stream's last sequence is
// the one the writer knows (Nats-Expected-Last-Sequence, compared by the stream's leader), so there is one
// writer at a time, and a writer that was replaced can append nothing.
//
// # Entries
//
// An entry is a batch in the form of the storage engine, compressed, cut into parts that fit
// the server's max_payload, and encrypted. All parts are consecutive messages on one subject. The
// header Watcherd-Entry describes the entry and is authenticated with the body. A term begins with an entry of
// kind "term"; entries of the writer before that are incomplete then are void.
//
// Each entry has the checksum of the one before it, and a directory has that of its last entry: a
// directory that is not of this journal, and a stream that has lost entries, are recognized.
//
// # Snapshots
//
// A second stream has a copy of the store as of an entry, with which a directory is seeded that lacks entries which
// the stream has no longer. See [Snapshot].
//
// # Who may use what
//
// A [Client] may be used from any goroutine. A [Reader] and a [Writer] belong to one goroutine each, but for
// [Writer.Age] and [Writer.Written].
package journal
