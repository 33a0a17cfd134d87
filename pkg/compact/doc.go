// Package compact holds Kubernetes objects small and handles their JSON without building maps.
//
// An Object keeps what caches ask for all the time (namespace, name, uid, resourceVersion, labels, times) at hand and the
// rest as compressed JSON. A Codec makes such objects, one codec per resource: the objects of a resource are much
// alike, so a dictionary made of the first few takes most of each further one. Dictionaries keeps those, by ids that mean
// the same after a restart. Scan, Editor, Lookup, SplitWatchLine and ScanList work on raw JSON in one pass.
//
// Guarantees:
//
//   - AppendJSON gives back exactly the bytes that were encoded. Numbers, key order and escapes are never touched.
//   - JSON that is not valid, breaks off, or nests deeper than 10,000 levels is an error, never a panic, whatever the input;
//     so are a body or a binary form that was damaged, or that lacks its dictionary.
//   - Objects, Editors and Paths are immutable; all but Codec.Encode is safe for concurrent use.
//
// Caveats:
//
//   - Keys are compared exactly, as API servers do. If a key occurs twice in one JSON object, which API servers never
//     send, Scan takes the last, an Editor edits each, and Lookup takes the first.
//   - Text that is not UTF-8 is kept as it is in the JSON, but read as encoding/json reads it, with U+FFFD in its place.
//   - Objects without apiVersion and kind (items of lists of built-in types) should be given them with
//     Editor.AppendTyped, so that an object is the same by list and by watch.
package compact
