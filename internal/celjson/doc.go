// Package celjson gives CEL expressions access to the JSON of Kubernetes objects without
// decoding all of it.
//
// A [Document] is an object as a CEL value. Its type and most of its metadata are read
// from the compact object. The JSON is inflated on the first access to another field,
// at most once, and only the members on an expression's path are decoded.
//
// Guarantees:
//
//   - A lazy value gives the same results and errors as the decoded value.
//   - The memory limit of an evaluation counts a lazy value without decoding it.
//
// A Document is for one goroutine at a time.
package celjson
