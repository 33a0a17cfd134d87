// Package sinks measures the built-in kinds of sinks against the plain loop that a
// program without watcherd would write with the same library, in the same run and
// with the same receiver. The figures are in ../SINKS.md.
//
//	go test -run '^$' -bench . -benchtime 3s -count 3 ./bench/sinks
//
// The receivers are processes of their own, so that the CPU time that is reported
// is the sender's alone. Events are of 1.9 KB: an object of 1.5 KB and the envelope.
package sinks
