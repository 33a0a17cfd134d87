// Package commit is the committer: one goroutine that takes what informers report, in the
// order in which it was reported, turns what really changed into events, and commits
// events, ledger and checkpoints in one atomic batch.
//
// Guarantees:
//
//   - An event is emitted if and only if an object's recorded state changed (uid or
//     resourceVersion). Relists, resyncs and restarts are silent where nothing changed,
//     and missed deletions are found.
//   - Events, the ledger and the version that a watch may resume from move together or
//     not at all. What is not committed is read again from the API server.
//   - A state that is older than the recorded one of the same object is no change. The
//     checkpoint marks a list that is committed in part: the next start begins with the
//     list of that version.
//   - Informers are slowed down, and no memory grows, when the disk stalls or the store
//     is full.
//
// Caveats: order holds for each object, not between objects. What happened to an object
// between two observations, once the API server's history is gone, cannot be known; a gap
// event reports it.
//
// # What routes hold
//
// A held event of a throttle is a row in the store, by route, sink and object path: the
// record as it will be delivered, with the state that was sent last as its old object. The
// log has the record of every change with its targets, as without a throttle; only the
// queue entry is missing. The row is written in the batch of the change, and in the batch
// that removes it the entry is appended, with the payload of its own and the sequence of its
// last change, so nothing in the log must stay for it and no crash separates the two.
// Anything else of the object that goes to that sink first releases what is held. A match of a
// `for` is a row without a record, by route and object; when it is due, a record is made of
// the ledger's state. An index of rows by when they began has what is due; no row is in
// memory (package timer).
//
// # Who touches what
//
// The fields of [Committer] and [Feed] say it: constants, atomics and channels are for
// all; everything else belongs to the goroutine of [Committer.Run]. A feed's progress, but
// for the fields that say otherwise, is prepared before that by its owner
// ([Committer.Prepare]) and its informer ([Committer.Begin]), one after the other. Others act
// on the committer's state at a [Barrier], between two commits.
//
// # Where to look
//
// feed.go has an informer and its watches, start.go what it begins with.
// change.go has the kinds of changes, committer.go the loop and the group of one commit.
// process.go judges objects, gap.go lost history, sync.go the end of a first list, its
// deletions and states in a former form, namespacechange.go and namespacetable.go labels of
// namespaces, carried.go rules that stay until they are known, unjudged.go changes that were
// not given meanwhile, moved.go watches that read another part of the ledger. Work of many objects is a job,
// of which each group does a part: sweeps and farewells (sync.go), snapshots (snapshot.go),
// relabelled namespaces (namespacechange.go). watches.go finds what watches come to cover.
// timers.go looks after what routes hold, throttle.go holds events, lasting.go matches.
//
// The package is larger than others, because it is one goroutine: its chapters are the
// methods of one group, and all of them read and write the same feeds.
package commit
