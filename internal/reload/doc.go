// Package reload keeps a running daemon at the configuration its file holds.
//
// Guarantees:
//
//   - A change is noticed however it is made: written in place, renamed over,
//     swapped by a symlink as Kubernetes does for ConfigMaps, or only after the
//     folder itself was replaced. What the notifications miss a slow poll finds.
//   - A file that is being written, empty, gone, unreadable or wrong changes
//     nothing: the last good configuration stays. It is said once, and shown in
//     the metrics and [Watcher.Status] until it is fixed.
//   - Content counts, not events: a file equal to the active configuration is not
//     applied again, unless [Watcher.Trigger] asks for it.
//   - Applying is rate limited; of changes in quick succession the last wins.
//
// Caveats: a file is taken as complete when it stays the same for a moment, for
// seconds if it does not end with a line break. A
// writer that pauses longer in the middle of the file may be taken at its word,
// so write another file and rename it. A file that is a mount of its own
// (Kubernetes' subPath, a file given to docker -v) never changes for the daemon
// when it is replaced outside; a warning at the start reports it. A file that is a
// symlink to another folder is found changed by the poll alone.
package reload
