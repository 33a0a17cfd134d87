// Package delivery stands between a queue of the outbox and a sink: one [Worker]
// per sink reads, decodes, batches, writes, retries and acknowledges.
//
// Guarantees:
//
//   - At least once. An event leaves the queue only after the sink accepted it
//     or after it became a dead letter. Crashes, cancellations and failed writes
//     leave it where it is.
//   - Order per object. A batch holds any number of events of one object (one
//     [outbox.Item] Lane), in order; two Writes at the same time never do. After a
//     failed event the later ones of its object are held back, those of the same
//     batch included, until it was accepted or became a dead letter.
//   - Failures stay small. A retry or a refusal that concerns one object delays
//     that object's later events and nothing else. A failure of the whole sink
//     delays that sink and no other: the backlog is on disk.
//   - A failing receiver is spared. After a failure of the whole sink one event
//     at a time is tried, with exponential backoff and jitter or when the
//     receiver asked for it, until one is accepted; batches then grow back. The
//     schedule is kept in the queue's note and survives restarts.
//   - Nothing is given up on age or on the number of retries. Dead letters are
//     events the sink refused as its own fault ([sinks.Poison], a panic), events
//     larger than its limit, and records that cannot be decoded; each is
//     counted, logged and kept with its reason.
//   - Bounded memory. Reading ahead is bounded in events and bytes; of events
//     that wait behind a failing object only positions are held, 65,536 of them.
//
// Caveats:
//
//   - A sink that panics on three events in a row is paused. If all that is left
//     panics, it stays so until somebody calls [Worker.Resume]: that many events
//     are not given up on for what is likely a bug of the sink.
//   - After a dead letter the object's later events go on (leniently), so a
//     receiver may see a later state without the refused one.
//   - Between objects there is no order: a retried event is overtaken by other
//     objects' events.
//   - A redelivery after a crash starts at the first event whose acceptance was
//     not recorded; what followed it may come again with it, in order and with
//     the same IDs.
//   - Objects are told apart by Lane. Two objects with one Lane share an order
//     and delay each other; nothing is lost by that.
//   - When 65,536 events wait behind failing objects the worker reads no
//     further until one of them moves.
package delivery
