// Package library measures what an object in a cache costs a program that uses
// pkg/dynamicfactory, beside client-go's dynamic informers, all against the same
// server (bench/replayd). The figures are in ../../docs/library.md.
//
//	go test -run '^$' -bench . -benchtime 1x -count 3 ./bench/library
package library
