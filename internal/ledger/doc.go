// Package ledger is what the store keeps in addition to events, in its forms and under its
// names: the last recorded states of objects, the checkpoints of feeds, the rules by which
// watches were given objects, dictionaries, and what the configuration hides.
//
// Guarantees:
//
//   - A damaged entry is [store.ErrUnreadable], never a guess; every other error of the
//     store is an [ErrStore], after which the process has to end.
//   - Names hold nothing that may change without another object being meant: neither the
//     preferred API version nor the edits.
//   - All of it may be read from any goroutine. Who writes what is said by the callers:
//     states and checkpoints of running feeds are the committer's.
package ledger
