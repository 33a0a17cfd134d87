// Package feed is the pipeline from informers to sinks, and the owner of its
// goroutines.
//
// One goroutine, the committer, takes every informer's notifications in the order
// they were made, compares them with the ledger, turns what really changed into
// events, routes them and commits events, ledger and checkpoints in one atomic
// batch. That makes the guarantees simple to state:
//
//   - An event is emitted if and only if an object's recorded state changed
//     (uid or resourceVersion). Relists, resyncs and restarts are silent where
//     nothing changed, and deletions that nobody saw are found.
//   - Events, the ledger and the version a watch may resume from move together
//     or not at all. What is not committed is read again from the API server.
//   - The informers are slowed down, and no memory grows, when the disk stalls or
//     the store is full.
//
// Applying a new configuration is a diff of values ([Manager.Apply]): what did
// not change keeps its connection, its queue and its sink.
//
// Caveats: order holds for each object, not between objects. What happened to an
// object between two observations, once the API server's history is gone, cannot
// be known; a gap record says so.
package feed
