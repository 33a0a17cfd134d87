// Package store is the one durable store of the daemon: the ledger (the last
// recorded state of every object), the event log, one queue a sink over that
// log, dead letters, and small metadata such as checkpoints. Everything it
// stores is opaque bytes; it knows neither Kubernetes nor events.
//
// # What may be relied on
//
// Atomic and durable commits. A Batch is one Pebble batch with fsync: log
// records, their queue entries, ledger changes and metadata of one Commit are
// all there after any crash or none is. Commit returns nil only after the
// fsync, and after a check that the store still belongs to this process.
//
// Fail-stop. The first write or fsync that fails ends the Store for good:
// [Store.Failed] is closed, every later call returns [ErrFailed] with the
// cause, and from that moment nothing of the directory is written, renamed or
// removed, whatever Pebble still has in flight. An fsync is never repeated over
// data whose first fsync failed. The process is expected to exit; opening the
// directory again recovers what was committed. (A full disk met by a background
// flush or compaction is not such a failure: nothing committed depends on it,
// so ingest is paused and the work is tried again.)
//
// No loss between queue and log. A record stays in the log while any queue has
// an entry for it that is not acknowledged, replays included; after that it is
// kept for replay as retention says. A sink that was removed from the
// configuration keeps its backlog until [Store.PurgeSink]. A queue that holds much of
// the log back that is not for it gets copies of its own records instead (detach.go),
// so a sink that takes nothing costs its own backlog, and [Stats] says what it holds.
//
// Acks are cheap. They are not synced one by one: the next commit makes them
// durable, or else [Store.Run] within 50 ms. After a crash, entries acknowledged in
// the last moments before it may be read again, under the same sequence. (Pebble
// keeps unsynced writes in its own memory, so this holds for kill -9 too.)
//
// Entries are acknowledged in any order. Only what was not acknowledged is read
// again after a restart.
//
// Positions. Sequences of log records and positions of queue entries come from
// one counter, so the entry of a new record has the record's sequence as its
// position. Replays and retried dead letters get new positions for old
// sequences. Within a queue, positions become visible in increasing order. They only
// rise, for lost and restored directories too, as each Open continues from the later
// of the last one and the clock (sequence.go); so they are not dense.
//
// Bounded disk. Coming near Limits.MaxBytes, or falling below Limits.MinFree,
// makes [Store.WaitIngest] block; reads, acks and dead letters go on. Delivered
// records kept only for replay are given up first. Between two measurements of
// the disk (four a second) every committed byte is counted, so callers that ask
// WaitIngest before each batch overshoot by at most that one batch. What Pebble
// rewrites and keeps meanwhile comes on top; its memtables, tables and base level
// are sized after the budget (engine.SizeFor), and the reserve below MaxBytes holds them.
//
// A full disk. Some room is kept as allocated files, so that acknowledged entries still
// become free space when other programs fill the disk.
// Open does not wait for room: it fails, with the operating system's ENOSPC wrapped.
//
// Bounded dead letters. They take a share of the budget; then [Queue.DeadLetter]
// fails with [ErrDeadLettersFull] and the entry stays. They expire with an age.
//
// Never wiped. A directory that cannot be opened is left as it is
// ([ErrDamaged]); package inspect reads what can be read, block by block. A
// record that turns out to be unreadable later becomes a dead letter with the reason
// "unreadable", and the records after it go on.
//
// Rewriting. [Store.RewriteLog], [Queue.RewriteQueue] and [Queue.RewriteDeadLetters]
// replace payloads in place while everything else goes on; positions and order
// stay. [Store.EraseObsolete] then leaves nothing in the files of what was
// overwritten or deleted before it.
//
// Repaired while it runs. Where a compaction fails on a damaged block, [Store.Run]
// overwrites the block with an empty one (repair.go), as all writes would stop otherwise.
// Entries whose record was in it become dead letters, and one dead letter stands for lost
// entries. Counters, names and marks are restated from memory. A lost ledger entry is
// absent or has an older value, a lost value of metadata or a note likewise; the line of
// log names the range. A lost tombstone of the ledger brings the entry back. Damage to the
// index or footer of a table is not repaired: the store fails when it stops writes.
//
// # What may not
//
// One process. A lock file keeps a second one out; where locks do not work (some
// network filesystems) an owner token makes the older process fail with
// [ErrStolen] at its next commit, before that commit is reported as done.
//
// Appending is for one goroutine at a time: from the first Batch.Append until
// Commit or Discard the batch holds the right to number records, and another
// batch's Append, [Store.Replay] and [Queue.RetryDeadLetters] wait for it. Do not
// wait for anything that may take long (WaitIngest included) in between.
// Everything else may be called from any goroutine.
//
// Times in records are the caller's. Retention and replay by time go by those that are
// in order with most others; a record from a moment when the clock was wrong counts as
// old as the next one after it (marks.go).
//
// # Packages
//
// Package layout has the keys and values, engine the directory and Pebble's options,
// salvage the reading around damage, inspect the commands for a store that may be
// damaged. The package itself is larger than its neighbours: its queues, log, ledger
// and repair share one batch, one counter of positions and the locks of [Queue] and
// [Store], so a boundary between them would export these.
//
// # Order of shutting down
//
// Cancel Run's context and the workers' first, then Close: it waits for calls
// in progress, so a callback of ScanState must not call Close.
package store
