// Package file appends events to files, a line an event.
//
// Guarantees:
//
//   - Accepted means synced: a batch is one write and one fsync for each file it
//     touches, and a new file's folder is synced too.
//   - All or nothing: when a write fails half-way (a full disk), the file is cut
//     back to where the batch began before the error is returned. Events of one
//     object that go to several files fail together.
//   - A crash leaves a torn line at a file's end, a power cut holes of zeros in the last
//     batch. Neither was accepted; both are cut off when the file is next opened, and the
//     events come again. A file that another program wrote is never cut: a last line
//     without its newline gets one. That of a sink with a `body` looks like it, and is
//     cut off if a line of the next batch begins so; holes in its lines stay.
//   - Nothing outside the path's literal folder (all before the first token) is
//     ever touched. Values are escaped, and a symbolic link below that folder is
//     refused, as is anything that is not a regular file.
//   - A file that was renamed, deleted or truncated from outside (logrotate) is
//     noticed at the next batch: a new one is begun, a truncated one continued, behind its last whole line.
//   - The sink leaves minFree of its disk to others. Batches wait while there is less; a
//     compression, which makes room, ends where half of it is left.
//   - No more than maxOpenFiles are open at once, for any batch.
//   - The rotated files of a path sort in the order of its rotations, also when the
//     clock goes back; `keep` deletes the oldest.
//   - Two sinks, or two processes, never write one file at once (where the system
//     has flock): the second one's batches wait until the first lets go.
//
// Caveats: files are 0600 in folders 0700. Rotation happens when the next batch
// arrives; a file without writes is not rotated. A file may grow beyond
// rotate.maxBytes by one batch. `keep` counts the rotated files of one path: files
// that differ by {date} are different paths and none of them is ever deleted. What a
// crash left undone is done when the path is next opened: rotated files are deleted and
// compressed then. Those of a path without further writes are compressed when
// another file in their folder is opened, and not deleted. Files and folders of objects
// that are gone stay.
//
// Rotation is written here and not taken from a library: those at hand open files
// by path, write through their own buffer of state and know neither os.Root nor
// fsync nor cutting back to a batch's start.
package file
