// Package engine runs Pebble: its options, the directory that it lies in, and the
// filesystem that it sees.
//
// # What may be relied on
//
// One process. [OpenDir] takes a lock, and [Dir.Take] leaves a random token, which
// [Dir.CheckOwner] compares where locks do not work.
//
// Fail-stop. After the first failed write of a file that Pebble depends on, nothing
// of the directory is written, renamed or removed, although Pebble continues. The
// failure is reported through [DirOptions].Fail before Pebble sees any outcome.
//
// A new store is made under another name and renamed when it is complete.
//
// Damage is not mistaken for an interrupted write: a MANIFEST or a write-ahead log
// that is damaged before its end is an error, and no commit after it is dropped.
//
// Some room on the disk is reserved, so that a store on a full disk can still turn
// acknowledged entries into free space.
//
// # What may not
//
// The chunks of write-ahead logs (verify.go) are Pebble's private format. A new
// version of Pebble needs a look at them.
//
// The package is larger than others: all that Pebble does with files goes through one fence, which
// has to know of budget, copies, repairs and failures alike.
package engine
