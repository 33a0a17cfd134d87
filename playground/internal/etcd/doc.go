// Package etcd runs a one-member etcd inside this process and does to it what
// tests of a watching client ask for: compaction and a return to an older state.
//
// Guarantees: it listens on unix sockets only, in a folder that no other user may
// enter. [Server.Close] returns when its goroutines are gone.
//
// Caveat: without fsync, which is the default, a crash of the machine (not of the
// process) may lose or damage the data.
package etcd
