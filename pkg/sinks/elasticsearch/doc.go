// Package elasticsearch writes events to Elasticsearch or OpenSearch by their bulk API: every event into a data
// stream or index (mode history), or the current state of each object into an index (mode state).
//
// Guarantees:
//
//   - Accepted means that the bulk answer has a success for the event's own item: the primary shard and the replicas
//     in sync have it.
//   - History: the document's id is the event's, and only created, so an event that is sent again leaves one
//     document in the backing index that has it.
//   - State: the document's version is the event's sequence, so an event that is older than the document changes
//     nothing. It is accepted and counted. A deletion is a document with deleted_at, since Elasticsearch keeps the
//     version of a deleted document for a minute; the sink deletes it after Tombstones.
//   - A request holds one event of an object at most: no later one can overtake it by its failure.
//   - Each item has its own result: 429 and 5xx are retried, 400 is the fault of the event, 401, 403 and 404 pause
//     the sink.
//   - A document that a data stream refuses and puts into its failure store, or that an ingest pipeline drops, is the fault of
//     the event as well, although the cluster reports success.
//
// Caveats: a data stream that rolls over between two attempts has the event twice, in two backing indices. In mode
// state an event that is older than a tombstone's life is taken for a new object, and gaps are not written.
package elasticsearch
