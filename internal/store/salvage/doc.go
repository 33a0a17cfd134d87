// Package salvage reads around damage in the tables of a store, in an open database
// and in single files, and makes the patches that take a damaged block out of a table.
// It writes nothing.
//
// The layout of blocks is Pebble's private format. A new version of Pebble needs a
// look at tables.go.
package salvage
