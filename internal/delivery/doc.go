// Package delivery delivers a queue of the store to a sink: one [Worker] per sink
// reads, decodes, batches, writes, retries and acknowledges.
//
// Guarantees:
//
//   - At least once. An event leaves the queue only when the sink has accepted it or
//     it has become a dead letter. Crashes, cancellations and failed writes leave it
//     there.
//   - Order per object. A batch may hold several events of one object (one
//     [store.Item] Lane), in order; concurrent Writes never do. After a failed event,
//     the later ones of its object wait, those of the same batch included, until it
//     is accepted or becomes a dead letter.
//   - Isolated failures. A failure counts against the whole sink only while no event
//     of another object is accepted, in the same write or in a later one. Otherwise
//     it delays only that object's events. Each probe of a failing sink takes another
//     object. A failing sink delays no other sink: its backlog is on disk.
//   - A sink pauses on two answers in a row, the second of which is to another object if there
//     is one. Where events of others are accepted, such an answer counts as a refusal of the
//     event, with about Retry.ProbeInterval between attempts.
//   - One worker at a time. A Write that ignores its cancellation is abandoned; the
//     next worker of the queue opens its sink after the Write returns
//     ([Config.Previous]).
//   - Backoff. After a failure of the whole sink, single events are tried, with
//     exponential backoff and jitter or at the time that the receiver asks for. Once
//     one is accepted, batches grow again. The queue's note keeps the schedule over
//     restarts.
//   - No event expires, by age or by number of retries. Dead letters are events that
//     the sink refuses as faulty ([sinks.Poison], a panic, a pause that concerns them
//     alone), events larger than its limit, records that cannot be decoded, and
//     events that an operator skips. Each is counted, logged and kept with its
//     reason.
//   - A receiver that refuses everything makes no dead letters: refusals of 20
//     objects in a row pause the sink, and others are tried, the oldest and the
//     newest in turns: what follows the objects of one client shows soon that the
//     receiver is not at fault. Until then a refused event waits for the
//     acceptance of another, as long as there are others to try. If only refused
//     objects are left, fewer than 20, their events become dead letters after 20
//     seconds; with one object, without that delay. A sink also pauses when there is
//     no room for dead letters.
//   - A backlog behind failed events is delivered in batches and read again in
//     ranges, in the order of the queue.
//   - Heartbeats ([Config.Heartbeat]) are sent between writes of the first lane, while the sink flows. They
//     are in no queue, and their failures count for nothing.
//   - Bounded memory. Reading ahead is bounded in events and bytes. Events behind a
//     failing object are held as positions, at most 65,536.
//
// Caveats:
//
//   - A sink that panics on three events in a row is paused. If all remaining events
//     panic, it stays paused until [Worker.Resume]: the cause is likely a bug of the
//     sink, and the events are kept.
//   - After a dead letter the object's later events are delivered, so a receiver may
//     see a later state without the refused one.
//   - There is no order between objects: other objects' events overtake a retried
//     one.
//   - A redelivery after a crash starts at the first event whose acceptance was not
//     recorded. Later events may be repeated with it, in order and with the same IDs.
//   - Two objects with one Lane share an order and delay each other; nothing is lost.
//   - When 65,536 events wait behind failing objects, the worker stops reading until
//     one of them is delivered. Status and metrics report it; the status names the
//     objects.
//   - One event answered with a long Retry-After delays its sink once by that time,
//     at most 5 minutes, if no other event is accepted beside it.
//
// # Where to look
//
// worker.go opens a sink and runs engine.go, the loop of one goroutine: queue.go reads
// ahead, prepare.go makes events of records, form.go makes batches (lane.go), write.go
// writes, and shows with heartbeats that it does, settle.go and outcome.go judge the results. The meaning of a failure is in
// circuit.go (the sink) and outcome.go (an event), its record in deadletter.go, status.go
// and note.go.
//
// The package is larger than others because it is one state machine: every file uses
// the same objects, attempts and circuit, on the loop's goroutine.
package delivery
