// Package nats publishes events to NATS: with acknowledgement and deduplication
// to a JetStream stream, or without either to core NATS.
//
// Guarantees with a stream:
//
//   - Accepted means that the stream acknowledged the event. The Nats-Msg-Id is derived
//     from the event's id, the sink's name and the subject: what the stream has seen
//     within its duplicate window is not stored again, and counts as accepted. Sinks that
//     share a stream do not share ids. Replays and snapshots are stored each time.
//   - Order per object holds when publishes fail: two events of one object are never
//     under way at once. A batch goes out in rounds, each with at most one event of
//     an object; an event whose object had a failure is not sent and fails too.
//   - A Write ends within three times the timeout. What the stream had acknowledged by
//     then is accepted.
//   - Nothing is made or changed on the server, except a stream that is missing where
//     `create` asks for it.
//
// Guarantees without a stream: accepted means that the server has processed the
// batch on the connection it was written to. Whether there was a subscriber is unknown.
//
// In both, Write fails at once while the connection is down, and the connection is
// made again without limit, with secrets and files read each time. What only an
// operator can fix (credentials, permissions, a missing stream, JetStream not
// enabled) pauses the sink with a message that names it.
//
// Two installations that watch one cluster and publish into one stream need sink names
// or subjects of their own. The sink counts and logs a duplicate of an event that it has
// not published before.
//
// Caveats: what a stream acknowledges is as safe as the stream. One that is kept in
// memory, or is written behind the acknowledgement, or drops what no consumer wants, or
// has one replica in a cluster, or remembers ids for less than two minutes, is warned
// about once. A file stream, too, syncs every two minutes unless the server is
// configured otherwise.
package nats
