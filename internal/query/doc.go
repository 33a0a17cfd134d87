// Package query serves reads: the objects that watches see, the event log,
// dead letters, the status, metrics, and an export of the store.
//
// Nothing here changes what runs. [Reader] asks the caches, the committer's atomics and the
// store, and may be used from any goroutine. Only ManagedFields asks the API server. What is shown is edited
// as the configuration wants it now.
package query
