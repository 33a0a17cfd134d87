// Package status is what an operator asks of a running daemon, as values: what the
// pipeline, the store and the rest fill in, what the admin listener serves, and what
// `watcherd status` prints.
//
// [Status.Checks] is the one place that judges: each part is healthy,
// degraded (a fault is reported that recovers by itself or needs an operator)
// and what fails, which is all that readiness depends on. A daemon whose sink is
// down or whose watch is forbidden is degraded and ready: restarting it or taking
// it out of service would not help.
//
// The values are JSON that programs read; members are added, never renamed.
package status
