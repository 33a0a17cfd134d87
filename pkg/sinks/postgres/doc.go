// Package postgres writes events to PostgreSQL: every event into the table history, the current
// state of each object into the table objects.
//
// Guarantees:
//
//   - Accepted means that the transaction with the event is committed. A batch is one transaction,
//     in one round trip, so that both tables always agree. Where the server has synchronous standbys, they have it, too, also if
//     the batch comes again and there is nothing to write.
//   - Exactly once: history has an event's id as its key, and objects takes a state only above the
//     sequence that it has. A batch that is written again, or cut elsewhere after a crash, changes nothing.
//   - An object that is deleted, or that leaves the watch's selection, keeps its row, with deleted_at: an
//     older event cannot bring it back. Gaps are in history alone.
//   - An event that the server refuses for its values (a NUL in jsonb, for one) is found by halving the
//     batch. It becomes a dead letter, and the others are written.
//   - A Write ends within the timeout for each server that is tried and each transaction, and at once
//     when it is cancelled.
//   - Secrets and files are read again at each connection.
//   - Nothing is made in the database unless `create` asks for it; the SQL that would make what is missing
//     is logged.
//
// Caveats: a commit is as safe as the server's settings. synchronous_commit=off and fsync=off are
// warned about once. jsonb keeps values, not text: the order of members, repeated members and the spelling of
// numbers are lost. Rows are never deleted; docs/postgres.md has the statements for that.
package postgres
