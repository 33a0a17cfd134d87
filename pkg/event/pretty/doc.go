// Package pretty prints events for people: one line an event, with the time, a
// coloured verb, what changed, and for updates a short summary of how.
//
// Guarantees:
//
//   - The contents of an object cannot control the terminal: control characters, escape
//     sequences and line breaks are shown as text.
//   - A line stays short: a few changes are spelled out and the rest is counted, as in
//     package summary.
//
// Caveats: the form is for eyes and may change in any release. A summary needs
// the old object, the patch or the summary in the event's payload; without them an
// update shows only its resourceVersion.
package pretty
