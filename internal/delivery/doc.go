// Package delivery stands between a queue of the store and a sink: one [Worker]
// per sink reads, decodes, batches, writes, retries and acknowledges.
//
// Guarantees:
//
//   - At least once. An event leaves the queue only after the sink accepted it
//     or after it became a dead letter. Crashes, cancellations and failed writes
//     leave it where it is.
//   - Order per object, which is its path. A batch holds any number of events of
//     one object (one [store.Item] Lane), in order; two Writes at the same time
//     never do. After a failed event the later ones of its object are held back,
//     those of the same batch included, until it was accepted or became a dead
//     letter.
//   - Failures stay small. A failure of any class is the whole sink's only as long
//     as no event of another object is accepted: in the same write, or in one that
//     was sent after it. Otherwise it delays that object's events and nothing else.
//     A probe of a failing sink takes another object than the last one did. A
//     failure of the whole sink delays that sink and no other: the backlog is on
//     disk.
//   - A sink is paused by answers to two objects, not to one. For an event that is
//     answered so alone, the answer counts as a refusal, with about
//     Retry.ProbeInterval between two tries.
//   - One worker at a time. A Write that does not return when it is cancelled is left
//     behind; the next worker of the queue opens its sink when it has returned
//     ([Config.Previous]).
//   - A failing receiver is spared. After a failure of the whole sink one event
//     at a time is tried, with exponential backoff and jitter or when the
//     receiver asked for it, until one is accepted; batches then grow back. The
//     schedule is kept in the queue's note and survives restarts.
//   - Nothing is given up on age or on the number of retries. Dead letters are
//     events the sink refused as its own fault ([sinks.Poison], a panic, a pause
//     that concerns them alone), events larger than its limit, records that cannot
//     be decoded, and events that an operator skips; each is counted, logged and
//     kept with its reason.
//   - A receiver that refuses everything makes no dead letters: refusals of 20
//     objects in a row pause the sink, and until then an event that was refused
//     often enough waits for an acceptance of another one, for as long as there are
//     others to try. Fewer objects than that, if they are all there is, are given up
//     after 20 seconds, and one alone without that. A sink also pauses when there is
//     no room for dead letters.
//   - A backlog behind failed events is delivered in batches and read back in
//     ranges, in the order of the queue.
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
//     further until one of them moves. Status and metrics report it, and the
//     status names the objects.
//   - One event answered with a long Retry-After delays its sink once by that time,
//     capped by Retry.AfterMax, if no other event is accepted beside it.
//
// # Where to look
//
// worker.go opens a sink and runs engine.go, the loop of one goroutine: reader.go reads
// ahead, prepare.go and oversize.go make events of records, form.go batches (lane.go,
// object.go), write.go writes, settle.go and outcome.go judge the results. What a failure
// means is in circuit.go (the sink), doubt.go, failures.go and panic.go (an event), what
// remains of it in deadletter.go, skip.go and note.go.
//
// The package is larger than others, because it is one state machine: every chapter
// reads and writes the same objects, attempts and circuit, on the loop's goroutine.
package delivery
