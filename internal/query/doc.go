// Package query answers those who look on: the objects that watches see, the event log,
// dead letters, the status, metrics, and an export of the store.
//
// Nothing here changes what runs. [Reader] asks the caches, the committer's atomics and the
// store, never the API server, and may be used from any goroutine. What is shown is edited
// as the configuration wants it now.
package query
