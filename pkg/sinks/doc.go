// Package sinks is the contract between watcherd and the places it delivers to.
//
// A kind of sink is a [Config]: a struct that is decoded strictly from the block
// under the kind's name in the configuration, validates itself without touching
// the world, and opens a [Sink]. Kinds live in a folder each and are listed in a
// table ([Kinds]) that the program owns; nothing registers itself.
//
// Guarantees to a sink:
//
//   - Write is called with events in order. Two events of one object are never
//     in flight at the same time: the later one comes only after the earlier one
//     was accepted, or was set aside as a dead letter.
//   - An event is written again after a crash or an unclear failure, always with
//     the same ID.
//   - What a sink refuses stays in watcherd's outbox. A sink keeps no queue and
//     makes no retries of its own; it says what kind of failure it was
//     ([Poison], [Pause], [RetryAfter]) and the worker in front of it decides.
//
// Caveats: events are shared between sinks and must not be changed. Errors,
// logs and metrics of a sink must hold no secret: no URL with credentials or
// query, no header values, no bodies beyond a short excerpt.
package sinks
