// Package sinktest is the conformance suite of the sink contract: what every kind
// must do, run against the real destination. A new kind passes [Run] before
// anything else.
//
//	func TestConformance(t *testing.T) {
//		sinktest.Run(t, func(t *testing.T) sinktest.Destination { ... })
//	}
//
// Guarantees: each check gets a destination of its own, and no goroutine that a
// sink leaves behind goes unnoticed.
//
// Caveats: what a server had in its socket buffers when it was stopped may still arrive
// when it resumes; no client can prevent that, and an idempotent destination does not
// mind. The suite is about the contract. What a kind promises beyond it, such as
// signatures or rotation, is tested by the kind. Nothing may run in parallel with
// it in the same process, because of the count of goroutines.
package sinktest
