// Package playground finds the programs of the playground module, building them
// when there is need.
//
// Guarantees: a program is built once for each state of its sources, version of
// Go and platform, however many processes ask at the same time, and is kept
// outside the source tree. A path that was handed out holds a complete program.
//
// Caveat: the first build of the API server compiles some 2,000 packages. It
// takes minutes, and 90 MB of downloads where the module cache is empty.
package playground
