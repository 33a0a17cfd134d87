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
//   - A state that is older than the recorded one of the same object is no change.
//     The checkpoint marks a list that is committed in part: the next start begins
//     with the list of that version.
//   - The informers are slowed down, and no memory grows, when the disk stalls or
//     the store is full.
//
// Applying a new configuration is a diff of values ([Manager.Apply]): what did
// not change keeps its connection, its queue and its sink. Routes, sinks and the
// watches of running sources change in one step between two commits.
//
// Work of many objects (the deletions that a first list shows, snapshots) is a job of
// the committer, which does a part of it with each group.
//
// # Where to look
//
// The owner starts and stops things, one request after the other: manager.go (its
// life, and the order of the end), apply.go (a new state), desired.go (which
// informers a state asks for), sinkset.go (the sinks' workers), fill.go, rejoin.go and
// unwatched.go (what sinks that are new or back begin with, what removed watches
// leave), edits.go and scrub.go (what the configuration hides of what is recorded, when
// it is read and on disk), patterns.go (what resource names mean), gone.go (definitions
// that are deleted).
//
// An informer and its watches are a source: source.go. identity.go gives it its names
// in the store, rerecord.go follows a change of its form, and selection.go a selection
// that was changed while the daemon was down. What it tells becomes a
// change (change.go), which the committer takes up in groups (committer.go) and
// judges: process.go for objects, sync.go for the end of the first list and the
// deletions that it shows, gap.go for lost history, reselect.go for namespaces whose
// labels changed. ledger.go is what it compares with and writes to; remembered.go what
// else the store keeps.
//
// namespaces.go and namespacetable.go follow the labels of namespaces. audit.go
// compares the ledger with the cluster now and then. snapshot.go and replay.go
// deliver again. objects.go, status.go, collector.go and recent.go are for those
// who look on: the read API, people, Prometheus and the event stream.
//
// Caveats: order holds for each object, not between objects. What happened to an
// object between two observations, once the API server's history is gone, cannot
// be known; a gap record says so.
package pipeline
