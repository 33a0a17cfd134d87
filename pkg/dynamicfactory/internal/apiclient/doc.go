// Package apiclient sends the list and watch requests of informers to an API server.
//
// A [Client] reads pages of lists and lines of watches as raw JSON. Its errors distinguish
// expired history, IsPermanent rejections and unreadable responses. A [Prober] identifies
// the cluster and its version, and a [Notifier] reports that a resource changes. None of
// them has a goroutine of its own.
package apiclient
