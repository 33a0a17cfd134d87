// Package unseen counts the changes that lack what a configuration names: a field, a path, an object
// that is selected. If enough of them do and none has it, the name may be a mistake.
package unseen

import "sync/atomic"

// Enough is the number of changes after which it is suspicious that none of them has what is named.
const Enough = 100

// seldom is the share of changes that are looked at after Enough: one of so many.
const seldom = 16

// Name is what is known of one name. It is safe for concurrent use. The zero value is ready.
type Name struct {
	seen   atomic.Bool
	lacked atomic.Uint64 // changes without it, before the first with it
}

// Have records a change that has it.
func (n *Name) Have() {
	if !n.seen.Load() {
		n.seen.Store(true)
	}
}

// Lack counts a change without it. It reports whether that makes it worth a report, which is once at most.
func (n *Name) Lack() bool { return !n.seen.Load() && n.lacked.Add(1) == Enough }

// Skip reports whether a change need not be looked at: one is known to have it, or it is suspicious already
// and few changes have it if any. It counts such a change.
func (n *Name) Skip() bool {
	if n.seen.Load() {
		return true
	}
	lacked := n.lacked.Load()
	if lacked < Enough || lacked%seldom == 0 {
		return false
	}
	n.lacked.Add(1)
	return true
}

// Suspicious returns the number of changes that were counted if it is Enough and none had it, else 0.
func (n *Name) Suspicious() uint64 {
	if lacked := n.lacked.Load(); lacked >= Enough && !n.seen.Load() {
		return lacked
	}
	return 0
}
