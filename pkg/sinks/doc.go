// Package sinks is the contract between watcherd and the places it delivers to.
//
// A kind of sink is a [Config]: a struct that is decoded strictly from the block
// under the kind's name in the configuration, validates itself without touching
// the world, and opens a [Sink]. Kinds live in a folder each and are listed in a
// table ([Kinds]) that the program owns; nothing registers itself.
//
// Guarantees to a sink:
//
//   - Write is called with events in order. A batch may hold several events of one
//     object; two Writes at the same time never do, and the later Write comes only
//     after every event of the earlier one was accepted, or became a dead
//     letter.
//   - Behind a failed event of a batch the later ones of its object count as failed,
//     for any result of the sink, and come again behind it.
//   - An event is written again after a crash or an unclear failure, always with
//     the same ID, except a heartbeat, which is in no queue.
//   - What a sink refuses stays in watcherd's store. A sink keeps no queue and
//     makes no retries of its own; it classifies the failure
//     ([Poison], [TooLarge], [Pause], [RetryAfter]) and the worker in front of it decides.
//
// Caveats: events are shared between sinks and must not be changed. Errors,
// logs and metrics of a sink must hold no secret: no URL with credentials or
// query, no header values, no bodies beyond a short excerpt.
package sinks
