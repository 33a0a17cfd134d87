// Package record is the durable form of an event: what the committer writes to the
// event log and what delivery, replay and the event stream read back.
//
// Bodies stay compressed as the informer's cache holds them; they are inflated
// when a sink takes the event. One record serves all sinks: what differs between
// them (payload, selection, replay) travels as [Flags] beside it.
//
// The form is versioned by its first byte. A record of an unknown version or
// with damaged fields decodes to an error, never to a guess.
package record
