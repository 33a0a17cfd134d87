// Package inspect reads a store that may be damaged: [Check] reports the damage,
// [Export] copies out everything that can be read. Both change nothing, and fail with
// [engine.ErrLocked] while a daemon has the store open. They work on a read-only
// filesystem.
//
// Pebble's own inspection commands are no substitute. They know neither the layout nor
// the counters of a store, and they stop at the first damaged block of a table or a
// write-ahead log, where an export continues with the next one.
package inspect
