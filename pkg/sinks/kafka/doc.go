// Package kafka writes events to Kafka topics, by the CloudEvents binding.
//
// Guarantees:
//
//   - Accepted means that the brokers acknowledged the record: with acks: all, every replica in
//     sync. Each event has a result of its own.
//   - The key is the event's partition key, hashed as Java's producer does: the events of an object
//     are in one partition, in order, as long as the topic keeps its number of partitions. A later event of an
//     object goes out in the same record batch as an earlier one, or when that one is acknowledged.
//   - Within the life of the sink, brokers drop what the client sends twice (idempotent), and refuse
//     what arrives late of a Write that was cancelled. Over a restart of watcherd an event may be
//     written again, with its id.
//   - A Write ends within three times the timeout. A Write whose records cannot go out fails for
//     the reason that its topic gives: missing, not permitted, no broker that answers.
//   - Secrets and files are read again at each connection.
//   - Nothing is made or changed on the brokers, except a topic that is missing where `create`
//     asks for it.
//
// In mode state a topic has the last event of each object and a tombstone, a record without a
// value, for one that was deleted or left the selection. A replayed event that is older than what the topic
// has of its object is accepted and not written: the first one reads the topic. Gaps are not written.
//
// Caveats: what brokers acknowledge is as safe as the topic. One replica, min.insync.replicas
// below 2, an unclean election of leaders, and a state topic that is not compacted are warned
// about once. Tombstones expire (delete.retention.ms): a replay of older events brings back
// objects that were deleted before. Two clusters need state topics of their own.
package kafka
