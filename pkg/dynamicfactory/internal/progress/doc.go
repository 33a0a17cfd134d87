// Package progress numbers the notifications of one watched resource, and records which
// resourceVersions are complete and which events are acknowledged.
//
// What it guarantees:
//
//   - [Progress.Checkpoint] never returns a version of which an event has a later
//     position, nor one that may have more events.
//   - A watch that resumes from [Progress.Resume] misses nothing, and
//     [Progress.Repeated] recognizes the events that it receives again.
//   - Both hold bounded memory, also without acknowledgements. A [Window] without a limit
//     holds none.
package progress
