// Package testservers runs servers for tests, each in a process of its own, so that it can be
// killed, or stopped, as a server is: without a word. The programs are of a Go module of their
// own, servers, whose requirements reach no user of this module; PostgreSQL is that of the machine.
package testservers
