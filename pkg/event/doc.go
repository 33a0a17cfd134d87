// Package event holds watcherd's public event: one change of one Kubernetes
// object, and its encodings.
//
// Guarantees:
//
//   - The ID of a change is deterministic: the same change has the same ID after
//     every retry, restart, relist or replay, so a receiver may drop what it has
//     already seen (see [ID]).
//   - Encoders append to a caller's buffer, never touch the event, and write the
//     object's JSON as it was observed (after dropping and redaction), without
//     decoding it.
//
// Caveats: an Event and the JSON it carries are shared between sinks. A consumer that
// receives one must not change it.
package event
