// Package route decides what a change is worth: which watches it concerns, which
// sinks get it and in what form, and what of an object nobody may ever see.
//
// Guarantees:
//
//   - Everything is compiled and checked when a configuration is loaded: an
//     expression that does not parse, names an unknown variable or is no bool
//     never reaches a running router.
//   - Decisions are pure: they depend on the change alone, never on time, load,
//     I/O or the order of events. The same change is routed the same way again.
//   - An object is inflated at most once per change, however many routes look at
//     it, and only if one looks beyond its type and metadata; of what is inflated
//     only the parts an expression touches are decoded.
//   - Evaluation is bounded in cost and memory, by proof at load where possible
//     and by metering where not.
//   - Redaction happens on the raw bytes before anything else sees the object. No
//     value of a core Secret passes unless its watch opts out by name.
//
// # Expressions
//
// A `when` is CEL (https://cel.dev) and must be a bool. Its variables:
//
//   - object: the state after the change, the last known one in a deletion; as
//     JSON, unchecked
//   - oldObject: the state before an update, else null
//   - metadata: of object, with types: name, namespace, uid, resourceVersion,
//     generateName, generation, labels, annotations, finalizers, ownerReferences,
//     and creationTimestamp and deletionTimestamp as timestamps. What is not set is
//     empty, save deletionTimestamp; has() tells
//   - event: type (added, updated, deleted or sync), time, cluster
//   - resource: group, version, resource, kind
//
// Beyond CEL's own there are optional values, the strings, lists, math, encoders,
// regex, network, bindings and two-variable comprehension extensions, and quantity()
// with the methods it has in Kubernetes. Not offered is what could take a machine
// down in one call: replace, join, format, distinct, transformMap, the sets
// extension, and patterns that are not literals.
//
// # Caveats
//
// An expression that reads a field the object does not have is false,
// as absence is the usual case (`object.status.phase` before there is a status);
// use has() or optional selection (`object.?status.?phase`) to decide otherwise.
// Any other failure passes the event on, because losing it would be worse; both
// are counted by route, and [Spec.OnError] changes both.
package route
