// Package rawjson reads and edits the JSON of Kubernetes objects without decoding it
// into maps or structs.
//
// [Scan] reads an object's metadata, an [Editor] drops and replaces values at paths,
// [Lookup] and [Members] find values, [SplitWatchLine] and [ScanList] split watch and
// list responses into objects. Each of them reads the JSON in one pass.
//
// Guarantees:
//
//   - Values that are not edited are copied byte for byte: numbers, key order and
//     escapes stay as sent.
//   - JSON that is invalid, truncated or nested deeper than 10,000 levels is an error,
//     never a panic.
//   - Editors and Paths are safe for concurrent use. The work of an Editor is linear in the
//     object, with any number of wildcards.
//
// Caveats:
//
//   - Keys are case-sensitive, as in the API server. API servers never send a key
//     twice in one JSON object. If one occurs twice, Scan takes the last value, an
//     Editor edits both, and Lookup takes the first.
//   - Text that is not UTF-8 stays as sent in the JSON. Where it is unescaped, U+FFFD
//     replaces it, as in encoding/json.
//   - The items of a list of a built-in type have no apiVersion and kind.
//     [Editor.AppendTyped] adds them, so that a list and a watch give the same JSON.
//
// The package is larger than others, because scanning, editing and looking up are passes over
// one grammar: they share its unexported readers of strings, numbers and members.
package rawjson
