// Package store is the daemon's only durable store: the ledger (the last recorded
// state of every object), the event log, one queue per sink over that log, dead
// letters, and small metadata such as checkpoints. It stores opaque bytes and knows
// neither Kubernetes nor events.
//
// # What may be relied on
//
// Atomic and durable commits. A Batch is one Pebble batch with fsync. After a crash,
// all log records, queue entries, ledger changes and metadata of a Commit exist, or
// none. Commit returns nil only after the fsync, and after a check that the store
// still belongs to this process.
//
// With a journal ([Options.Journal]) that takes the place of the fsync: Commit returns nil once the journal has the
// batch and the directory has it, too, without fsync. Batches that wait become one entry. A crash of the machine may
// set the directory back to an earlier entry, from which [Replica] follows the journal.
//
// Fail-stop. The first failed write or fsync ends the Store: [Store.Failed] is closed
// and every later call returns [ErrFailed] with the cause. From that moment no file of
// the directory is written, renamed or removed, even by writes that Pebble has in
// flight. A failed fsync is never repeated over the same data. The process is expected
// to exit; the next Open recovers every commit. (A full disk met by a background flush
// or compaction is not such a failure, as no commit depends on it: ingest pauses and
// the work is retried.)
//
// No loss between queue and log. A record stays in the log while any queue has an
// unacknowledged entry for it, replays included; afterwards retention decides. A sink
// that was removed from the configuration keeps its backlog until [Store.PurgeSink]. A
// queue that holds back much of the log for few records gets copies of its own records
// instead (detach.go), so a sink that is down costs only its own backlog; [Stats]
// reports how much.
//
// Acks are cheap. The next commit makes them durable, or [Store.Run] within 50 ms; with a journal, its next entry
// within 100 ms.
// After a crash, the last acknowledged entries may be read again, under the same
// sequence. (Pebble keeps unsynced writes in its own memory, so this holds for kill -9
// too.)
//
// Entries are acknowledged in any order. Only unacknowledged ones are read again after
// a restart.
//
// Positions. Sequences of log records and positions of queue entries come from one
// counter; the entry of a new record has the record's sequence as its position.
// Replays and retried dead letters get new positions for old sequences. Within a queue,
// positions become visible in increasing order. They only rise, for lost and restored
// directories too: each Open continues from the later of the last one and the clock,
// which leaves gaps.
//
// Bounded disk. [Store.WaitIngest] blocks near Limits.MaxBytes and below
// Limits.MinFree; reads, acks and dead letters continue. Delivered records kept only
// for replay are deleted first. Every byte committed between two measurements of the
// disk (four a second) is counted, so callers that call WaitIngest before each batch
// overshoot by at most that batch. The reserve below MaxBytes holds the files that
// Pebble rewrites; its memtables, tables and base level are sized by the budget
// (engine.SizeFor).
//
// A full disk. Allocated files reserve some room, so that acknowledged entries still
// become free space when other programs fill the disk. Acks continue while compactions find no
// room: ingest waits for level 0, other writes do not. Open fails with the operating
// system's ENOSPC, wrapped; it does not wait for room.
//
// Bounded dead letters. They have a share of the budget, and each sink a part of it. When they are used up,
// [Queue.DeadLetter] fails with [ErrDeadLettersFull] and the entry stays. They expire.
//
// Never wiped. Open leaves a directory that it cannot open unchanged ([ErrDamaged]);
// package inspect reads around the damage, block by block. A state of the ledger that a repair has removed is unreadable, and not
// one that never was, until it is recorded again ([Store.LostStates]). A record that becomes
// unreadable later turns into a dead letter with the reason "unreadable"; the records
// after it are delivered.
//
// Rewriting. [Store.RewriteLog], [Queue.RewriteQueue] and [Queue.RewriteDeadLetters]
// replace payloads in place without stopping other calls. Positions and order stay.
// [Store.EraseObsolete] then removes from the files everything that was overwritten or
// deleted before it.
//
// Copied whole. [Store.Dump] writes what the store has as of one moment, and [Seed] replaces the contents of a
// directory by that, verified: a crash leaves what it had or all of the new.
//
// Opened over damage to what the log shows, too: unreadable marks are made again of the records, and in place of unreadable pins of
// replays the whole log is kept until their queue is delivered. Counters, names and the version of the layout are vital.
//
// Repaired while it runs. When a compaction, or a reader of a queue, the log or a state, fails on a damaged block, [Store.Run]
// overwrites the block with an empty one (repair.go), as all writes would stop
// otherwise. Entries whose record was in it become dead letters; one dead letter stands
// for lost entries. Who reads the log, or headlines, finds them unreadable later, too.
// Counters, names and marks are restored from memory. A lost ledger
// entry, metadata value or note is absent or has an older value; the log line names the
// range. A lost tombstone of the ledger brings the entry back. A damaged index or filter of a
// table is made again from its blocks, also while the store is opened, if no block of data is
// damaged with it. Other damage to a table is not repaired: the store fails before it blocks writes.
//
// # What may not
//
// One process. A lock file keeps a second one out; where locks do not work (some
// network filesystems) an owner token makes the older process fail with
// [ErrStolen] at its next commit, before that commit is reported as done.
//
// One batch appends at a time: from its first Append until Commit or Discard it holds
// the right to number records, and Append of another batch, [Store.Replay] and
// [Queue.RetryDeadLetters] wait. Do not block in between, in WaitIngest neither. All
// other methods may be called from any goroutine.
//
// Times in records are the caller's. Retention and replay by time use those that are in
// order with most others; a record written under a wrong clock counts as old as the
// next one after it (retention.go). Records and dead letters expire by a clock that jumped ahead
// only when it has stayed there for an hour. A dead letter that is made while the clock is
// behind the end of the log gets the time of that.
//
// # Packages
//
// Package layout has the keys and values, engine the directory and Pebble's options,
// salvage the reading around damage, inspect the commands for a damaged store. This
// package is larger than its neighbours: queues, log, ledger and repair share one
// batch, one counter of positions and the locks of [Queue] and [Store], which a
// boundary between them would export.
//
// # Order of shutting down
//
// Cancel the contexts of Run and the workers, then call Close. It waits for calls in
// progress, so a callback of ScanState must not call it.
package store
