// Package pipeline is the owner of everything that runs between the API server and the
// sinks: informers, the committer and the sinks' workers.
//
// Guarantees:
//
//   - One goroutine starts and stops informers and workers, one request after the other
//     ([Manager.Run], [Manager.Apply]). The order of the end is written there.
//   - Applying a configuration is a diff of values: what did not change keeps its
//     connection, its queue and its sink. Routes, sinks and the watches of running feeds
//     change in one step between two commits.
//   - What can fail for reasons of the new state, or because of a damaged note in the
//     store, fails before anything is changed. A store that fails later ends Run.
//   - A scrub of the store, the consistency check and the looks for definitions and
//     namespaces run beside it; all end with Run.
//
// # Where to look
//
// manager.go has the owner's life, apply.go follows a new state, desired.go works out the
// feeds that a state asks for, and what resource names mean. sinkset.go runs the workers,
// rejoin.go gives sinks what they missed, commands.go carries out what people ask for.
// namespaces.go follows the labels of namespaces, and looks for those that watches name.
// definitions.go notes which resources have a definition, and reports the objects of deleted
// ones. caches.go runs the informers that routes read, heartbeat.go makes the events of a
// sink's heartbeat, routesets.go numbers the routes of replays. edits.go
// hides what is recorded when it is read, and has package scrub hide it on disk. ledgergc.go
// deletes what no watch reads any more. consistency.go compares the ledger with the cluster.
//
// The package is larger than others. Its parts, but for the consistency check, share the
// owner's goroutine and the one state that it applies: each alone would need the others'
// values handed in.
package pipeline
