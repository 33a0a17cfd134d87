// Package e2e holds the end-to-end tests: the real binary against a real API
// server, judged by what arrives at real sinks. It has no code of its own.
package e2e
