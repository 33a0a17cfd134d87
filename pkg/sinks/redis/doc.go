// Package redis appends events to streams of Redis or Valkey and, with `state`, keeps the last state of
// each object in a hash.
//
// Guarantees:
//
//   - Accepted means that the server answered to the script that appends the batch: as a whole or not at all. With
//     `replicas`, so many replicas have acknowledged it too.
//   - Each event once: the script leaves a key for each event, for the time `dedupe`. An event that is
//     written again in that time, after a lost answer or a crash, is in the stream once.
//   - State: the hash takes a state only above the sequence that it has. An object that is deleted, or that leaves
//     the watch's selection, leaves the hash; its sequence stays for the time `tombstones`, so that an older event cannot
//     bring it back.
//   - A Write ends within the timeout for its connection, and for each stream that it writes to.
//   - Secrets and files are read again at each connection.
//
// Caveats: a server that does not sync its log before it answers (appendonly yes, appendfsync always)
// loses its last second with its machine, a replica that takes over lacks what it had not received, and a server whose
// maxmemory-policy is not noeviction removes streams when it is full: each is warned about once. The stream drops its oldest entries above `maxLen`. Gaps are in the stream alone.
package redis
