// Package status is what an operator asks of a running daemon, as values: what the
// feed, the store and the rest fill in, what the admin listener serves, and what
// `watcherd status` prints.
//
// [Status.Checks] is the one place that judges: it says what is well, what is
// degraded (something is wrong, is said, and mends itself or waits for somebody)
// and what fails, which is all that readiness depends on. A daemon whose sink is
// down or whose watch is forbidden is degraded and ready: restarting it or taking
// it out of service would help nobody.
//
// The values are JSON that programs read; members are added, never renamed.
package status
