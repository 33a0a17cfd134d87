// Package layout is the on-disk format of the store: keys, values and counters. It
// reads and writes no files. Raise [Version] when an older release could no longer
// read what this one writes.
//
// A parsed value shares its payload with the bytes that it was parsed from.
package layout
