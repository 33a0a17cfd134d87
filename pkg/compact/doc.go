// Package compact stores Kubernetes objects in a few hundred bytes each.
//
// An [Object] keeps the fields that caches, indexes and selectors read (namespace,
// name, uid, resourceVersion, labels, times) uncompressed and the rest as
// compressed JSON. A [Codec] encodes and decodes the objects of one resource. The
// objects of a resource are alike, so a dictionary trained on the first few
// replaces most of each later one. [Dictionaries] holds the dictionaries by IDs
// that survive a restart.
//
// Guarantees:
//
//   - AppendJSON returns exactly the bytes that were encoded.
//   - Invalid JSON, a damaged body or binary form, and a missing dictionary are
//     errors, never panics.
//   - Objects are immutable. All methods but Codec.Encode and Codec.Refresh are safe
//     for concurrent use.
package compact
